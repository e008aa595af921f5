"""The keys of each suite that are no means over its rows, by the suite's name: rates, survival, Elo."""

from collections.abc import Mapping

from .closed_world import closed_world_measures
from .engine_match import engine_match_measures
from .selfplay import selfplay_measures
from .suite import Measures, SuiteName

MEASURES: Mapping[str, Measures] = {
    SuiteName.selfplay: selfplay_measures,
    SuiteName.closed_world: closed_world_measures,
    SuiteName.engine_match: engine_match_measures,
}
"""By the suite's name; a suite that is not here has none."""

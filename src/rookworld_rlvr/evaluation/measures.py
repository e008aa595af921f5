"""The keys of each suite that are no means over its rows, by the suite's name: rates, survival, Elo."""

from collections.abc import Mapping
from functools import partial

from .closed_world import closed_world_measures
from .paired_games import elo_measures
from .selfplay import selfplay_measures
from .suite import Measures, SuiteName

MEASURES: Mapping[str, Measures] = {
    SuiteName.selfplay: selfplay_measures,
    SuiteName.closed_world: closed_world_measures,
    SuiteName.engine_match: partial(elo_measures, SuiteName.engine_match),
    SuiteName.match: partial(elo_measures, SuiteName.match),
}
"""By the suite's name; a suite that is not here has none."""

"""The keys of each suite that are no means over its rows, by the suite's name: rates, survival, Elo."""

from collections.abc import Mapping
from functools import partial

from .paired_games import elo_measures
from .selfplay import selfplay_measures
from .suite import Measures, SuiteName
from .world_model import world_model_measures

MEASURES: Mapping[str, Measures] = {
    SuiteName.selfplay: selfplay_measures,
    SuiteName.world_model: world_model_measures,
    SuiteName.engine_match: partial(elo_measures, SuiteName.engine_match),
    SuiteName.match: partial(elo_measures, SuiteName.match),
}
"""By the suite's name; a suite that is not here has none."""

"""The headline keys, and those of them that a run made better or worse."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import NormalDist

from .intervals import Z_95
from .keys import SAMPLED, lower_is_better
from .paired import compare
from .table import Measure, Row

GREEDY = (
    "policy/valid",
    "policy/legal_best_move",
    "policy/legal_candidates",
    "policy/best_move_accuracy",
    "policy/top5_accuracy",
    "policy/win_probability_loss",
    "environment/valid",
    "environment/next_state_accuracy",
    "environment/reward_accuracy",
    "environment/recall_legal",
    "environment/recall_illegal",
    "environment/recall_win",
    "environment/recall_draw",
    "environment/recall_terminated",
)
MATCH_ELO = "match/elo"
HEADLINE = (*GREEDY, *(f"{SAMPLED}/{key}" for key in GREEDY), MATCH_ELO)
# The share of runs in which chance alone may name a key.
LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Changes:
    """The headline keys that a run changed significantly, each in the order of HEADLINE."""

    better: list[str]
    worse: list[str]


def changes(before: Iterable[Row], after: Iterable[Row], match: Mapping[str, Measure]) -> Changes:
    """The headline keys that changed significantly, by Holm's correction at 5 % over all of them.

    `match` has the trained model's Elo against the starting checkpoint. Tests are those of `paired.compare`, two-sided;
    Elo has the normal test of its interval. Raises ValueError if the rows are not of the same items. Source: Holm,
    Scandinavian Journal of Statistics 6 (1979) 65-70.
    """
    compared = compare(before, after)
    tested = {key: (compared[key].gain.value, compared[key].p) for key in HEADLINE if key in compared}
    if MATCH_ELO in match:
        tested[MATCH_ELO] = (match[MATCH_ELO].value, _p(match[MATCH_ELO]))
    rejected = holm({key: p for key, (_, p) in tested.items()})
    moved = [(key, (tested[key][0] > 0) == lower_is_better(key)) for key in HEADLINE if key in rejected]
    moved = [(key, wrong) for key, wrong in moved if tested[key][0]]
    return Changes([key for key, wrong in moved if not wrong], [key for key, wrong in moved if wrong])


def holm(p_values: Mapping[str, float], level: float = LEVEL) -> set[str]:
    """The keys whose p stays below `level` after Holm's step-down correction over all of them.

    >>> sorted(holm({"a": 0.001, "b": 0.02, "c": 0.04, "d": 0.5}))
    ['a']
    """
    rejected: set[str] = set()
    for rank, key in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[key] > level / (len(p_values) - rank):
            break
        rejected.add(key)
    return rejected


def _p(elo: Measure) -> float:
    """The p-value of a normal interval: below 0.05 exactly if the 95 % interval leaves out 0."""
    nearer = elo.high if elo.value < 0 else elo.low
    if not isfinite(elo.value) or not isfinite(nearer):
        return 0.0 if elo.low > 0 or elo.high < 0 else 1.0
    error = abs(nearer - elo.value) / Z_95
    return 2 * NormalDist().cdf(-abs(elo.value) / error) if error else 1.0


def shown_first(gains: Mapping[str, object], worse_keys: Sequence[str]) -> list[str]:
    """The headline keys that a run has, in their order, and any key of `worse`."""
    return [key for key in HEADLINE if key in gains or key in worse_keys]

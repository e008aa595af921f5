"""The headline keys, and tests of which of them a run made better or worse."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, isfinite, sqrt
from statistics import NormalDist
from typing import Any

from ..tasks import all_tasks
from .games import Adjudicator
from .intervals import EQUALITY_TOLERANCE, Z_95, seeds_interval, shared_row_error
from .keys import SAMPLED, is_better, is_worse, lower_is_better
from .paired import Comparison, compare
from .table import Gain, Measure, Row

MATCH_ELO, BY_MATERIAL = "match/elo", f"match/ended/{Adjudicator.material}"
MATES = "mate_in_one/accuracy"
# Significance level: the share of runs in which chance alone may report a key as changed.
LEVEL = 0.05
# A key with fewer rows cannot pass the correction and would only weaken the tests of the others.
LEAST_ROWS = 30
# Size, in standard errors, of a change that a one-sided test at 5 % finds with a probability of 80 %: 1.645 + 0.842.
DETECTABLE_ERRORS = 2.487
RowGains = Mapping[str, Mapping[int, float]]
"""A run's gain in each row, by key and index of the row."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The headline keys that a run changed, each list in the order of `headline_keys`."""

    better: list[str]
    worse: list[str]
    perhaps_worse: list[str] = field(default_factory=list)
    """Keys that are not in `worse`, but for which a one-sided test at 5 % without correction finds a loss."""
    detectable: Mapping[str, float] = field(default_factory=dict)
    """The smallest loss of each tested key that a one-sided test at 5 % finds with a probability of 80 %."""


def greedy_keys() -> list[str]:
    """Return the headline keys of all tasks, measured on greedy completions."""
    return [key for task in all_tasks() for key in task.headline]


def headline_keys() -> list[str]:
    """Return all headline keys, in the order in which they are shown."""
    return [*greedy_keys(), MATES, *(f"{SAMPLED}/{key}" for key in greedy_keys()), MATCH_ELO]


def decision_keys() -> list[str]:
    """Return the key of each task on which decisions during training are based."""
    return [task.decision_key for task in all_tasks()]


def changes(before: Iterable[Row], after: Iterable[Row], match: Mapping[str, Measure]) -> Changes:
    """Return the headline keys that changed significantly, by Holm's correction at 5 % over all tested keys.

    A missed loss costs more than a false alarm, so losses are also tested without correction. `match` has the trained
    model's Elo against the starting checkpoint, which is not tested if material alone decided most games. The tests are
    the two-sided ones of `paired.compare`, and for Elo the normal test of its interval. A key is reported only if its
    mean, its interval and its test agree. Keys with fewer than `LEAST_ROWS` rows or games are not tested. Raises
    ValueError if the rows are not of the same items. Source: Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.
    """
    compared = compare(before, after)
    tested = {key: compared[key] for key in headline_keys() if key in compared and compared[key].n >= LEAST_ROWS}
    if MATCH_ELO in match and match[MATCH_ELO].n >= LEAST_ROWS and not by_material_alone(match):
        tested[MATCH_ELO] = _elo_comparison(match[MATCH_ELO])
    better, worse = better_and_worse(tested)
    return Changes(better, worse, _perhaps_worse(tested, worse), {key: _detectable(tested[key]) for key in tested})


def by_material_alone(match: Mapping[str, Measure]) -> bool:
    """Return whether more than half of the games were adjudicated by material, which is too crude for a test."""
    return BY_MATERIAL in match and match[BY_MATERIAL].value > 0.5


def better_and_worse(tested: Mapping[str, Comparison]) -> tuple[list[str], list[str]]:
    """Return the keys that got significantly better, and those that got worse, by Holm's correction over all keys."""
    rejected = holm({key: entry.p for key, entry in tested.items()})
    changed = {key: entry.gain.value for key, entry in tested.items() if key in rejected and entry.consistent}
    better = [key for key, gain in changed.items() if is_better(key, gain)]
    return better, [key for key, gain in changed.items() if is_worse(key, gain)]


def _perhaps_worse(tested: Mapping[str, Comparison], worse: Sequence[str]) -> list[str]:
    falls = {key: entry.p_rise if lower_is_better(key) else entry.p_fall for key, entry in tested.items()}
    return [key for key in tested
            if key not in worse and falls[key] < LEVEL and is_worse(key, tested[key].gain.value)]  # fmt: skip


def _detectable(entry: Comparison) -> float:
    return DETECTABLE_ERRORS * (entry.gain.high - entry.gain.low) / (2 * Z_95)


def _elo_comparison(elo: Measure) -> Comparison:
    p = _p(elo)
    rise = p / 2 if elo.value > 0 else 1 - p / 2
    gain = Gain(elo.value, elo.low, elo.high)
    return Comparison(0.0, elo.value, gain, None, None, elo.n, "normal", p, rise, 1 - rise)


def holm(p_values: Mapping[str, float]) -> set[str]:
    """Return the keys whose p-value is significant at LEVEL by Holm's step-down correction over all of them.

    >>> sorted(holm({"a": 0.001, "b": 0.02, "c": 0.04, "d": 0.5}))
    ['a']
    """
    rejected: set[str] = set()
    for rank, key in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        if p_values[key] > LEVEL / (len(p_values) - rank):
            break
        rejected.add(key)
    return rejected


def _p(elo: Measure) -> float:
    """Return the p-value that belongs to a normal 95 % interval; below 0.05 exactly if the interval excludes 0."""
    nearer = elo.high if elo.value < 0 else elo.low
    if not isfinite(elo.value) or not isfinite(nearer):
        return 0.0 if elo.low > 0 or elo.high < 0 else 1.0
    error = abs(nearer - elo.value) / Z_95
    return 2 * NormalDist().cdf(-abs(elo.value) / error) if error else 1.0


def headline_gains(
    summaries: Sequence[Mapping[str, Any]], row_gains: Sequence[RowGains] = ()
) -> Iterator[tuple[str, list[Mapping[str, Any]], tuple[float, float, float]]]:
    """Yield each headline key that all runs have, with each run's gain and the `gain_over_seeds` of these gains.

    A gain is an entry of the run's summary.json. For the match it is the Elo. `row_gains` has those of each run by row,
    if all were measured on the same rows.
    """
    for key in headline_keys():
        part, name = ("match", "elo") if key == MATCH_ELO else ("gain", key)
        gains = [gain for summary in summaries if (gain := summary.get(part, {}).get(name))]
        if len(gains) == len(summaries):
            yield key, gains, gain_over_seeds(key, gains, [of_run.get(key, {}) for of_run in row_gains])


def gain_over_seeds(
    key: str, gains: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[int, float]] = ()
) -> tuple[float, float, float]:
    """Return the mean gain of runs that differ only in their seed, and its 95 % interval, as (mean, low, high).

    `gains` are the entries of the runs' summaries. All runs share the held-out rows, so more runs do not reduce the
    sampling error that the rows cause in all runs alike. `rows`, each run's gains by row, separate this error from that
    of single runs, which is in the variance between runs already. Without `rows` the whole error of a run counts, and
    the interval is wider than it need be. Each run plays its own games: their sampling error is in the variance between
    runs already. The interval is never narrower than the one that rows or games alone give the mean.
    """
    values = [float(gain["value"]) for gain in gains]
    errors = [_error(key, *(float(gain[name]) for name in ("value", "low", "high"))) for gain in gains]
    pooled = sqrt(fsum(error**2 for error in errors) / len(errors))
    if key == MATCH_ELO:
        shared, least = 0.0, pooled / sqrt(len(errors))
    else:
        shared, least = _row_errors(rows) or (pooled, pooled)
    mean, low, high = seeds_interval(values, shared)
    half = Z_95 * least
    return (mean, min(low, mean - half), max(high, mean + half)) if isfinite(half) else (mean, low, high)


def _error(key: str, value: float, low: float, high: float) -> float:
    """Return the standard error that belongs to the interval of a run's gain."""
    if key == MATCH_ELO:
        return (high - low) / (2 * Z_95)
    # The nearer end may be that of the scale, to which the interval of few rows is clipped.
    return max(high - value, value - low) / Z_95


def _row_errors(rows: Sequence[Mapping[int, float]]) -> tuple[float, float] | None:
    """Return the `shared_row_error` of runs on the same rows; None for other rows, or if those of a run are equal."""
    places = sorted(rows[0]) if len(rows) > 1 else []
    if len(places) < 2 or any(of_run.keys() != rows[0].keys() for of_run in rows):
        return None
    columns = [[of_run[place] for place in places] for of_run in rows]
    if any(max(column) - min(column) <= EQUALITY_TOLERANCE or not all(map(isfinite, column)) for column in columns):
        return None
    return shared_row_error(columns)

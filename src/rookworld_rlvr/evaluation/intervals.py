"""95 % confidence intervals of fractions, means, ratios and seeds.

Sums are exact (`math.fsum`), so results do not depend on the order of the values. scipy.stats is imported in the
functions that need it, because its import takes about as long as the start of the rest of the command line.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

# The quantile of the normal distribution at 0.975, for two-sided 95 % intervals.
Z_95 = 1.959963984540054
# Tolerance for equality: larger than rounding errors of differences of shares, smaller than any true difference.
EQUALITY_TOLERANCE = 1e-12


@lru_cache(maxsize=4096)
def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a fraction, without continuity correction; within [0, 1].

    Its width is never 0, so a perfect score of a few rows does not look certain. Raises ValueError unless n ≥ 1 and
    0 ≤ successes ≤ n. Source: Wilson, JASA 22 (1927) 209-212; Newcombe, Stat. Med. 17 (1998) 857-872.

    >>> [round(bound, 4) for bound in wilson_interval(81, 263)]
    [0.2553, 0.3662]
    """
    from scipy.stats import binomtest

    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"expected 0 <= successes <= n and n >= 1, got {successes} of {n}")
    interval = binomtest(successes, n).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)


def mean_interval(values: Sequence[float], lowest: float, highest: float) -> tuple[float, float, float]:
    """Return the mean of graded values and its 95 % normal interval, as (mean, low, high), clipped to the scale.

    The interval is mean ± z·s/√n, where s is the standard deviation of the sample. `lowest` and `highest` are the ends
    of the scale on which the values lie.

    Special cases: A single value does not show any spread, so its interval is the whole scale. If n ≥ 2 values all
    equal v, the interval allows for values that were not seen. Their share is at most q = z²/(n + z²), the upper end of
    Wilson's interval for 0 of n. They may lie anywhere on the scale, so low = v − q(v − lowest) and
    high = v + q(highest − v). At an end of the scale [0, 1] this equals Wilson's interval. If an end of the scale is
    infinite, the interval ends at v on that side. An infinite value makes the mean infinite, and its interval is the
    whole scale.

    Raises ValueError if there is no value, or if a value lies outside the scale.

    >>> mean_interval([0.5], 0.0, 1.0), [round(number, 4) for number in mean_interval([0.5] * 8, 0.0, 1.0)]
    ((0.5, 0.0, 1.0), [0.5, 0.3378, 0.6622])
    """
    if not values or not lowest <= min(values) <= max(values) <= highest:
        raise ValueError(f"expected values from {lowest} to {highest}, got {list(values)[:5]}")
    if len(values) == 1:
        return values[0], lowest, highest
    if not all(map(math.isfinite, values)):
        return sum(values), lowest, highest
    # Rounding can move the mean of equal values outside their range.
    mean = min(max(math.fsum(values) / len(values), min(values)), max(values))
    if max(values) - min(values) <= EQUALITY_TOLERANCE:
        low, high = (_bound_for_equal_values(mean, end, len(values)) for end in (lowest, highest))
        return mean, low, high
    spread = Z_95 * _deviation(values) / math.sqrt(len(values))
    return mean, max(lowest, mean - spread), min(highest, mean + spread)


def _deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of at least two values, with n − 1 in the denominator."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _bound_for_equal_values(value: float, end: float, n: int) -> float:
    """Return the mean if the largest share of unseen values (see `mean_interval`) were at a finite `end`."""
    return value + Z_95**2 / (n + Z_95**2) * (end - value) if math.isfinite(end) else value


def ratio_interval(counts: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    """Return events over trials with its 95 % interval within [0, 1], as (ratio, low, high), for trials in groups.

    `counts` has the events and trials of each group. The sample consists of groups, not trials, because the probability
    of an event may differ between groups and may depend on their number of trials. With r = Σ events / Σ trials and the
    deviations d = events − r·trials of n groups, the variance of r is Σd² / (n − 1) / (n · mean trials²), and the
    interval is r ± z·√variance. For a single group, for groups that do not deviate, and if no trial or every trial was
    an event, this variance is meaningless, and Wilson's interval over trials is used. Raises ValueError without trials.
    Source: Cochran, Sampling Techniques, 3rd edition (1977), chapter 6.

    >>> [round(number, 4) for number in ratio_interval([(1, 10), (1, 1), (0, 40)])]
    [0.0392, 0.0, 0.1304]
    """
    events, trials = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    if not trials:
        raise ValueError(f"expected trials, got {list(counts)[:5]}")
    ratio, n = events / trials, len(counts)
    squares = math.fsum((event - ratio * trial) ** 2 for event, trial in counts)
    if n == 1 or events in (0, trials) or squares <= EQUALITY_TOLERANCE:
        return ratio, *wilson_interval(events, trials)
    spread = Z_95 * math.sqrt(n * squares / (n - 1)) / trials
    return ratio, max(0.0, ratio - spread), min(1.0, ratio + spread)


def shared_row_error(values_KN: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return two standard errors of the mean over K runs of N rows: of what the runs share, and of all that rows cause.

    `values_KN` has the values of the same rows in each run, at least two of both. The variance v of a run's mean over
    rows has a part c that the runs share, since a row is easy or hard for all of them, and a part of its own. The own
    part differs between runs, so it is in the variance between runs already, and falls with their number. The mean over
    runs and rows has the variance w = c + (v − c)/K, so c = (K·w − v)/(K − 1). The errors are √c, c from 0, and √w.

    >>> [round(error, 4) for error in shared_row_error([[0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]])]
    [0.0, 0.2041]
    """
    runs, rows = len(values_KN), len(values_KN[0])
    of_runs = math.fsum(_deviation(values) ** 2 for values in values_KN) / runs / rows
    of_means = _deviation([math.fsum(values) / runs for values in zip(*values_KN, strict=True)]) ** 2 / rows
    return math.sqrt(max(0.0, (runs * of_means - of_runs) / (runs - 1))), math.sqrt(of_means)


def seeds_interval(values: Sequence[float], row_error: float = 0.0) -> tuple[float, float, float]:
    """Return the mean over runs and its 95 % interval, as (mean, low, high). Raises ValueError below two runs.

    The interval is mean ± √(a² + b²). The variance between k runs contributes a = t·s/√k by Student's t. The sampling
    of the rows that all runs share contributes b = z·row_error, where `row_error` is the standard error that it causes
    in the mean (see `shared_row_error`). If a value is infinite, the interval is (−∞, ∞).

    >>> [round(number, 3) for number in seeds_interval([0.096, 0.085, 0.060])]
    [0.08, 0.035, 0.126]
    """
    from scipy.stats import t

    if len(values) < 2:
        raise ValueError(f"expected two runs or more, got {len(values)}")
    if not all(map(math.isfinite, values)):
        return sum(values), -math.inf, math.inf
    mean = math.fsum(values) / len(values)
    between = float(t.ppf(0.975, len(values) - 1)) * _deviation(values) / math.sqrt(len(values))
    half = math.hypot(between, Z_95 * row_error)
    return mean, mean - half, mean + half

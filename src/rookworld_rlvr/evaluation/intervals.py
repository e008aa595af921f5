"""How sure a mean is: 95 % confidence intervals for fractions and for graded values.

Sums are exact (`math.fsum`), so the order of the values changes nothing.
"""

import math
from collections.abc import Sequence

# The normal distribution's quantile at 0.975: two-sided 95 %.
Z_95 = 1.959963984540054
# Differences of the same shares differ by less in floats, different ones by more.
SAME = 1e-12


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """The 95 % Wilson score interval of a fraction, without continuity correction; within [0, 1].

    With p = successes/n: (p + z²/2n ± z·√(p(1−p)/n + z²/4n²)) / (1 + z²/n). It never has width 0, so a
    perfect score of few rows is not taken for certainty. Raises ValueError unless n ≥ 1 and
    0 ≤ successes ≤ n. Source: Wilson, JASA 22 (1927) 209-212; Newcombe, Stat. Med. 17 (1998) 857-872.

    >>> [round(bound, 4) for bound in wilson_interval(81, 263)]
    [0.2553, 0.3662]
    """
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"expected 0 <= successes <= n and n >= 1, got {successes} of {n}")
    p, z2 = successes / n, Z_95**2
    center = p + z2 / (2 * n)
    spread = Z_95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    # At the ends the bound is 0 or 1 in exact arithmetic, which rounding misses.
    low = 0.0 if successes == 0 else (center - spread) / (1 + z2 / n)
    high = 1.0 if successes == n else (center + spread) / (1 + z2 / n)
    return low, high


def mean_interval(values: Sequence[float], lowest: float, highest: float) -> tuple[float, float, float]:
    """The mean of graded values and its 95 % normal interval, as (mean, low, high), cut to the scale.

    mean ± z·s/√n with the sample's standard deviation s. `lowest` and `highest` end the scale that the
    values lie on. Degenerate cases: one value says nothing of the spread, so its interval is the whole
    scale. If all n ≥ 2 values equal v, the spread comes from the values that were not seen. Their share is at
    most q = z²/(n + z²), the upper end of Wilson's interval for 0 of n, and they may lie anywhere on the scale,
    so low = v − q(v − lowest) and high = v + q(highest − v). At an end of the scale [0, 1] this is Wilson's
    interval itself. Towards an infinite end it says nothing, and the interval ends at v. An infinite value makes
    the mean infinite, with the whole scale as its interval.
    Raises ValueError without a value, or with one off the scale.

    >>> mean_interval([0.5], 0.0, 1.0), [round(number, 4) for number in mean_interval([0.5] * 8, 0.0, 1.0)]
    ((0.5, 0.0, 1.0), [0.5, 0.3378, 0.6622])
    """
    if not values or not lowest <= min(values) <= max(values) <= highest:
        raise ValueError(f"expected values from {lowest} to {highest}, got {list(values)[:5]}")
    if len(values) == 1:
        return values[0], lowest, highest
    if not all(map(math.isfinite, values)):
        return sum(values), lowest, highest
    # Rounding may take the mean of equal values beyond them.
    mean = min(max(math.fsum(values) / len(values), min(values)), max(values))
    if max(values) - min(values) <= SAME:
        return mean, _unseen(mean, lowest, len(values)), _unseen(mean, highest, len(values))
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    spread = Z_95 * math.sqrt(variance / len(values))
    return mean, max(lowest, mean - spread), min(highest, mean + spread)


def ratio_interval(counts: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    """Events over trials where trials come in groups, as (ratio, low, high): 95 %, within [0, 1].

    `counts` has events and trials of each group. The probability of an event may differ between groups and may depend
    on their number of trials, so the groups are the sample, not the trials. With r = Σ events / Σ trials and the
    deviations d = events − r·trials of n groups, the variance of r is Σd² / (n − 1) / (n · mean trials²), and the
    interval is r ± z·√variance. This says nothing for a single group, for groups without any deviation, and if no trial
    or every trial was an event; the interval is then Wilson's over trials. Raises ValueError without a trial. Source:
    Cochran, Sampling Techniques, 3rd edition (1977), chapter 6.

    >>> [round(number, 4) for number in ratio_interval([(1, 10), (1, 1), (0, 40)])]
    [0.0392, 0.0, 0.1304]
    """
    events, trials = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    if not trials:
        raise ValueError(f"expected trials, got {list(counts)[:5]}")
    ratio, n = events / trials, len(counts)
    squares = math.fsum((found - ratio * tried) ** 2 for found, tried in counts)
    if n == 1 or events in (0, trials) or squares <= SAME:
        return ratio, *wilson_interval(events, trials)
    spread = Z_95 * math.sqrt(n * squares / (n - 1)) / trials
    return ratio, max(0.0, ratio - spread), min(1.0, ratio + spread)


def _unseen(value: float, end: float, n: int) -> float:
    """How far the mean lies towards an end of the scale if as many of the values are there as n equal ones allow."""
    return value + Z_95**2 / (n + Z_95**2) * (end - value) if math.isfinite(end) else value


# Student's t at 0.975 by degrees of freedom; beyond, the normal distribution is close enough.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def seeds_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean over runs and its 95 % interval by Student's t, as (mean, low, high). Raises ValueError below two runs.

    >>> [round(number, 3) for number in seeds_interval([0.096, 0.085, 0.060])]
    [0.08, 0.035, 0.126]
    """
    if len(values) < 2:
        raise ValueError(f"expected two runs or more, got {len(values)}")
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    t = T_95[len(values) - 2] if len(values) - 2 < len(T_95) else Z_95
    half = t * deviation / math.sqrt(len(values))
    return mean, mean - half, mean + half

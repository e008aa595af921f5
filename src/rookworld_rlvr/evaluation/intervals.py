"""How sure a mean is: 95 % confidence intervals for fractions and for graded values.

Sums are exact (`math.fsum`), so the order of the values changes nothing.
"""

import math
from collections.abc import Sequence

# The normal distribution's quantile at 0.975: two-sided 95 %.
Z_95 = 1.959963984540054


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
    scale; several equal values have width 0. Raises ValueError without a value, or with one off the scale.

    >>> mean_interval([0.5], 0.0, 1.0), mean_interval([0.5, 0.5], 0.0, 1.0)
    ((0.5, 0.0, 1.0), (0.5, 0.5, 0.5))
    """
    if not values or not lowest <= min(values) <= max(values) <= highest:
        raise ValueError(f"expected values from {lowest} to {highest}, got {list(values)[:5]}")
    if len(values) == 1:
        return values[0], lowest, highest
    if min(values) == max(values):
        return values[0], values[0], values[0]
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    spread = Z_95 * math.sqrt(variance / len(values))
    return mean, max(lowest, mean - spread), min(highest, mean + spread)

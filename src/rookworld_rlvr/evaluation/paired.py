"""Comparison of two models on the same rows: the difference of each key and its statistical significance.

Each key has a test of its own, so with many keys some p-values are below 0.05 by chance.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from .intervals import Z_95, mean_interval
from .keys import scale_of
from .suite import Measures, no_measures
from .table import Gain, Row, difference, gain_of, paired_values

# Decimals to which differences are rounded, so that equal ones, such as 0.4 - 0.2 and 1.0 - 0.8, are equal floats.
DIGITS = 9
MCNEMAR, WILCOXON, JACKKNIFE = "McNemar", "Wilcoxon", "jackknife"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of two models by one key."""

    first: float
    """Mean of the first model over the rows that both have, or its value if the key is not a mean over rows."""
    second: float
    gain: Gain
    """Second minus first."""
    higher: int | None
    """Number of rows with a higher value in the second, which is worse for a loss. None if rows do not have the key."""
    lower: int | None
    n: int
    """Number of rows that both have."""
    test: str
    p: float
    """Two-sided p-value: the probability of a difference this large if rows favour neither. 1.0 if no row differs."""
    p_rise: float
    """One-sided p-value, small if the second is higher."""
    p_fall: float
    """One-sided p-value, small if the second is lower."""

    @property
    def consistent(self) -> bool:
        """True if the mean, its interval and the test show a difference in the same direction.

        A rank test and the mean can disagree on skewed differences, such as many small gains and a few large losses.
        """
        return (self.gain.low > 0 and self.p_rise < self.p_fall) or (self.gain.high < 0 and self.p_fall < self.p_rise)


def compare(first: Iterable[Row], second: Iterable[Row], measures: Measures = no_measures) -> dict[str, Comparison]:
    """Compare every key that both have, including those of `measures`, in alphabetical order.

    The test is McNemar's exact test for keys that are right or wrong, Wilcoxon's signed-rank test for graded keys, and
    the jackknife for keys that are not means over rows. Raises ValueError if the rows are not of the same items (see
    `paired_values`).
    """
    one, two = (sorted(rows, key=lambda row: row.index) for rows in (first, second))
    means = {key: _comparison(key, pairs) for key, pairs in paired_values(one, two).items()}
    return dict(sorted((means | compare_measures(one, two, measures)).items()))


def _comparison(key: str, pairs: Sequence[tuple[float, float]]) -> Comparison:
    differences = [round(difference(*pair), DIGITS) for pair in pairs]
    higher, lower = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    graded = scale_of(key) is not None
    p, p_rise, p_fall = (
        wilcoxon_p(differences, alternative) if graded else mcnemar_p(higher, lower, alternative)
        for alternative in ALTERNATIVES
    )
    return Comparison(
        first=math.fsum(before for before, _ in pairs) / len(pairs),
        second=math.fsum(after for _, after in pairs) / len(pairs),
        gain=gain_of(key, pairs),
        higher=higher,
        lower=lower,
        n=len(pairs),
        test=WILCOXON if graded else MCNEMAR,
        p=p,
        p_rise=p_rise,
        p_fall=p_fall,
    )


def compare_measures(first: Sequence[Row], second: Sequence[Row], measures: Measures) -> dict[str, Comparison]:
    """Compare the keys of `measures` that both have by the jackknife over pairs of rows, paired by position.

    Let d be the difference over all n pairs and d_i the difference without pair i. The variance of d is
    (n − 1)/n · Σ(d_i − mean)², and the interval and the test are the normal ones. If all d_i are equal they do not show
    the spread. The interval is then that of n equal values (see `mean_interval`), and the p-values follow from it.
    A key is left out if it is infinite or missing in either model, with all pairs or without any one of them, or if
    it has neither spread nor a finite scale.
    Source: Efron, The Jackknife, the Bootstrap and Other Resampling Plans (1982), chapter 3.
    """
    values = [{key: measure.value for key, measure in measures(rows).items()} for rows in (first, second)]
    left_out = [_differences(measures, _without(first, i), _without(second, i)) for i in range(len(first))]
    comparisons: dict[str, Comparison] = {}
    for key, change in _differences(measures, first, second).items():
        others = [differences.get(key, math.nan) for differences in left_out] if len(left_out) > 1 else []
        gain_and_error = _jackknifed(key, change, others)
        if gain_and_error is not None:
            gain, error = gain_and_error
            fall, rise = NormalDist().cdf(change / error), NormalDist().cdf(-change / error)
            means, ps = (values[0][key], values[1][key]), (2 * min(rise, fall), rise, fall)
            comparisons[key] = Comparison(*means, gain, None, None, len(first), JACKKNIFE, *ps)
    return comparisons


def _without(rows: Sequence[Row], place: int) -> list[Row]:
    return [*rows[:place], *rows[place + 1 :]]


def _differences(measures: Measures, first: Sequence[Row], second: Sequence[Row]) -> dict[str, float]:
    """Return second − first of each key that both have, if it is finite."""
    one, two = measures(first), measures(second)
    both = {key: two[key].value - one[key].value for key in one if key in two}
    return {key: change for key, change in both.items() if math.isfinite(change)}


def _jackknifed(key: str, change: float, others: Sequence[float]) -> tuple[Gain, float] | None:
    """Return the gain and its standard error; None if the key is left out.

    `others` has the change without each pair, NaN if there is none. It is empty for a single pair.
    """
    scale = scale_of(key)
    width = scale.width if scale else 1.0
    if any(math.isnan(other) for other in others):
        return None
    if len({round(other, DIGITS) for other in others}) < 2:
        gain = Gain(*mean_interval([change] * max(1, len(others)), -width, width))
        towards_0 = change - gain.low if change > 0 else gain.high - change
        return (gain, towards_0 / Z_95) if gain.low < gain.high else None
    mean, n = math.fsum(others) / len(others), len(others)
    error = math.sqrt((n - 1) / n * math.fsum((other - mean) ** 2 for other in others))
    low, high = change - Z_95 * error, change + Z_95 * error
    return Gain(change, max(-width, low), min(width, high)), error


Alternative = Literal["two-sided", "greater", "less"]
ALTERNATIVES: tuple[Alternative, ...] = ("two-sided", "greater", "less")


def mcnemar_p(higher: int, lower: int, alternative: Alternative = "two-sided") -> float:
    """Return the p-value of McNemar's exact test; 1.0 if no row differs.

    The null hypothesis is that a row that differs is equally likely to be higher or lower.

    Source: McNemar, Psychometrika 12 (1947) 153-157, with the binomial distribution in place of its approximation.

    >>> round(mcnemar_p(8, 1), 7), mcnemar_p(0, 0)
    (0.0390625, 1.0)
    """
    from scipy.stats import binomtest

    return float(binomtest(higher, higher + lower, alternative=alternative).pvalue) if higher + lower else 1.0


def wilcoxon_p(differences: Sequence[float], alternative: Alternative = "two-sided") -> float:
    """Return the p-value of Wilcoxon's signed-rank test; 1.0 if all differences are 0.

    Differences of 0 are left out, and differences that are equal to 9 decimals share a rank. The test is exact for up
    to 50 differences without ties and for up to 13 with ties. Otherwise it is the normal approximation with corrections
    for ties and for continuity (scipy's `method="auto"`). Source: Wilcoxon, Biometrics Bulletin 1 (1945) 80-83.

    >>> round(wilcoxon_p([1.0, 2.0, 3.0, 4.0, 5.0]), 7)
    0.0625
    """
    from scipy.stats import wilcoxon

    rounded = (round(difference, DIGITS) for difference in differences)
    kept = [difference for difference in rounded if difference]
    return min(1.0, float(wilcoxon(kept, correction=True, alternative=alternative).pvalue)) if kept else 1.0

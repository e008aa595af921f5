"""Two models on the same rows: by how much they differ, and how easily chance alone would do as much.

Tests are two-sided and of one key each; with many keys some fall below 0.05 by chance.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

from .scales import scale_of
from .table import Gain, Row, paired_gain, paired_values

# So many differences are still told apart one by one: below it Wilcoxon's distribution is exact.
EXACT_DIFFERENCES = 25
MCNEMAR, WILCOXON = "McNemar", "Wilcoxon"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One key of two models."""

    first: float
    """The mean of the first over the rows that both have."""
    second: float
    gain: Gain
    """Second − first."""
    higher: int
    """Rows whose value is higher in the second; of an error or a loss, that is worse."""
    lower: int
    n: int
    test: str
    p: float
    """The probability of a difference at least as large if rows favoured neither; 1.0 where no row differs."""


def compare(first: Iterable[Row], second: Iterable[Row]) -> dict[str, Comparison]:
    """Every key that both have, in alphabetical order.

    McNemar's exact test for right or wrong, Wilcoxon's signed ranks for graded values. Raises ValueError where the
    rows are not of the same items (see `paired_gain`).
    """
    one, two = list(first), list(second)
    gains = paired_gain(one, two)
    return {key: _comparison(key, gains[key], pairs) for key, pairs in paired_values(one, two).items()}


def _comparison(key: str, gain: Gain, pairs: Sequence[tuple[float, float]]) -> Comparison:
    differences = [after - before for before, after in pairs]
    higher, lower = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    graded = scale_of(key) is not None
    return Comparison(
        first=math.fsum(before for before, _ in pairs) / len(pairs),
        second=math.fsum(after for _, after in pairs) / len(pairs),
        gain=gain,
        higher=higher,
        lower=lower,
        n=len(pairs),
        test=WILCOXON if graded else MCNEMAR,
        p=wilcoxon_p(differences) if graded else mcnemar_p(higher, lower),
    )


def mcnemar_p(higher: int, lower: int) -> float:
    """McNemar's exact test: of the rows that differ, each is as likely higher as lower. 1.0 where none differs.

    Source: McNemar, Psychometrika 12 (1947) 153-157, with the binomial distribution in place of its approximation.

    >>> mcnemar_p(8, 1), mcnemar_p(0, 0)
    (0.0390625, 1.0)
    """
    n, fewer = higher + lower, min(higher, lower)
    tail = sum(math.comb(n, k) for k in range(fewer + 1))
    # Whole numbers until here: 2**n exceeds a float from 1,024 rows on.
    return min(1.0, float(Fraction(2 * tail, 2**n)))


def wilcoxon_p(differences: Sequence[float]) -> float:
    """Wilcoxon's signed-rank test. Differences of 0 are left out, equal ones share their ranks.

    Exact for up to 25 differences, by the number of sign patterns; beyond, the normal approximation with the
    variance of the ranks as they are tied and a continuity correction. 1.0 where no difference is left. Source:
    Wilcoxon, Biometrics Bulletin 1 (1945) 80-83.

    >>> wilcoxon_p([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0625
    """
    kept = [difference for difference in differences if difference]
    if not kept:
        return 1.0
    ranks = _doubled_ranks([abs(difference) for difference in kept])
    positive = sum(rank for rank, difference in zip(ranks, kept, strict=True) if difference > 0)
    smaller = min(positive, sum(ranks) - positive)
    if len(kept) <= EXACT_DIFFERENCES:
        return min(1.0, float(Fraction(2 * _at_most(ranks, smaller), 2 ** len(kept))))
    mean, deviation = sum(ranks) / 2, math.sqrt(sum(rank * rank for rank in ranks)) / 2
    # Half a rank, and ranks are doubled.
    return min(1.0, 2 * NormalDist().cdf(min(0.0, (smaller + 1 - mean) / deviation)))


def _doubled_ranks(sizes: Sequence[float]) -> list[int]:
    """Twice the mean rank of each, from 2 on: whole numbers where ranks are shared too."""
    ordered = sorted(sizes)
    first = {size: place for place, size in reversed(list(enumerate(ordered, start=1)))}
    last = {size: place for place, size in enumerate(ordered, start=1)}
    return [first[size] + last[size] for size in sizes]


def _at_most(ranks: Sequence[int], most: int) -> int:
    """How many choices of signs give positive ranks of at most this sum."""
    ways = [1] + [0] * most
    for rank in ranks:
        for total in range(most, rank - 1, -1):
            ways[total] += ways[total - rank]
    return sum(ways)

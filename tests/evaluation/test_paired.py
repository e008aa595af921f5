"""Paired tests against all sign patterns, one by one, and against a formula written differently."""

import itertools
import math
import random

import pytest

from rookworld_rlvr.evaluation import Row
from rookworld_rlvr.evaluation.paired import MCNEMAR, WILCOXON, compare, mcnemar_p, wilcoxon_p

GRADED, RIGHT = "policy/legal_candidates", "policy/valid"


def rank(sizes: list[float], size: float) -> float:
    """The mean place of those as large as `size`."""
    places = [place for place, other in enumerate(sorted(sizes), start=1) if other == size]
    return sum(places) / len(places)


def enumerated(differences: list[float]) -> float:
    """The share of sign patterns whose rank sum lies at least as far from the middle, both ways."""
    sizes = [abs(d) for d in differences]
    ranks = [rank(sizes, size) for size in sizes]
    middle = sum(ranks) / 2
    observed = abs(sum(r for r, d in zip(ranks, differences, strict=True) if d > 0) - middle)
    patterns = list(itertools.product((0, 1), repeat=len(ranks)))
    far = sum(
        abs(sum(r for r, s in zip(ranks, signs, strict=True) if s) - middle) >= observed - 1e-9 for signs in patterns
    )
    return min(1.0, far / len(patterns))


@pytest.mark.parametrize(("higher", "lower"), [(0, 1), (5, 0), (3, 9), (4, 4), (1, 11)])
def test_mcnemar_is_the_share_of_fair_coins_at_least_as_lopsided(higher: int, lower: int) -> None:
    n = higher + lower
    throws = itertools.product((0, 1), repeat=n)
    lopsided = sum(abs(sum(throw) - n / 2) >= abs(higher - n / 2) for throw in throws)
    assert mcnemar_p(higher, lower) == pytest.approx(lopsided / 2**n)


def test_mcnemar_holds_where_powers_of_two_exceed_a_float() -> None:
    assert mcnemar_p(1500, 1500) == 1.0
    assert 0 < mcnemar_p(1600, 1400) < 0.001


@pytest.mark.parametrize("seed", range(6))
def test_wilcoxon_of_few_differences_is_enumeration(seed: int) -> None:
    rng = random.Random(seed)
    differences = [rng.choice([-0.4, -0.2, 0.2, 0.4, 0.6, 1.0]) for _ in range(rng.randint(1, 9))]
    assert wilcoxon_p([*differences, 0.0, 0.0]) == pytest.approx(enumerated(differences))


def test_wilcoxon_of_many_differences_is_the_normal_approximation() -> None:
    rng = random.Random(0)
    differences = [rng.choice([-2.0, -1.0, 1.0, 2.0, 3.0]) for _ in range(60)]
    sizes = [abs(d) for d in differences]
    n, positive = 60, sum(rank(sizes, abs(d)) for d in differences if d > 0)
    ties = sum(sizes.count(size) ** 3 - sizes.count(size) for size in set(sizes))
    deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24 - ties / 48)
    z = (abs(positive - n * (n + 1) / 4) - 0.5) / deviation
    assert wilcoxon_p(differences) == pytest.approx(math.erfc(z / math.sqrt(2)))


def test_the_two_ways_meet_where_one_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    differences = [rng.gauss(0.3, 1.0) for _ in range(25)]
    exact = wilcoxon_p(differences)
    monkeypatch.setattr("rookworld_rlvr.evaluation.paired.EXACT_DIFFERENCES", 24)
    assert wilcoxon_p(differences) == pytest.approx(exact, rel=0.05)


def test_no_difference_proves_nothing_and_signs_do_not_matter() -> None:
    assert wilcoxon_p([]) == wilcoxon_p([0.0, 0.0]) == mcnemar_p(0, 0) == 1.0
    assert wilcoxon_p([1.0, -2.0, 3.0, 5.0]) == wilcoxon_p([-1.0, 2.0, -3.0, -5.0])


def test_each_key_gets_the_test_of_its_values_over_the_rows_that_both_have() -> None:
    first = [Row(i, f"row {i}", {RIGHT: float(i < 2), GRADED: 0.2}) for i in range(6)]
    second = [Row(i, f"row {i}", {RIGHT: 1.0, GRADED: 0.2 * (i % 3)} if i else {RIGHT: 1.0}) for i in range(6)]
    found = compare(first, second)
    right, graded = found[RIGHT], found[GRADED]
    assert (right.test, right.higher, right.lower, right.n, right.p) == (MCNEMAR, 4, 0, 6, 0.125)
    assert (right.first, right.second, right.gain.value) == pytest.approx((1 / 3, 1.0, 2 / 3))
    # Differences 0, 0.2, -0.2, 0, 0.2.
    assert (graded.test, graded.higher, graded.lower, graded.n) == (WILCOXON, 2, 1, 5)
    assert graded.p == 1.0 and graded.gain.value == pytest.approx(0.04)


def test_rows_of_other_items_are_refused() -> None:
    with pytest.raises(ValueError, match="expected rows of the same examples"):
        compare([Row(0, "a", {})], [Row(0, "b", {})])

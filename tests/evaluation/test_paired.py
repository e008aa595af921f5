"""Paired tests against enumeration of all sign patterns, and against formulas written differently."""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import astuple

import pytest

from rookworld_rlvr.evaluation.match import elo_measures
from rookworld_rlvr.evaluation.paired import (
    JACKKNIFE,
    MCNEMAR,
    WILCOXON,
    compare,
    compare_measures,
    mcnemar_p,
    wilcoxon_p,
)
from rookworld_rlvr.evaluation.selfplay import selfplay_measures
from rookworld_rlvr.evaluation.table import Measure, Row

GRADED, RIGHT = "policy/legal_candidates", "policy/valid"


def rank(sizes: list[float], size: float) -> float:
    """Return the mean rank of the values equal to `size`."""
    places = [place for place, other in enumerate(sorted(sizes), start=1) if other == size]
    return sum(places) / len(places)


def enumerated(differences: list[float]) -> float:
    """Return the share of sign patterns whose rank sum is at least as far from the middle, on either side."""
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
def test_mcnemar_p_equals_enumeration_of_fair_coin_throws(higher: int, lower: int) -> None:
    n = higher + lower
    throws = itertools.product((0, 1), repeat=n)
    lopsided = sum(abs(sum(throw) - n / 2) >= abs(higher - n / 2) for throw in throws)
    assert mcnemar_p(higher, lower) == pytest.approx(lopsided / 2**n)


def test_mcnemar_p_does_not_overflow_for_thousands_of_pairs() -> None:
    assert mcnemar_p(1500, 1500) == 1.0
    assert 0 < mcnemar_p(1600, 1400) < 0.001


@pytest.mark.parametrize("seed", range(6))
def test_wilcoxon_p_of_few_differences_equals_enumeration(seed: int) -> None:
    rng = random.Random(seed)
    differences = [rng.choice([-0.4, -0.2, 0.2, 0.4, 0.6, 1.0]) for _ in range(rng.randint(1, 9))]
    assert wilcoxon_p([*differences, 0.0, 0.0]) == pytest.approx(enumerated(differences))


def test_wilcoxon_p_of_many_differences_equals_normal_approximation() -> None:
    rng = random.Random(0)
    differences = [rng.choice([-2.0, -1.0, 1.0, 2.0, 3.0]) for _ in range(60)]
    sizes = [abs(d) for d in differences]
    n, positive = 60, sum(rank(sizes, abs(d)) for d in differences if d > 0)
    ties = sum(sizes.count(size) ** 3 - sizes.count(size) for size in set(sizes))
    deviation = math.sqrt(n * (n + 1) * (2 * n + 1) / 24 - ties / 48)
    z = (abs(positive - n * (n + 1) / 4) - 0.5) / deviation
    assert wilcoxon_p(differences) == pytest.approx(math.erfc(z / math.sqrt(2)))


def test_equal_pairs_have_p_1_and_swapped_signs_keep_p_unchanged() -> None:
    assert wilcoxon_p([]) == wilcoxon_p([0.0, 0.0]) == mcnemar_p(0, 0) == 1.0
    assert wilcoxon_p([1.0, -2.0, 3.0, 5.0]) == wilcoxon_p([-1.0, 2.0, -3.0, -5.0])


def test_differences_that_vary_only_by_rounding_are_tied() -> None:
    before, after = [0.2] * 10 + [1.0] * 10 + [0.3], [0.4] * 10 + [0.8] * 10 + [0.1 + 0.2]
    differences = [second - first for first, second in zip(before, after, strict=True)]
    assert len(set(map(abs, differences))) == 3 and wilcoxon_p(differences) == 1.0
    first, second = ([Row(i, i, {GRADED: value}) for i, value in enumerate(side)] for side in (before, after))
    comparison = compare(first, second)[GRADED]
    assert (comparison.higher, comparison.lower, comparison.n, comparison.p) == (10, 10, 21, 1.0)


def test_compare_picks_test_by_values_and_uses_only_shared_rows() -> None:
    first = [Row(i, f"row {i}", {RIGHT: float(i < 2), GRADED: 0.2}) for i in range(6)]
    second = [Row(i, f"row {i}", {RIGHT: 1.0, GRADED: 0.2 * (i % 3)} if i else {RIGHT: 1.0}) for i in range(6)]
    comparisons = compare(first, second)
    right, graded = comparisons[RIGHT], comparisons[GRADED]
    assert (right.test, right.higher, right.lower, right.n, right.p) == (MCNEMAR, 4, 0, 6, 0.125)
    assert (right.first, right.second, right.gain.value) == pytest.approx((1 / 3, 1.0, 2 / 3))
    # Differences 0, 0.2, -0.2, 0, 0.2.
    assert (graded.test, graded.higher, graded.lower, graded.n) == (WILCOXON, 2, 1, 5)
    assert graded.p == 1.0 and graded.gain.value == pytest.approx(0.04)


def game(index: int, legal: int, illegal: bool) -> Row:
    values = {"selfplay/legal_plies": float(legal), "selfplay/ended/illegal_move": float(illegal)}
    return Row(index, f"game {index}", values)


def test_rate_is_compared_by_jackknife_over_pairs_of_games() -> None:
    first = [game(0, 9, True), game(1, 0, True), game(2, 40, False)]
    second = [game(0, 19, True), game(1, 4, True), game(2, 30, False)]
    comparison = compare(first, second[::-1], selfplay_measures)["selfplay/illegal_rate"]
    # Without the first pair 1/35 - 1/41, without the second 1/50 - 1/50, without the third 2/25 - 2/11.
    left = [1 / 35 - 1 / 41, 0.0, 2 / 25 - 2 / 11]
    error = math.sqrt(2 / 3 * sum((value - sum(left) / 3) ** 2 for value in left))
    assert (comparison.first, comparison.second, comparison.gain.value) == pytest.approx(
        (2 / 51, 2 / 55, 2 / 55 - 2 / 51)
    )
    assert comparison.gain.high - comparison.gain.value == pytest.approx(1.959963984540054 * error)
    assert comparison.p == pytest.approx(math.erfc(abs(comparison.gain.value) / error / math.sqrt(2)))
    assert (comparison.test, comparison.higher, comparison.lower, comparison.n) == (JACKKNIFE, None, None, 3)


def test_jackknife_interval_of_a_mean_equals_normal_paired_interval() -> None:
    rng = random.Random(3)
    first, second = ([Row(i, i, {GRADED: rng.random()}) for i in range(30)] for _ in range(2))

    def mean(rows: Sequence[Row]) -> dict[str, Measure]:
        return {GRADED: Measure(sum(row.values[GRADED] for row in rows) / len(rows), 0.0, 1.0, len(rows))}

    jackknife, expected = compare_measures(first, second, mean)[GRADED], compare(first, second)[GRADED]
    assert astuple(jackknife.gain) == pytest.approx(astuple(expected.gain))


def test_jackknife_rejects_equal_players_at_about_the_nominal_rate() -> None:
    rng, rejections, trials = random.Random(1), 0, 200

    def games() -> list[Row]:
        lengths = [int(rng.expovariate(rng.choice((0.3, 0.03)))) for _ in range(40)]
        return [game(i, length, length < 60) for i, length in enumerate(lengths)]

    for _ in range(trials):
        rejections += compare_measures(games(), games(), selfplay_measures)["selfplay/illegal_rate"].p < 0.05
    assert 0.01 <= rejections / trials <= 0.10


def test_infinite_missing_or_constant_measures_are_not_compared() -> None:
    def match(*scores: float) -> list[Row]:
        return [Row(i, i, {"match/score": score}) for i, score in enumerate(scores)]

    def compared(first: list[Row], second: list[Row]) -> bool:
        return "match/elo" in compare(first, second, elo_measures)

    assert compared(match(0.5, 0.25, 0.0), match(0.5, 0.5, 1.0))
    assert not compared(match(0.0, 0.0, 0.0), match(0.5, 0.5, 1.0))
    assert not compared(match(0.0, 0.0, 0.5), match(0.5, 0.5, 1.0))
    # Without a spread and without a scale there is no interval.
    assert not compared(match(0.25, 0.25, 0.25), match(0.5, 0.5, 0.5))
    silent = [game(0, 0, False)]
    assert "selfplay/illegal_rate" not in compare(silent, [game(0, 3, True)], selfplay_measures)


def test_pairs_without_spread_have_interval_of_nonzero_width() -> None:
    legal, better = [game(i, 40, False) for i in range(9)], [game(i, 9, True) for i in range(9)]
    same = compare(legal, legal, selfplay_measures)["selfplay/illegal_rate"]
    unseen = 1.959963984540054**2 / (9 + 1.959963984540054**2)
    assert (same.gain.low, same.gain.value, same.gain.high, same.p) == pytest.approx((-unseen, 0.0, unseen, 1.0))
    comparison = compare(legal, better, selfplay_measures)["selfplay/illegal_rate"]
    assert (comparison.gain.value, comparison.gain.low) == pytest.approx(
        (0.1, 0.1 - 1.1 * unseen)
    ) and comparison.p > 0.05
    single = compare(legal[:1], better[:1], selfplay_measures)["selfplay/illegal_rate"]
    assert astuple(single.gain) == (0.1, -1.0, 1.0)


def test_comparing_rows_of_different_items_is_refused() -> None:
    with pytest.raises(ValueError, match="expected rows of the same examples"):
        compare([Row(0, "a", {})], [Row(0, "b", {})])

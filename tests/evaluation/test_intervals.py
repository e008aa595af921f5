"""Intervals against textbook values, the defining equation and simulated values."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookworld_rlvr.evaluation.intervals import mean_interval, wilson_interval


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_values_of_newcombe_1998_table_1(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_bounds_solve_score_equation_and_contain_the_fraction(counts: tuple[int, int]) -> None:
    successes, n = counts
    p = successes / n
    low, high = wilson_interval(successes, n)
    assert 0.0 <= low <= p <= high <= 1.0
    assert low < high
    for bound in (low, high):
        deviation = 1.959963984540054**2 * bound * (1 - bound) / n
        assert (p - bound) ** 2 == pytest.approx(deviation, rel=1e-6, abs=1e-12)


def test_wilson_interval_of_one_row_is_wide_and_ends_at_the_scale() -> None:
    assert wilson_interval(1, 1) == pytest.approx((0.2065, 1.0), abs=5e-5)
    assert wilson_interval(0, 1) == pytest.approx((0.0, 0.7935), abs=5e-5)


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (2, 1), (-1, 3)])
def test_wilson_refuses_impossible_counts(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"got {successes} of {n}"):
        wilson_interval(successes, n)


def test_mean_interval_equals_a_computation_by_hand() -> None:
    # Mean 0.4, squared deviations 0.04 + 0.01 + 0.01 over 2 = 0.03, standard error 0.1.
    assert mean_interval([0.2, 0.5, 0.5], 0.0, 1.0) == pytest.approx((0.4, 0.2040036, 0.5959964), abs=1e-6)


def test_mean_interval_stays_on_its_scale() -> None:
    assert mean_interval([0.0, 1.0], 0.0, 1.0) == (0.5, 0.0, 1.0)


def test_equal_values_have_nonzero_width_and_one_value_the_whole_scale() -> None:
    # z² = 3.841459, so after 7 equal values a share of up to 3.841459 / 10.841459 = 0.354330 may differ.
    assert mean_interval([0.1] * 7, 0.0, 1.0) == pytest.approx((0.1, 0.064567, 0.418897), abs=1e-6)
    assert mean_interval([0.0] * 7, -2.0, 2.0) == pytest.approx((0.0, -0.708661, 0.708661), abs=1e-6)
    assert mean_interval([3.0] * 7, 0.0, math.inf) == pytest.approx((3.0, 1.937009, 3.0), abs=1e-6)
    assert mean_interval([0.1], -2.0, 2.0) == (0.1, -2.0, 2.0)


def test_infinite_value_gives_infinite_mean_and_whole_scale_interval() -> None:
    assert mean_interval([1.0, math.inf, 2.0], 0.0, math.inf) == (math.inf, 0.0, math.inf)
    assert mean_interval([math.inf] * 3, 0.0, math.inf) == (math.inf, 0.0, math.inf)
    assert mean_interval([0.0, -math.inf], -math.inf, math.inf) == (-math.inf, -math.inf, math.inf)


@pytest.mark.parametrize("n", [2, 9, 500])
def test_equal_values_at_end_of_scale_have_wilson_interval(n: int) -> None:
    assert mean_interval([0.0] * n, 0.0, 1.0) == pytest.approx((0.0, *wilson_interval(0, n)))
    assert mean_interval([1.0] * n, 0.0, 1.0) == pytest.approx((1.0, *wilson_interval(n, n)))


def test_values_that_differ_only_by_rounding_count_as_equal() -> None:
    noisy, exact = mean_interval([0.4 - 0.2, 1.0 - 0.8] * 5, -1.0, 1.0), mean_interval([0.2] * 10, -1.0, 1.0)
    assert 0.4 - 0.2 != 1.0 - 0.8 and noisy == pytest.approx(exact) and noisy[2] - noisy[1] > 0.5


@pytest.mark.parametrize("values", [[], [1.5], [float("nan")]])
def test_mean_interval_refuses_empty_and_out_of_scale_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"expected values from 0\.0 to 1\.0"):
        mean_interval(values, 0.0, 1.0)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=50), st.randoms(use_true_random=False))
def test_mean_interval_is_bitwise_independent_of_order(values: list[float], rng: random.Random) -> None:
    shuffled = rng.sample(values, len(values))
    assert mean_interval(values, 0.0, 1.0) == mean_interval(shuffled, 0.0, 1.0)
    assert mean_interval(values, 0.0, 1.0)[0] == pytest.approx(statistics.fmean(values))


def test_95_percent_of_intervals_contain_the_true_mean() -> None:
    rng, wilson, normal, trials, n = random.Random(0), 0, 0, 2000, 200
    for _ in range(trials):
        low, high = wilson_interval(sum(rng.random() < 0.8 for _ in range(n)), n)
        wilson += low <= 0.8 <= high
        _, low, high = mean_interval([rng.random() for _ in range(n)], 0.0, 1.0)
        normal += low <= 0.5 <= high
    assert 0.93 < wilson / trials < 0.97
    assert 0.93 < normal / trials < 0.97

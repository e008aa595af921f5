"""Guards, compared with values computed by hand."""

import math
from collections.abc import Callable
from dataclasses import asdict

import pytest

from rookworld_rlvr.stability.guards import Guards, LogStatistics


@pytest.fixture(autouse=True)
def history_of_two(set_limits: Callable[..., None]) -> None:
    set_limits(HISTORY=2)


def observed(*logs: float) -> LogStatistics:
    statistics = LogStatistics()
    for value in logs:
        statistics.observe(math.exp(value), floor=1e-9)
    return statistics


def test_first_twenty_values_weigh_equally_and_later_ones_a_twentieth() -> None:
    statistics = observed(0.0, 2.0, 1.0)
    # The values 0, 2 and 1 have mean 1 and population variance 2/3.
    assert (statistics.count, statistics.mean, statistics.variance) == pytest.approx((3, 1.0, 2 / 3))
    twenty = observed(*[0.0] * 20)
    twenty.observe(math.e, floor=1e-9)
    assert (twenty.mean, twenty.variance) == pytest.approx((0.05, 0.05 * 0.95))


def test_nothing_is_a_spike_without_a_history() -> None:
    assert not observed(0.0).is_spike(1e30, 1e-9)
    assert observed(0.0, 0.0).is_spike(1e30, 1e-9)


def test_spike_exceeds_both_factor_and_deviations(set_limits: Callable[..., None]) -> None:
    steady = observed(0.0, 0.0)
    assert [steady.is_spike(value, 1e-9) for value in (9.9, 10.1)] == [False, True]
    # The logarithm has mean 1 and standard deviation 1, so six deviations above the mean are e⁷.
    wide = observed(0.0, 2.0)
    assert [wide.is_spike(math.exp(value), 1e-9) for value in (6.9, 7.1)] == [False, True]
    # The minimum deviation is 0.1, so 30 deviations are e³. Without it the factor of 10 alone would decide.
    set_limits(SPIKE_SIGMAS=30.0)
    assert [steady.is_spike(math.exp(value), 1e-9) for value in (2.9, 3.1)] == [False, True]


def test_values_below_floor_count_as_floor() -> None:
    statistics = LogStatistics()
    for _ in range(2):
        statistics.observe(0.0, floor=0.5)
    assert statistics.mean == pytest.approx(math.log(0.5))
    assert [statistics.is_spike(value, 0.5) for value in (0.0, 4.9, 5.1)] == [False, False, True]


def test_guard_state_round_trips() -> None:
    guards, other = Guards(), Guards()
    guards.grad_norm.observe(2.0, 1.0)
    state = guards.state_dict()
    other.load_state_dict(state)
    assert asdict(other) == asdict(guards) and state.keys() == {"grad_norm"}

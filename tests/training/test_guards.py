"""Guards, compared with values computed by hand."""

import math
import random
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from rookworld_rlvr.stability import guards as guards_module
from rookworld_rlvr.stability.guards import GuardConfig, Guards, LogStatistics, Trend

FACTOR = 10.0


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
    assert not observed(0.0).is_spike(1e30, 1e-9, FACTOR)
    assert observed(0.0, 0.0).is_spike(1e30, 1e-9, FACTOR)


def test_spike_exceeds_both_factor_and_deviations(set_limits: Callable[..., None]) -> None:
    steady = observed(0.0, 0.0)
    assert [steady.is_spike(value, 1e-9, FACTOR) for value in (9.9, 10.1)] == [False, True]
    # The logarithm has mean 1 and standard deviation 1, so six deviations above the mean are e⁷.
    wide = observed(0.0, 2.0)
    assert [wide.is_spike(math.exp(value), 1e-9, FACTOR) for value in (6.9, 7.1)] == [False, True]
    # The minimum deviation is 0.1, so 30 deviations are e³. Without it the factor of 10 alone would decide.
    set_limits(SPIKE_SIGMAS=30.0)
    assert [steady.is_spike(math.exp(value), 1e-9, FACTOR) for value in (2.9, 3.1)] == [False, True]


def test_values_below_floor_count_as_floor() -> None:
    statistics = LogStatistics()
    for _ in range(2):
        statistics.observe(0.0, floor=0.5)
    assert statistics.mean == pytest.approx(math.log(0.5))
    assert [statistics.is_spike(value, 0.5, FACTOR) for value in (0.0, 4.9, 5.1)] == [False, False, True]


def test_collapse_is_a_certain_fall_of_running_mean_below_its_best(set_limits: Callable[..., None]) -> None:
    set_limits(HISTORY=3, COLLAPSE_DROP=0.2)
    guards = Guards()
    collapsed = []
    for reward in [0.9] * 10 + [0.3] * 20:
        guards.observe_rewards({"policy": reward})
        collapsed.append(guards.collapsed())
    trend = guards.rewards["policy"]
    assert trend.best == pytest.approx(0.9)
    # After k low steps, with p = k / (10 + k), the mean is 0.6 p lower and uncertain by 1.2 sqrt(p (1 - p) / (10 + k)).
    assert collapsed.index("policy") == 10 + 11 and set(collapsed[:21]) == {None}


@pytest.mark.parametrize("seed", range(5))
def test_noisy_rewards_around_one_mean_never_collapse(seed: int, set_limits: Callable[..., None]) -> None:
    """The rewards vary as those of a task with two prompts per step: their running mean moves by more than the drop."""
    set_limits(HISTORY=10)
    rng, guards, means = random.Random(seed), Guards(), []
    for _ in range(400):
        guards.observe_rewards({"environment": rng.gauss(0.83, 0.2)})
        means.append(guards.rewards["environment"].mean)
        assert guards.collapsed() is None
    assert max(means[10:]) - min(means[10:]) > guards_module.COLLAPSE_DROP


def test_collapse_of_one_task_is_found_while_another_rises(set_limits: Callable[..., None]) -> None:
    set_limits(COLLAPSE_DROP=0.2)
    guards = Guards()
    for policy, environment in [(0.9, 0.1)] * 10 + [(0.3, 0.9)] * 20:
        guards.observe_rewards({"policy": policy, "environment": environment})
    assert guards.collapsed() == "policy"


def test_reward_score_weighs_tasks_equally_and_needs_history_of_each() -> None:
    guards = Guards()
    assert guards.reward_score() is None
    for _ in range(2):
        guards.observe_rewards({"policy": 0.5})
    guards.observe_rewards({"environment": 0.9})
    assert guards.reward_score() is None
    guards.observe_rewards({"environment": 0.9})
    assert guards.reward_score() == pytest.approx(0.7)


def test_trend_without_history_has_no_best() -> None:
    trend = Trend()
    trend.observe(1.0)
    assert trend.best == -math.inf
    trend.observe(0.0)
    # The mean is 0.5, with an uncertainty of two standard errors. The standard deviation of the two values is 0.5.
    assert trend.best == pytest.approx(0.5 - 2 * math.sqrt(0.25 / 2))


def test_guard_state_round_trips_without_configuration() -> None:
    guards, other = Guards(), Guards()
    guards.grad_norm.observe(2.0, 1.0)
    guards.kl.observe(0.5, 0.05)
    guards.observe_rewards({"policy": 0.25})
    state = guards.state_dict()
    other.load_state_dict(state)
    assert asdict(other) == asdict(guards) and state.keys() == {"grad_norm", "kl", "rewards"}


@pytest.mark.parametrize("changes", [{"spike_factor": 1.0}, {"kl_limit": -1.0}, {"kl_limit": math.nan}], ids=str)
def test_guard_limits_out_of_range_are_refused_by_name(changes: dict[str, Any]) -> None:
    [name] = changes
    with pytest.raises(ValueError, match=name):
        GuardConfig(**changes)

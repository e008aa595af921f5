"""Schedules of a run, compared with values computed by hand."""

import pytest

from rookworld_rlvr.objective import KLConfig
from rookworld_rlvr.training.optim import OptimConfig, learning_rate


def test_learning_rate_warms_up_linearly_then_follows_a_cosine() -> None:
    config = OptimConfig(lr=2.0, warmup_steps=4, min_lr_fraction=0.1)
    steps = (0, 1, 3, 4, 8, 12, 20, 25)
    # Half-way the cosine is (1 + 0.1) / 2 of its peak; a quarter of the way it is 1 - 0.9 × (1 - √½) / 2.
    expected = [0.5, 1.0, 2.0, 2.0, 2 * 0.868198, 2 * 0.55, 0.2, 0.2]
    assert [learning_rate(config, step, 20) for step in steps] == pytest.approx(expected, abs=1e-6)


def test_min_lr_fraction_of_1_keeps_learning_rate_at_its_peak() -> None:
    config = OptimConfig(lr=3.0, warmup_steps=0, min_lr_fraction=1.0)
    assert [learning_rate(config, step, 10) for step in (0, 5, 10)] == [3.0, 3.0, 3.0]


def test_learning_rate_is_defined_for_run_shorter_than_warm_up() -> None:
    assert learning_rate(OptimConfig(lr=1.0, warmup_steps=10), 1, 2) == pytest.approx(0.2)
    assert learning_rate(OptimConfig(lr=1.0, warmup_steps=2), 2, 2) == 1.0


def test_the_kl_coefficient_ramps_from_0_to_its_value() -> None:
    config = KLConfig(coef=0.2, warmup_steps=4)
    assert [config.coefficient(step) for step in (0, 1, 2, 4, 9)] == pytest.approx([0.0, 0.05, 0.1, 0.2, 0.2])
    assert KLConfig(coef=0.2).coefficient(0) == 0.2

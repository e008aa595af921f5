"""Groups that are used for advantages, and hand-computed advantages."""

import math

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.objective import (
    AdvantageConfig,
    AdvantageScale,
    group_advantages,
    used_groups,
)

SCALES = list(AdvantageScale)
PLAIN = AdvantageConfig(scale=AdvantageScale.none)
REWARDS_PG = torch.tensor([[0.0, 1.0, 0.5, -1.0], [0.2, 0.2, 0.2, 0.2], [1.0, 0.9, 0.8, 0.7]])
OUTCOMES_PG = torch.tensor([[False, True, False, False], [False, True, False, True], [True, True, True, True]])


def test_unused_groups_are_left_out_of_the_batch_std() -> None:
    rewards_PG = torch.tensor([[0.0, 1.0], [5.0, -5.0], [0.0, 1.0]])
    # The used rewards are 0, 1, 0, 1: mean 1/2, std 1/2.
    config = AdvantageConfig(scale=AdvantageScale.batch)
    advantages_PG = group_advantages(rewards_PG, config, used_P=torch.tensor([True, False, True]))
    torch.testing.assert_close(advantages_PG, torch.tensor([[-1.0, 1.0], [0.0, 0.0], [-1.0, 1.0]]))


@pytest.mark.parametrize("scale", SCALES)
def test_step_without_used_groups_has_zero_advantages(scale: AdvantageScale) -> None:
    advantages_PG = group_advantages(REWARDS_PG, AdvantageConfig(scale=scale), used_P=torch.tensor([False] * 3))
    assert advantages_PG.tolist() == [[0.0] * 4] * 3


@pytest.mark.parametrize("scale", SCALES)
def test_all_true_mask_equals_no_mask(scale: AdvantageScale) -> None:
    config = AdvantageConfig(scale=scale)
    all_PG = torch.ones_like(REWARDS_PG, dtype=torch.bool)
    masked = group_advantages(REWARDS_PG, config, used_P=all_PG[:, 0])
    assert torch.equal(masked, group_advantages(REWARDS_PG, config))


def test_without_filter_groups_with_unequal_rewards_are_used() -> None:
    assert used_groups(REWARDS_PG, OUTCOMES_PG, AdvantageConfig()).tolist() == [True, False, True]


def test_outcome_filter_drops_group_that_differs_only_by_shaping() -> None:
    config = AdvantageConfig(outcome_filter=True)
    assert used_groups(REWARDS_PG, OUTCOMES_PG, config).tolist() == [True, False, False]
    assert used_groups(REWARDS_PG, ~OUTCOMES_PG, config).tolist() == [True, False, False]


def test_only_groups_kept_by_the_outcome_filter_get_advantages() -> None:
    config = AdvantageConfig(scale=AdvantageScale.none, outcome_filter=True)
    used_P = used_groups(REWARDS_PG, OUTCOMES_PG, config)
    advantages_PG = group_advantages(REWARDS_PG, config, used_P=used_P)
    torch.testing.assert_close(advantages_PG[0], torch.tensor([-0.125, 0.875, 0.375, -1.125]))
    assert not advantages_PG[1:].any()


@pytest.mark.parametrize("flawed", [torch.ones(3, 4), torch.ones(3, 1, dtype=torch.bool)])
def test_non_boolean_or_broadcasting_group_mask_is_refused(flawed: Tensor) -> None:
    with pytest.raises(ValueError, match=r"outcomes: expected torch.bool of shape \(3, 4\), got"):
        used_groups(REWARDS_PG, flawed, PLAIN)
    with pytest.raises(ValueError, match=r"used: expected torch.bool of shape \(3,\), got"):
        group_advantages(REWARDS_PG, PLAIN, used_P=flawed)


def test_used_groups_refuses_non_finite_rewards() -> None:
    with pytest.raises(ValueError, match=r"expected finite values, got nan at \[0, 2\]"):
        used_groups(torch.tensor([[0.0, 1.0, math.nan]]), torch.tensor([[True, True, False]]), PLAIN)

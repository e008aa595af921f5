"""Which completions and groups take part in an advantage, by hand."""

import math

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.objective import (
    AdvantageConfig,
    AdvantageScale,
    group_advantages,
    used_groups,
    zero_variance_fraction,
)

SCALES = list(AdvantageScale)
PLAIN = AdvantageConfig(scale=AdvantageScale.none)
REWARDS_PG = torch.tensor([[0.0, 1.0, 0.5, -1.0], [0.2, 0.2, 0.2, 0.2], [1.0, 0.9, 0.8, 0.7]])
OUTCOMES_PG = torch.tensor([[False, True, False, False], [False, True, False, True], [True, True, True, True]])


def flags(*rows: str) -> Tensor:
    return torch.tensor([[letter == "1" for letter in row] for row in rows])


def test_a_rejected_completion_moves_no_mean_and_gets_no_advantage() -> None:
    advantages_PG = group_advantages(REWARDS_PG[:1], PLAIN, valid_PG=flags("1110"))
    torch.testing.assert_close(advantages_PG, torch.tensor([[-0.5, 0.5, 0.0, 0.0]]))


@pytest.mark.parametrize("scale", SCALES)
def test_whatever_a_rejected_completion_was_worth_the_others_keep_their_advantage(scale: AdvantageScale) -> None:
    config, valid_PG = AdvantageConfig(scale=scale), flags("1110", "1111", "0111")
    other_PG = torch.where(valid_PG, REWARDS_PG, 1000.0)
    first = group_advantages(REWARDS_PG, config, valid_PG=valid_PG)
    assert torch.equal(first, group_advantages(other_PG, config, valid_PG=valid_PG))
    assert first[~valid_PG].tolist() == [0.0, 0.0]


def test_a_group_without_its_rejected_completions_is_a_smaller_group() -> None:
    config = AdvantageConfig(scale=AdvantageScale.group)
    small = group_advantages(REWARDS_PG[:1, :3], config)
    torch.testing.assert_close(group_advantages(REWARDS_PG[:1], config, valid_PG=flags("1110"))[:, :3], small)
    # Mean 0.5, population std of (0, 1, 0.5) = sqrt(1/6).
    assert small[0, 1].item() == pytest.approx(0.5 * math.sqrt(6), rel=1e-6)


def test_rejected_completions_and_unused_groups_are_left_out_of_the_batch_std() -> None:
    rewards_PG = torch.tensor([[0.0, 1.0, 9.0], [5.0, -5.0, 0.0], [0.0, 1.0, 0.0]])
    # What is left is 0, 1, 0, 1, 0: mean 2/5, std sqrt(6/25).
    advantages_PG = group_advantages(
        rewards_PG,
        AdvantageConfig(scale=AdvantageScale.batch),
        valid_PG=flags("110", "111", "111"),
        used_P=torch.tensor([True, False, True]),
    )
    std = math.sqrt(6) / 5
    expected = torch.tensor([[-0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [-1 / 3, 2 / 3, -1 / 3]]) / std
    torch.testing.assert_close(advantages_PG, expected)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("row", ["0000", "1000", "0001"])
def test_fewer_than_two_valid_completions_have_no_advantage(scale: AdvantageScale, row: str) -> None:
    advantages_PG = group_advantages(REWARDS_PG[:1], AdvantageConfig(scale=scale, std_floor=1e-9), valid_PG=flags(row))
    assert advantages_PG.tolist() == [[0.0] * 4]


@pytest.mark.parametrize("scale", SCALES)
def test_valid_rewards_that_are_equal_give_exactly_zero(scale: AdvantageScale) -> None:
    rewards_PG = torch.tensor([[0.1] * 7 + [0.9]])
    config = AdvantageConfig(scale=scale, std_floor=1e-9)
    assert group_advantages(rewards_PG, config, valid_PG=flags("11111110")).tolist() == [[0.0] * 8]


@pytest.mark.parametrize("scale", SCALES)
def test_a_step_in_which_no_group_is_used_has_no_advantage_and_no_nan(scale: AdvantageScale) -> None:
    advantages_PG = group_advantages(REWARDS_PG, AdvantageConfig(scale=scale), used_P=torch.tensor([False] * 3))
    assert advantages_PG.tolist() == [[0.0] * 4] * 3


@pytest.mark.parametrize("scale", SCALES)
def test_masks_of_all_true_are_no_masks(scale: AdvantageScale) -> None:
    config = AdvantageConfig(scale=scale)
    all_PG = torch.ones_like(REWARDS_PG, dtype=torch.bool)
    masked = group_advantages(REWARDS_PG, config, valid_PG=all_PG, used_P=all_PG[:, 0])
    assert torch.equal(masked, group_advantages(REWARDS_PG, config))


def test_without_a_filter_every_group_whose_rewards_differ_is_used() -> None:
    assert used_groups(REWARDS_PG, OUTCOMES_PG, AdvantageConfig()).tolist() == [True, False, True]


def test_the_outcome_filter_drops_a_group_that_differs_by_shaping_alone() -> None:
    config = AdvantageConfig(outcome_filter=True)
    assert used_groups(REWARDS_PG, OUTCOMES_PG, config).tolist() == [True, False, False]
    assert used_groups(REWARDS_PG, ~OUTCOMES_PG, config).tolist() == [True, False, False]


def test_the_filter_looks_at_valid_completions_alone() -> None:
    valid_PG = flags("1011", "1111", "1111")
    outcome = AdvantageConfig(outcome_filter=True)
    assert used_groups(REWARDS_PG, OUTCOMES_PG, AdvantageConfig(), valid_PG=valid_PG)[0].item() is True
    assert used_groups(REWARDS_PG, OUTCOMES_PG, outcome, valid_PG=valid_PG)[0].item() is False
    lone = flags("1000", "0000", "1111")
    assert used_groups(REWARDS_PG, OUTCOMES_PG, AdvantageConfig(), valid_PG=lone).tolist() == [False, False, True]


def test_filter_and_advantages_together_leave_the_group_with_an_outcome() -> None:
    config = AdvantageConfig(scale=AdvantageScale.none, outcome_filter=True)
    used_P = used_groups(REWARDS_PG, OUTCOMES_PG, config)
    advantages_PG = group_advantages(REWARDS_PG, config, used_P=used_P)
    torch.testing.assert_close(advantages_PG[0], torch.tensor([-0.125, 0.875, 0.375, -1.125]))
    assert not advantages_PG[1:].any()


def test_zero_variance_is_that_of_valid_rewards() -> None:
    rewards_PG = torch.tensor([[0.1, 0.1, 0.9], [0.1, 0.2, 0.3], [0.5, 0.6, 0.7], [0.4, 0.4, 0.4]])
    assert zero_variance_fraction(rewards_PG) == 0.25
    assert zero_variance_fraction(rewards_PG, flags("110", "111", "100", "111")) == 0.75
    assert zero_variance_fraction(rewards_PG[:1], flags("000")) == 1.0


@pytest.mark.parametrize("flawed", [torch.ones(3, 4), torch.ones(3, 1, dtype=torch.bool)])
def test_masks_that_are_not_boolean_or_would_broadcast_are_refused(flawed: Tensor) -> None:
    with pytest.raises(ValueError, match=r"valid: expected torch.bool of shape \(3, 4\), got"):
        group_advantages(REWARDS_PG, PLAIN, valid_PG=flawed)
    with pytest.raises(ValueError, match=r"outcomes: expected torch.bool of shape \(3, 4\), got"):
        used_groups(REWARDS_PG, flawed, PLAIN)
    with pytest.raises(ValueError, match=r"used: expected torch.bool of shape \(3,\), got"):
        group_advantages(REWARDS_PG, PLAIN, used_P=flawed)


def test_a_reward_that_is_not_finite_is_our_bug_even_where_it_is_not_valid() -> None:
    rewards_PG = torch.tensor([[0.0, 1.0, math.nan]])
    with pytest.raises(ValueError, match=r"expected finite values, got nan at \[0, 2\]"):
        group_advantages(rewards_PG, PLAIN, valid_PG=flags("110"))
    with pytest.raises(ValueError, match="finite"):
        used_groups(rewards_PG, flags("110"), PLAIN)

import math

import pytest
import torch

from rookworld_rlvr.objective import AdvantageConfig, AdvantageScale, group_advantages, zero_variance_groups
from rookworld_rlvr.objective.advantages import ADVANTAGE_CLIP

SHAPING_ONLY = [0.20] * 7 + [0.21]
HALF_RIGHT = [0.0, 1.0] * 4
NO_FLOOR = 1e-9


@pytest.mark.parametrize("scale", list(AdvantageScale))
@pytest.mark.parametrize("reward", [0.1, 0.2, 0.3, 0.7, -1.0])
@pytest.mark.parametrize("group", [1, 2, 7, 16])
def test_equal_rewards_give_exactly_zero(scale: AdvantageScale, reward: float, group: int) -> None:
    rewards_PG = torch.tensor([[reward] * group, [0.0] * group])
    config = AdvantageConfig(scale=scale, std_floor=NO_FLOOR)
    assert group_advantages(rewards_PG, config)[0].tolist() == [0.0] * group


def test_a_group_of_one_has_no_advantage() -> None:
    rewards_PG = torch.tensor([[0.3], [-1.0], [1.0]])
    assert group_advantages(rewards_PG, AdvantageConfig()).tolist() == [[0.0], [0.0], [0.0]]


def test_scale_none_returns_centred_rewards() -> None:
    rewards_PG = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.4]])
    advantages_PG = group_advantages(rewards_PG, AdvantageConfig(scale=AdvantageScale.none))
    expected = torch.tensor([[-0.5, -0.5, 0.5, 0.5], [-0.1, -0.1, -0.1, 0.3]])
    torch.testing.assert_close(advantages_PG, expected)


def test_scale_group_divides_by_population_std_of_each_group() -> None:
    rewards_PG = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.4]])
    advantages_PG = group_advantages(rewards_PG, AdvantageConfig(scale=AdvantageScale.group))
    root3 = math.sqrt(3.0)
    expected = torch.tensor([[-1.0, -1.0, 1.0, 1.0], [-1 / root3, -1 / root3, -1 / root3, root3]])
    torch.testing.assert_close(advantages_PG, expected)


def test_scale_batch_divides_by_std_over_all_rewards() -> None:
    # Mean 0.5, squared distances 0.25 each: std 0.5 over all eight, though each group's own is smaller.
    rewards_PG = torch.tensor([[0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0]])
    advantages_PG = group_advantages(rewards_PG, AdvantageConfig(scale=AdvantageScale.batch))
    expected = torch.tensor([[-0.5, -0.5, -0.5, 1.5], [0.5, 0.5, 0.5, -1.5]])
    torch.testing.assert_close(advantages_PG, expected)


def test_zero_variance_groups_are_left_out_of_the_batch_std() -> None:
    # The rewards of the other groups are 0, 1, 0, 1: mean 1/2, std 1/2.
    advantages_PG = group_advantages(torch.tensor([[0.0, 1.0], [5.0, 5.0], [0.0, 1.0]]), AdvantageConfig())
    torch.testing.assert_close(advantages_PG, torch.tensor([[-1.0, 1.0], [0.0, 0.0], [-1.0, 1.0]]))


def test_without_std_floor_shaping_noise_outranks_outcomes() -> None:
    rewards_PG = torch.tensor([SHAPING_ONLY, HALF_RIGHT])
    config = AdvantageConfig(scale=AdvantageScale.group, std_floor=NO_FLOOR)
    advantages_PG = group_advantages(rewards_PG, config)
    # One of eight rewards is larger by d. For any d its advantage is 7/8 d and the std is sqrt(7)/8 d.
    assert advantages_PG[0, 7].item() == pytest.approx(math.sqrt(7), rel=1e-4)
    assert advantages_PG[1].abs().max().item() == pytest.approx(1.0)


def test_std_floor_damps_shaping_noise_but_not_outcomes() -> None:
    rewards_PG = torch.tensor([SHAPING_ONLY, HALF_RIGHT])
    advantages_PG = group_advantages(rewards_PG, AdvantageConfig(scale=AdvantageScale.group))
    assert advantages_PG[0, 7].item() == pytest.approx(0.00875 / 0.05, rel=1e-4)
    assert advantages_PG[1].tolist() == [-1.0, 1.0] * 4


def test_batch_std_damps_shaping_noise_without_floor() -> None:
    # 16 rewards with sum 5.61 and sum of squares 4.3241: std sqrt(0.27025625 - 0.350625²) = 0.383821.
    config = AdvantageConfig(scale=AdvantageScale.batch, std_floor=NO_FLOOR)
    advantages_PG = group_advantages(torch.tensor([SHAPING_ONLY, HALF_RIGHT]), config)
    assert advantages_PG[0, 7].item() == pytest.approx(0.00875 / 0.383821, rel=1e-4)
    assert advantages_PG[1, 1].item() == pytest.approx(0.5 / 0.383821, rel=1e-5)


def test_divisor_is_maximum_of_std_and_floor_not_their_sum() -> None:
    rewards_PG = torch.tensor([[0.0, 1.0]])
    assert group_advantages(rewards_PG, AdvantageConfig(std_floor=0.5)).tolist() == [[-1.0, 1.0]]
    assert group_advantages(rewards_PG, AdvantageConfig(std_floor=1.0)).tolist() == [[-0.5, 0.5]]


def test_advantage_clip_bounds_lone_success_and_lone_failure() -> None:
    rewards_PG = torch.tensor([[0.0] * 99 + [1.0], [1.0] * 99 + [0.0]])
    group = AdvantageScale.group
    free_PG = group_advantages(rewards_PG, AdvantageConfig(scale=group), clip=math.inf)
    bound_PG = group_advantages(rewards_PG, AdvantageConfig(scale=group))
    assert free_PG[:, 99].tolist() == pytest.approx([math.sqrt(99), -math.sqrt(99)], rel=1e-5)
    assert bound_PG[:, 99].tolist() == [5.0, -5.0]
    assert torch.equal(bound_PG[:, :99], free_PG[:, :99])


def test_default_clip_equals_advantage_of_one_success_in_26() -> None:
    config = AdvantageConfig(scale=AdvantageScale.group)
    advantages_PG = group_advantages(torch.tensor([[0.0] * 25 + [1.0]]), config, clip=math.inf)
    assert advantages_PG[0, 25].item() == pytest.approx(ADVANTAGE_CLIP, rel=1e-5)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_non_finite_reward_raises_value_error(reward: float) -> None:
    rewards_PG = torch.tensor([[0.0, 1.0], [0.0, reward]])
    with pytest.raises(ValueError, match=r"expected finite values, got -?(nan|inf) at \[1, 1\]"):
        group_advantages(rewards_PG, AdvantageConfig())
    with pytest.raises(ValueError, match="finite"):
        zero_variance_groups(rewards_PG)


@pytest.mark.parametrize("shape", [(4,), (0, 4), (4, 0), (1, 2, 2)])
def test_rewards_of_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected a non-empty \(P, G\)"):
        group_advantages(torch.zeros(shape), AdvantageConfig())


def test_zero_variance_groups_have_only_equal_rewards() -> None:
    rewards_PG = torch.tensor([[0.1] * 7, [0.1] * 6 + [0.2], [-1.0] * 7, [0.0] * 6 + [1.0]])
    assert zero_variance_groups(rewards_PG).tolist() == [True, False, True, False]
    assert zero_variance_groups(torch.tensor([[0.3], [0.4]])).tolist() == [True, True]


@pytest.mark.parametrize("floor", [0.0, -0.1, math.nan, math.inf])
def test_std_floor_must_be_positive_and_finite(floor: float) -> None:
    with pytest.raises(ValueError, match="std_floor"):
        AdvantageConfig(std_floor=floor)

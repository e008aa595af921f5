"""TRL's advantages compared with ours, which differ in the std, the epsilon, the floor and zero-variance groups."""

import math
from typing import Any

import pytest
import torch

from rookworld_rlvr.objective import AdvantageConfig, AdvantageScale, group_advantages

pytest.importorskip("trl", reason="needs trl: scripts/setup.sh peers makes an environment that has it")

PROMPTS, GROUP = 3, 4
# TRL adds this to a std before it divides by it.
EPSILON = 1e-4


# The scales that TRL has too.
@pytest.mark.parametrize("scale", [AdvantageScale.group, AdvantageScale.batch, AdvantageScale.none])
def test_advantages_equal_trl_except_sample_std_and_epsilon(
    sample: Any, make_theirs: Any, scale: AdvantageScale
) -> None:
    """TRL divides by √(Σ(r - r̄)² / (n - 1)) + 1e-4, and we divide by √(Σ(r - r̄)² / n) with a floor. Without scaling
    both are equal."""
    rollouts = sample()
    theirs_PG = make_theirs(rollouts, scale_rewards=scale.value).inputs()["advantages"].reshape(PROMPTS, GROUP)
    rewards_PG = torch.tensor(rollouts.rewards).reshape(PROMPTS, GROUP)
    ours_PG = group_advantages(rewards_PG, AdvantageConfig(scale, std_floor=1e-6), clip=math.inf)
    std, n = {
        AdvantageScale.group: (rewards_PG.std(-1, correction=0, keepdim=True), GROUP),
        AdvantageScale.batch: (rewards_PG.std(correction=0), PROMPTS * GROUP),
        AdvantageScale.none: (torch.tensor(1.0), None),
    }[scale]
    factor = 1.0 if n is None else std / (std * math.sqrt(n / (n - 1)) + EPSILON)
    torch.testing.assert_close(theirs_PG, ours_PG * factor, rtol=0, atol=1e-5)


def test_std_floor_damps_shaping_noise_that_trl_amplifies(sample: Any, make_theirs: Any) -> None:
    """For rewards 0.20, 0.20, 0.20, 0.21 TRL's largest advantage is 0.0075 / (0.005 + 0.0001) = 1.47. This is nearly
    as large as that of one right completion in four (1.50). Ours is 0.0075 / 0.05 = 0.15."""
    rewards_PG = torch.tensor([[0.20, 0.20, 0.20, 0.21], [0.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5]])
    rollouts = sample(rewards=rewards_PG.flatten().tolist())
    theirs_PG = make_theirs(rollouts, scale_rewards="group").inputs()["advantages"].reshape(PROMPTS, GROUP)
    ours_PG = group_advantages(rewards_PG, AdvantageConfig(AdvantageScale.group))
    assert theirs_PG[:, 3].tolist() == pytest.approx([1.47, 1.50, 0.0], abs=0.01)
    assert ours_PG[:, 3].tolist() == pytest.approx([0.15, 1.73, 0.0], abs=0.01)

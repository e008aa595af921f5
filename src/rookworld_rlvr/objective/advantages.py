"""Advantages of completions relative to the others of their prompt, and the groups that have none."""

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor


class AdvantageScale(StrEnum):
    """Divisor of a centred reward."""

    batch = "batch"
    """Population std of the rewards of all groups of the step whose rewards differ (arXiv 2508.08221)."""
    group = "group"
    """Population std of the group's own rewards (arXiv 2402.03300). A group whose rewards differ only by shaping then
    weighs as much as one whose outcomes differ."""
    none = "none"
    """No division: advantages stay in reward units, without a bias by difficulty (arXiv 2503.20783)."""


ADVANTAGE_CLIP = 5.0
"""Bound on an advantage's absolute value, in reward stds, or in reward units with `none`. With `group` a lone success
reaches it in a group of 26. In a smaller group an advantage gets this large only with `batch` and a small std."""


@dataclass(slots=True)
class AdvantageConfig:
    """Settings of the advantages. Raises ValueError if the floor is not above 0."""

    scale: AdvantageScale = AdvantageScale.batch
    """Divisor of a centred reward."""
    std_floor: float = 0.05
    """Smallest divisor, in reward units; not used by `none`. One completion of eight that is 0.15 above the others
    gives a std of 0.05. Smaller differences are shaping, not outcome, and must not be scaled up to full size."""

    def __post_init__(self) -> None:
        if not (0 < self.std_floor < math.inf):
            raise ValueError(f"std_floor: expected above 0, got {self.std_floor}")


def group_advantages(rewards_PG: Tensor, config: AdvantageConfig, *, clip: float = ADVANTAGE_CLIP) -> Tensor:
    """Return the advantages (P, G), float32, of rewards (P, G): clip((reward - group mean) / scale).

    A zero-variance group gets exactly 0 and is left out of the batch's std. The std is the population std and is
    floored by max(std, std_floor). An epsilon added to it would change every advantage and bound none. Rows sum to 0 if
    nothing is clipped.

    Raises ValueError for a shape that is not (P, G), or for a reward that is not finite. A reward function never
    returns such a reward, so it is a bug. Source: arXiv 2402.03300, 2508.08221, 2503.20783.
    """
    # In floating point the mean of seven rewards of 0.1 is not 0.1. A small scale would enlarge that difference.
    rewards_PG = rewards_PG.float()
    varied_PG = ~zero_variance_groups(rewards_PG).unsqueeze(-1).expand_as(rewards_PG)
    centred_PG = rewards_PG - rewards_PG.sum(-1, keepdim=True) / rewards_PG.shape[-1]
    scale = _scale(rewards_PG, varied_PG, config)
    return (centred_PG.masked_fill(~varied_PG, 0.0) / scale).clamp(-clip, clip)


def zero_variance_groups(rewards_PG: Tensor) -> Tensor:
    """Return the groups whose rewards (P, G) are all equal, bool (P,).

    Raises ValueError as `group_advantages` does.
    """
    _check(rewards_PG)
    return rewards_PG.amax(-1) == rewards_PG.amin(-1)


def _scale(rewards_PG: Tensor, varied_PG: Tensor, config: AdvantageConfig) -> Tensor:
    """Return the divisor of the advantages, broadcastable to (P, G)."""
    match config.scale:
        case AdvantageScale.batch:
            return _std(rewards_PG, varied_PG, (0, 1)).clamp(min=config.std_floor)
        case AdvantageScale.group:
            return _std(rewards_PG, varied_PG, -1).clamp(min=config.std_floor)
        case AdvantageScale.none:
            return rewards_PG.new_ones(())


def _mean(values: Tensor, kept: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    total = values.masked_fill(~kept, 0.0).sum(dim, keepdim=True)
    return total / kept.sum(dim, keepdim=True).clamp(min=1)


def _std(values: Tensor, kept: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Return the population std of the kept values; 0 if none is kept."""
    return _mean((values - _mean(values, kept, dim)).square(), kept, dim).sqrt()


def _check(rewards_PG: Tensor) -> None:
    """Raise ValueError for rewards that are not finite or not (P, G)."""
    if rewards_PG.dim() != 2 or rewards_PG.numel() == 0:
        raise ValueError(f"rewards: expected a non-empty (P, G), got {tuple(rewards_PG.shape)}")
    if not torch.isfinite(rewards_PG).all():
        where = (~torch.isfinite(rewards_PG)).nonzero()[0].tolist()
        raise ValueError(f"rewards: expected finite values, got {rewards_PG[*where].item()} at {where}")

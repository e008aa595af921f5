"""How much better a completion was than the others of its prompt."""

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor


class AdvantageScale(StrEnum):
    """What a centred reward is divided by."""

    batch = "batch"
    """Population std of all rewards of the step (arXiv 2508.08221)."""
    group = "group"
    """Population std of the prompt's own rewards (arXiv 2402.03300): a group that differs by shaping alone
    weighs as much as one that differs by outcome."""
    none = "none"
    """Nothing: advantages stay in reward units, without a bias by difficulty (arXiv 2503.20783)."""


@dataclass(slots=True)
class AdvantageConfig:
    """How rewards become advantages. Raises ValueError on a floor or clip that is not above 0."""

    scale: AdvantageScale = AdvantageScale.batch
    """What a centred reward is divided by."""
    std_floor: float = 0.05
    """Least divisor, reward units. One completion of eight that is 0.15 ahead has a std of 0.05: what
    differs by less is shaping, not outcome, and must not be blown up to full size. Unused by `none`."""
    clip: float = 5.0
    """Bound on an advantage's absolute value: reward stds, or reward units under `none`. A lone success
    reaches it in a group of 26 under `group`."""

    def __post_init__(self) -> None:
        if not (0 < self.std_floor < math.inf):
            raise ValueError(f"std_floor: expected above 0, got {self.std_floor}")
        if not self.clip > 0:
            raise ValueError(f"clip: expected above 0, got {self.clip}")


def group_advantages(rewards_PG: Tensor, config: AdvantageConfig) -> Tensor:
    """Advantages (P, G), float32, of rewards (P, G): clip((reward - group mean) / scale).

    The std is the population's and is floored by max(std, std_floor): an epsilon added to it would shift
    every advantage and bound none. Equal rewards give exactly 0, and so does a group of one. Rows sum to
    0 where nothing is clipped.

    Raises ValueError on a shape that is not (P, G), or a reward that is not finite: a reward function
    never returns one, so it is our bug. Source: arXiv 2402.03300, 2508.08221, 2503.20783.
    """
    _check(rewards_PG)
    rewards_PG = rewards_PG.float()
    centred_PG = rewards_PG - rewards_PG.mean(-1, keepdim=True)
    # A mean of seven times 0.1 is not 0.1 in floating point; a small scale would make that residue count.
    centred_PG = centred_PG.masked_fill(_all_equal_P(rewards_PG).unsqueeze(-1), 0.0)
    return (centred_PG / _scale(rewards_PG, config)).clamp(-config.clip, config.clip)


def zero_variance_fraction(rewards_PG: Tensor) -> float:
    """Share of groups, 0 to 1, whose rewards (P, G) are all equal and so teach nothing.

    Groups of one always count. Raises ValueError as `group_advantages` does.
    """
    _check(rewards_PG)
    return _all_equal_P(rewards_PG).float().mean().item()


def _scale(rewards_PG: Tensor, config: AdvantageConfig) -> Tensor:
    if config.scale is AdvantageScale.none:
        return rewards_PG.new_ones(())
    if config.scale is AdvantageScale.group:
        std = rewards_PG.std(-1, correction=0, keepdim=True)
    else:
        std = rewards_PG.std(correction=0)
    return std.clamp(min=config.std_floor)


def _all_equal_P(rewards_PG: Tensor) -> Tensor:
    return rewards_PG.amax(-1) == rewards_PG.amin(-1)


def _check(rewards_PG: Tensor) -> None:
    if rewards_PG.dim() != 2 or rewards_PG.numel() == 0:
        raise ValueError(f"rewards: expected a non-empty (P, G), got {tuple(rewards_PG.shape)}")
    if not torch.isfinite(rewards_PG).all():
        where = (~torch.isfinite(rewards_PG)).nonzero()[0].tolist()
        raise ValueError(f"rewards: expected finite values, got {rewards_PG[*where].item()} at {where}")

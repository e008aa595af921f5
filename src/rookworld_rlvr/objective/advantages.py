"""Advantages of completions relative to the others of their prompt, and the selection of the groups that are used."""

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor


class AdvantageScale(StrEnum):
    """Divisor of a centred reward."""

    batch = "batch"
    """Population std of the rewards of all used groups of the step (arXiv 2508.08221)."""
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
    outcome_filter: bool = False
    """Use only groups in which some completions have the verifiable outcome and others do not. Shaping then only
    refines the ranking of right and wrong completions and is never the only signal (verl-recipe, pull request 125)."""

    def __post_init__(self) -> None:
        if not (0 < self.std_floor < math.inf):
            raise ValueError(f"std_floor: expected above 0, got {self.std_floor}")


def group_advantages(
    rewards_PG: Tensor,
    config: AdvantageConfig,
    *,
    used_P: Tensor | None = None,
    clip: float = ADVANTAGE_CLIP,
) -> Tensor:
    """Return the advantages (P, G), float32, of rewards (P, G): clip((reward - group mean) / scale).

    used_P (bool) selects the groups that take part, see `used_groups`. The others get 0 and are left out of the batch's
    std. None selects all groups.

    The std is the population std and is floored by max(std, std_floor). An epsilon added to it would change every
    advantage and bound none. Equal rewards give exactly 0. Rows sum to 0 if nothing is clipped.

    Raises ValueError for a shape that is not (P, G), a mask that does not fit, or a reward that is not finite. A reward
    function never returns such a reward, so it is a bug. Source: arXiv 2402.03300, 2508.08221, 2503.20783.
    """
    _check(rewards_PG)
    used_PG = _used(rewards_PG, used_P).unsqueeze(-1).expand_as(rewards_PG)
    rewards_PG = rewards_PG.float()
    centred_PG = rewards_PG - rewards_PG.sum(-1, keepdim=True) / rewards_PG.shape[-1]
    # In floating point the mean of seven rewards of 0.1 is not 0.1. A small scale would enlarge that difference.
    silent_PG = ~used_PG | _all_equal_P(rewards_PG).unsqueeze(-1)
    scale = _scale(rewards_PG, used_PG, config)
    return (centred_PG.masked_fill(silent_PG, 0.0) / scale).clamp(-clip, clip)


def used_groups(rewards_PG: Tensor, outcomes_PG: Tensor, config: AdvantageConfig) -> Tensor:
    """Return the groups that are used, bool (P,): their rewards differ, and they pass the outcome filter.

    outcomes_PG (bool) is the verifiable outcome of each completion; the filter drops the groups in which all share it.
    Raises ValueError as `group_advantages` does, also on outcomes that are not boolean (P, G).
    """
    _check(rewards_PG)
    _check_bool("outcomes", outcomes_PG, rewards_PG.shape)
    differ_P = ~_all_equal_P(rewards_PG)
    if not config.outcome_filter:
        return differ_P
    return differ_P & outcomes_PG.any(-1) & ~outcomes_PG.all(-1)


def zero_variance_fraction(rewards_PG: Tensor) -> float:
    """Return the share of groups, 0 to 1, whose rewards (P, G) are all equal, so that their advantages are 0.

    Raises ValueError as `group_advantages` does.
    """
    _check(rewards_PG)
    return _all_equal_P(rewards_PG).float().mean().item()


def _scale(rewards_PG: Tensor, used_PG: Tensor, config: AdvantageConfig) -> Tensor:
    """Return the divisor of the advantages, broadcastable to (P, G)."""
    match config.scale:
        case AdvantageScale.batch:
            return _std(rewards_PG, used_PG, (0, 1)).clamp(min=config.std_floor)
        case AdvantageScale.group:
            return _std(rewards_PG, used_PG, -1).clamp(min=config.std_floor)
        case AdvantageScale.none:
            return rewards_PG.new_ones(())


def _mean(values: Tensor, kept: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    total = values.masked_fill(~kept, 0.0).sum(dim, keepdim=True)
    return total / kept.sum(dim, keepdim=True).clamp(min=1)


def _std(values: Tensor, kept: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Return the population std of the kept values; 0 if none is kept."""
    return _mean((values - _mean(values, kept, dim)).square(), kept, dim).sqrt()


def _all_equal_P(rewards_PG: Tensor) -> Tensor:
    return rewards_PG.amax(-1) == rewards_PG.amin(-1)


def _check(rewards_PG: Tensor) -> None:
    """Raise ValueError for rewards that are not finite or not (P, G)."""
    if rewards_PG.dim() != 2 or rewards_PG.numel() == 0:
        raise ValueError(f"rewards: expected a non-empty (P, G), got {tuple(rewards_PG.shape)}")
    if not torch.isfinite(rewards_PG).all():
        where = (~torch.isfinite(rewards_PG)).nonzero()[0].tolist()
        raise ValueError(f"rewards: expected finite values, got {rewards_PG[*where].item()} at {where}")


def _used(rewards_PG: Tensor, used_P: Tensor | None) -> Tensor:
    if used_P is None:
        return torch.ones_like(rewards_PG[:, 0], dtype=torch.bool)
    _check_bool("used", used_P, rewards_PG.shape[:1])
    return used_P


def _check_bool(name: str, flags: Tensor, shape: torch.Size) -> None:
    if flags.dtype != torch.bool or flags.shape != shape:
        raise ValueError(
            f"{name}: expected torch.bool of shape {tuple(shape)}, got {flags.dtype} of {tuple(flags.shape)}"
        )

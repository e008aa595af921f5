"""Coefficient of the penalty on KL(policy‖reference), step by step.

The coefficient in force is `ramp(step) × base`. The ramp is the warm-up, and the adaptive controller moves the base.
The base is constant during the ramp, because KL under a reduced penalty says nothing about the full penalty. Only the
base is saved, so a save inside the warm-up loses nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ..objective import KLForm


class KLControl(StrEnum):
    """Rule that moves the base coefficient after each step."""

    off = "off"
    """There is no penalty. KL is still measured, unless `measured` is off."""
    fixed = "fixed"
    """The base stays as it is."""
    adaptive = "adaptive"
    """The base rises if KL is above a band around the target and falls below it (arXiv 1707.06347, section 4)."""


# The band and factors of the adaptive penalty (arXiv 1707.06347, section 4): a step with KL above RAISE_ABOVE × target
# multiplies the base by RAISE_FACTOR, one below LOWER_BELOW × target by LOWER_FACTOR. The two roughly cancel out.
RAISE_ABOVE, RAISE_FACTOR = 1.5, 1.5
LOWER_BELOW, LOWER_FACTOR = 0.5, 0.75
# Maximum of the base: above it the penalty outweighs any reward, which is at most 1.
MAX_COEF = 1.0


@dataclass(slots=True)
class KLConfig:
    """The KL term of the loss."""

    form: KLForm = KLForm.k2_straight_through
    """Term that is optimised."""
    control: KLControl = KLControl.fixed
    coef: float = 0.05
    """Base coefficient at the start. 0 turns the penalty off; `measured` says whether KL is measured then."""
    measured: bool = True
    """Measure KL even if its coefficient is 0. If this is off and the coefficient is 0, neither the reference nor
    groups of zero advantage are computed, and guards and controllers see no KL."""
    warmup_steps: int = 0
    """Number of steps over which the coefficient rises linearly from 0 to the base."""
    target: float = 0.1
    """adaptive: target KL in nats per token. Above 1.5 times the target the base rises by half, below half the target
    it falls by a quarter."""
    min_coef: float = 1e-4
    """adaptive: minimum of the base; the maximum is 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.coef < math.inf:
            raise ValueError(f"kl.coef: expected a finite number from 0 up, got {self.coef}")
        if self.warmup_steps < 0:
            raise ValueError(f"kl.warmup_steps: expected 0 or more, got {self.warmup_steps}")
        if not 0 < self.target < math.inf:
            raise ValueError(f"kl.target: expected above 0, got {self.target}")
        if not 0 < self.min_coef <= MAX_COEF:
            raise ValueError(f"kl.min_coef: expected above 0 and at most {MAX_COEF:g}, got {self.min_coef}")


def adapted(base: float, kl: float, config: KLConfig) -> float:
    """Return the base after a step with this KL, nats per token.

    >>> adapted(0.1, 0.3, KLConfig(target=0.1)), adapted(0.1, 0.1, KLConfig(target=0.1))
    (0.15000000000000002, 0.1)
    """
    if kl > RAISE_ABOVE * config.target:
        base *= RAISE_FACTOR
    elif kl < LOWER_BELOW * config.target:
        base *= LOWER_FACTOR
    return min(max(base, config.min_coef), MAX_COEF)


class KLController:
    """Coefficient of the KL penalty over a run."""

    def __init__(self, config: KLConfig) -> None:
        self._config = config
        self.base = 0.0 if config.control is KLControl.off else config.coef

    def coefficient(self, step: int) -> float:
        """Return the coefficient in force at `step` of the schedule, counted from 0."""
        warmup = self._config.warmup_steps
        return step / warmup * self.base if step < warmup else self.base

    def observe(self, step: int, kl: float) -> None:
        """Adapt the base to the KL of a good step, nats per token. The base does not change during the warm-up."""
        if self._config.control is KLControl.adaptive and step >= self._config.warmup_steps:
            self.base = adapted(self.base, kl, self._config)

    def state_dict(self) -> dict[str, float]:
        return {"base": self.base} if self._config.control is KLControl.adaptive else {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Load the base of an adaptive run. If this run or the saved one is not adaptive, keep the configured value."""
        if self._config.control is KLControl.adaptive:
            self.base = state.get("base", self.base)

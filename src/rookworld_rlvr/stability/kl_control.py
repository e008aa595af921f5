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
    """There is no penalty; KL is still measured."""
    fixed = "fixed"
    """The base stays as it is."""
    adaptive = "adaptive"
    """Multiplied up above a band around the target, down below it (arXiv 1707.06347, section 4)."""


# The band and factors of the adaptive penalty (arXiv 1707.06347, section 4): a step with KL above RAISE_ABOVE × target
# multiplies the base by RAISE_FACTOR, one below LOWER_BELOW × target by LOWER_FACTOR. Each undoes about the other.
RAISE_ABOVE, RAISE_FACTOR = 1.5, 1.5
LOWER_BELOW, LOWER_FACTOR = 0.5, 0.75
# Beyond it the penalty outweighs any reward, which is at most 1.
MAX_COEF = 1.0


@dataclass(slots=True)
class KLConfig:
    """The KL term of the loss."""

    form: KLForm = KLForm.k2_straight_through
    """Term that is optimised."""
    control: KLControl = KLControl.fixed
    coef: float = 0.05
    """Base coefficient at the start; 0 leaves KL measured and unpenalised."""
    measured: bool = True
    """Measure KL even if its coefficient is 0. Otherwise neither the reference nor groups of zero advantage are
    computed then; guards and controllers see no KL."""
    warmup_steps: int = 0
    """Steps over which the coefficient ramps linearly from 0 to base."""
    target: float = 0.1
    """adaptive: target of the KL in nats per token; above 1.5 times it the base rises by half, below half of it the
    base falls by a quarter."""
    min_coef: float = 1e-4
    """adaptive: smallest base; the largest is 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.coef < math.inf:
            raise ValueError(f"kl.coef: expected a finite number from 0 up, got {self.coef}")
        if self.warmup_steps < 0:
            raise ValueError(f"kl.warmup_steps: expected 0 or more, got {self.warmup_steps}")
        if not 0 < self.target < math.inf:
            raise ValueError(f"kl.target: expected above 0, got {self.target}")
        if not 0 < self.min_coef <= MAX_COEF:
            raise ValueError(f"kl.min_coef: expected above 0 and at most {MAX_COEF:g}, got {self.min_coef}")


def warmup_ramp(config: KLConfig, step: int) -> float:
    """Fraction of the base in force at `step`, counted from 0.

    >>> warmup_ramp(KLConfig(warmup_steps=10), 5)
    0.5
    """
    if step >= config.warmup_steps:
        return 1.0
    return step / config.warmup_steps


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
    """The coefficient over a run."""

    def __init__(self, config: KLConfig) -> None:
        self._config = config
        self.base = 0.0 if config.control is KLControl.off else config.coef

    def coefficient(self, step: int) -> float:
        """The coefficient in force at `step` of the schedule, counted from 0."""
        return warmup_ramp(self._config, step) * self.base

    def observe(self, step: int, kl: float) -> None:
        """Adapt the base to the KL of a good step, nats per token; it stays as it is inside the warm-up."""
        if self._config.control is KLControl.adaptive and step >= self._config.warmup_steps:
            self.base = adapted(self.base, kl, self._config)

    def state_dict(self) -> dict[str, float]:
        return {"base": self.base}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on with a saved base, unless the configuration fixes it: then what is configured now holds."""
        if self._config.control is KLControl.adaptive:
            self.base = state["base"]

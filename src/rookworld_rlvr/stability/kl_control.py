"""How strongly KL(policy‖reference) is penalised, step by step.

The coefficient in force is `ramp(step) × base`. The ramp is the warm-up, and a controller moves the base. The base is
constant during the ramp, because KL under a reduced penalty says nothing about the full penalty. Only the base is
saved, so a save inside the warm-up loses nothing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ..objective import KLForm


class KLControl(StrEnum):
    """What moves the base coefficient after each step."""

    off = "off"
    """There is no penalty; KL is still measured."""
    fixed = "fixed"
    """Nothing."""
    adaptive = "adaptive"
    """Multiplied up above a band around the target, down below it (arXiv 1707.06347, section 4)."""
    proportional = "proportional"
    """Multiplied by 1 + gain × the clipped relative error (arXiv 1909.08593, section 2.2)."""
    budget = "budget"
    """Moved by gain × max_coef × the relative error, down to 0: dual ascent on KL ≤ target. Free below the
    budget, dearer the longer it is exceeded."""


@dataclass(slots=True)
class KLConfig:
    """The KL term of the loss."""

    form: KLForm = KLForm.k2_straight_through
    """Which term is optimised; see `objective.kl`."""
    token_clamp: float = 10.0
    """Nat. Beyond it a token's term goes on linearly: finite, and its gradient never 0."""
    control: KLControl = KLControl.fixed
    coef: float = 0.05
    """Base coefficient at the start; 0 leaves KL measured and unpenalised."""
    measured: bool = True
    """Whether KL is measured where its coefficient is 0. Without, the reference is not computed then, and groups
    whose advantages are 0 are not either; guards and controllers see no KL."""
    warmup_steps: int = 0
    """Steps over which the coefficient ramps linearly from warmup_factor × base to base."""
    warmup_factor: float = 0.0
    """Where the ramp begins, as a fraction of the base."""
    target: float = 0.1
    """Nat a token: what adaptive and proportional steer to, and what budget allows."""
    raise_above: float = 1.5
    """adaptive: KL above raise_above × target multiplies the base …"""
    raise_factor: float = 1.5
    """… by this."""
    lower_below: float = 0.5
    """adaptive: KL below lower_below × target multiplies the base …"""
    lower_factor: float = 0.75
    """… by this."""
    gain: float = 0.1
    """proportional and budget: how fast the base follows the error."""
    error_clip: float = 0.2
    """proportional and budget: most relative error that counts."""
    min_coef: float = 1e-4
    """adaptive and proportional: least base."""
    max_coef: float = 1.0
    """adaptive, proportional and budget: largest base."""

    def __post_init__(self) -> None:
        if not 0 <= self.coef < math.inf:
            raise ValueError(f"kl.coef: expected a finite number from 0 up, got {self.coef}")
        if self.warmup_steps < 0 or not self.warmup_factor >= 0:
            raise ValueError("kl: expected warmup_steps and warmup_factor from 0 up")
        if not self.token_clamp > 0 or not 0 < self.target < math.inf:
            raise ValueError(f"kl: expected token_clamp and target above 0, got {self.token_clamp} and {self.target}")
        if not 0 < self.lower_below < self.raise_above or not 0 < self.lower_factor < 1 < self.raise_factor:
            raise ValueError("kl: expected 0 < lower_below < raise_above and 0 < lower_factor < 1 < raise_factor")
        if not 0 < self.gain < math.inf or not 0 < self.error_clip < math.inf:
            raise ValueError(f"kl: expected gain and error_clip above 0, got {self.gain} and {self.error_clip}")
        if not 0 < self.min_coef <= self.max_coef < math.inf:
            raise ValueError(f"kl: expected 0 < min_coef <= max_coef, got {self.min_coef} and {self.max_coef}")


def warmup_ramp(config: KLConfig, step: int) -> float:
    """Fraction of the base in force at `step`, counted from 0.

    >>> warmup_ramp(KLConfig(warmup_steps=10, warmup_factor=0.5), 5)
    0.75
    """
    if step >= config.warmup_steps:
        return 1.0
    return config.warmup_factor + (1 - config.warmup_factor) * step / config.warmup_steps


def _held(base: float, kl: float, config: KLConfig) -> float:
    return base


def _adaptive(base: float, kl: float, config: KLConfig) -> float:
    if kl > config.raise_above * config.target:
        base *= config.raise_factor
    elif kl < config.lower_below * config.target:
        base *= config.lower_factor
    return min(max(base, config.min_coef), config.max_coef)


def _proportional(base: float, kl: float, config: KLConfig) -> float:
    base *= 1 + config.gain * _error(kl, config)
    return min(max(base, config.min_coef), config.max_coef)


def _budget(base: float, kl: float, config: KLConfig) -> float:
    base += config.gain * config.max_coef * _error(kl, config)
    return min(max(base, 0.0), config.max_coef)


def _error(kl: float, config: KLConfig) -> float:
    return min(max(kl / config.target - 1, -config.error_clip), config.error_clip)


RULES: Mapping[KLControl, Callable[[float, float, KLConfig], float]] = {
    KLControl.off: _held,
    KLControl.fixed: _held,
    KLControl.adaptive: _adaptive,
    KLControl.proportional: _proportional,
    KLControl.budget: _budget,
}


class KLController:
    """The coefficient over a run."""

    def __init__(self, config: KLConfig) -> None:
        self._config = config
        self.base = 0.0 if config.control is KLControl.off else config.coef

    def coefficient(self, step: int) -> float:
        """The coefficient in force at `step` of the schedule, counted from 0."""
        return warmup_ramp(self._config, step) * self.base

    def observe(self, step: int, kl: float) -> None:
        """Move the base by the KL of a good step, nat a token; nothing inside the warm-up."""
        if step >= self._config.warmup_steps:
            self.base = RULES[self._config.control](self.base, kl, self._config)

    def state_dict(self) -> dict[str, float]:
        return {"base": self.base}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on with a saved base, unless the configuration fixes it: then what is configured now holds."""
        if self._config.control not in (KLControl.off, KLControl.fixed):
            self.base = state["base"]

"""How strongly the policy's entropy is rewarded: a coefficient that is fixed, or that holds a target."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class EntropyControl(StrEnum):
    """What moves the coefficient."""

    fixed = "fixed"
    adaptive = "adaptive"
    """Up by `rate` after a step below the target, down by it after one above, never below 0; in force only
    while the entropy is below the target (arXiv 2505.22312)."""


@dataclass(slots=True)
class EntropyConfig:
    """The entropy bonus: the loss falls by coefficient × entropy of each trained token's distribution."""

    control: EntropyControl = EntropyControl.fixed
    coef: float = 0.0
    """Coefficient, at the start where it is adaptive; 0 with fixed control: no bonus."""
    target: float = 0.2
    """adaptive: nat a token."""
    rate: float = 5e-4
    """adaptive: how far the coefficient moves a step."""
    max_coef: float = 0.02
    """adaptive: largest coefficient."""

    def __post_init__(self) -> None:
        if not 0 <= self.coef < math.inf:
            raise ValueError(f"objective.entropy.coef: expected a finite number from 0 up, got {self.coef}")
        if not self.target > 0 or not self.rate > 0 or not self.max_coef > 0:
            raise ValueError("objective.entropy: expected target, rate and max_coef above 0")


class EntropyController:
    """The coefficient over a run."""

    def __init__(self, config: EntropyConfig) -> None:
        self._config = config
        self._coef, self._below_target = config.coef, True

    @property
    def measures(self) -> bool:
        """Whether it needs every step's entropy, that of groups that teach nothing included."""
        return self._config.control is EntropyControl.adaptive

    def coefficient(self) -> float:
        """The coefficient in force."""
        return self._coef if self._below_target else 0.0

    def observe(self, entropy: float) -> None:
        """Move the coefficient by a good step's mean entropy, nat a token."""
        config = self._config
        if not self.measures:
            return
        self._below_target = entropy < config.target
        moved = self._coef + (config.rate if self._below_target else -config.rate)
        self._coef = min(max(moved, 0.0), config.max_coef)

    def state_dict(self) -> dict[str, float | bool]:
        return {"coef": self._coef, "below_target": self._below_target}

    def load_state_dict(self, state: Mapping[str, float | bool]) -> None:
        """Go on with what was saved, unless the coefficient is fixed by the configuration."""
        if self.measures:
            self._coef, self._below_target = float(state["coef"]), bool(state["below_target"])

"""How strongly KL(policy‖reference) is penalised, step by step."""

from dataclasses import dataclass

from ..objective import KLForm


@dataclass(slots=True)
class KLConfig:
    """The KL term of the loss."""

    form: KLForm = KLForm.k2_straight_through
    """Which term is optimised; both have the gradient of KL(policy‖reference) per position."""
    coef: float = 0.005
    """Coefficient after the warm-up; 0 leaves KL measured and unpenalised."""
    warmup_steps: int = 0
    """Steps over which the coefficient ramps linearly from warmup_factor × coef to coef."""
    warmup_factor: float = 0.0
    """Where the ramp begins, as a fraction of coef."""

    def __post_init__(self) -> None:
        if not 0 <= self.coef < float("inf"):
            raise ValueError(f"kl.coef: expected a finite number from 0 up, got {self.coef}")
        if self.warmup_steps < 0 or not self.warmup_factor >= 0:
            raise ValueError("kl: expected warmup_steps and warmup_factor from 0 up")


def kl_coefficient(config: KLConfig, step: int) -> float:
    """The coefficient at `step`, counted from 0.

    >>> kl_coefficient(KLConfig(coef=0.1, warmup_steps=10), 5)
    0.05
    """
    if step >= config.warmup_steps:
        return config.coef
    ramp = step / config.warmup_steps
    return config.coef * (config.warmup_factor + (1 - config.warmup_factor) * ramp)

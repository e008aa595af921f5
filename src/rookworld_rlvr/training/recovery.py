"""What happens when a loss or gradient is not finite: skip, count, lower the learning rate, give up."""

from dataclasses import asdict, dataclass

from .errors import TrainingGaveUpError


@dataclass(slots=True)
class RecoveryConfig:
    """The ladder's rungs."""

    recovery_lr_factor: float = 0.5
    """The learning rate is multiplied by this at every skipped update, and stays so."""
    max_consecutive_nans: int = 5
    """Skipped updates in a row after which training gives up (exit code 4)."""

    def __post_init__(self) -> None:
        if not 0 < self.recovery_lr_factor <= 1 or self.max_consecutive_nans < 1:
            raise ValueError(
                "recovery: expected recovery_lr_factor in (0, 1] and max_consecutive_nans from 1, "
                f"got {self.recovery_lr_factor} and {self.max_consecutive_nans}"
            )


@dataclass(slots=True)
class RecoveryState:
    """What the run has been through; part of a checkpoint."""

    lr_scale: float = 1.0
    """Product of all backoffs."""
    skipped: int = 0
    """Updates skipped so far."""
    consecutive: int = 0
    """Updates skipped in a row."""

    def state_dict(self) -> dict[str, float]:
        return asdict(self)


def record_update(state: RecoveryState, config: RecoveryConfig, *, fault: str) -> None:
    """Count an update; `fault` names what was not finite, empty for a good one.

    Raises TrainingGaveUpError after max_consecutive_nans faults in a row.
    """
    if not fault:
        state.consecutive = 0
        return
    state.skipped += 1
    state.consecutive += 1
    state.lr_scale *= config.recovery_lr_factor
    if state.consecutive >= config.max_consecutive_nans:
        raise TrainingGaveUpError(
            f"{state.consecutive} updates in a row had a non-finite {fault}; the learning rate was already "
            f"scaled by {state.lr_scale:.3g}. Try a lower optim.lr or a higher kl.coef, or look at rollouts.jsonl"
        )

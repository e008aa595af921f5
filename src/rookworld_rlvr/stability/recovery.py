"""Recovery after a fault, as an escalation of three actions.

1. **skip**: the update is not made, and the fault is counted.
2. **restore**: after RESTORE_AFTER faults in a row, or at once if the weights themselves are wrong, the last good
   checkpoint is restored (weights, optimiser, schedule, random state, references). The prompt stream is not reset, so
   the same batch does not return.
   The learning rate is multiplied by `recovery_lr_factor`. After GOOD_STEPS good steps it ramps back over
   RAMP_STEPS steps; each restore after the first lowers the ceiling of the ramp by the same factor.
3. **stop**: after more than `max_consecutive_nans` faults in a row, if more than MAX_RESTORES restores are due, or
   at once after a fault that would return in every step, the run ends with exit code 4 and a written diagnosis.

A checkpoint is good once GOOD_STEPS steps in a row after it went well. Nothing here loosens a guard.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from .faults import UNRECOVERABLE, Fault

# Number of good steps in a row after which the learning rate ramps back and an earlier checkpoint counts as good: as
# many as the guards remember.
GOOD_STEPS = 20
# Number of steps in which the ramp undoes one reduction of the learning rate.
RAMP_STEPS = 20
# Number of faults in a row after which the last good checkpoint is restored. One fault alone may be due to its batch.
RESTORE_AFTER = 2
# Largest number of restores. Eight halvings leave 0.4 % of the learning rate.
MAX_RESTORES = 8


class Action(StrEnum):
    """Action taken after a step."""

    proceed = "proceed"
    skip = "skip"
    restore = "restore"
    stop = "stop"


@dataclass(slots=True)
class RecoveryConfig:
    """Conditions of the actions after a fault."""

    enabled: bool = True
    """If this is off, a fault skips the update and is counted, but there are no guards, no restores and no reduction
    of the learning rate. A non-finite weight then stops the run."""
    recovery_lr_factor: float = 0.5
    """Factor on the learning rate at every restore."""
    max_consecutive_nans: int = 5
    """Maximum number of faults in a row; after one more, training stops (exit code 4)."""
    kl_limit: float = 1.0
    """Nats per token. An update with a mean KL(policy‖reference) above it is always a fault. 0: no limit."""

    def __post_init__(self) -> None:
        if not 0 < self.recovery_lr_factor <= 1 or self.max_consecutive_nans < 1:
            raise ValueError(
                "recovery: expected recovery_lr_factor in (0, 1] and max_consecutive_nans from 1, "
                f"got {self.recovery_lr_factor} and {self.max_consecutive_nans}"
            )
        if not 0 <= self.kl_limit < math.inf:
            raise ValueError(f"recovery.kl_limit: expected a finite number from 0 up, got {self.kl_limit}")


@dataclass(slots=True)
class RecoveryState:
    """Counts of faults and restores, and the checkpoints known to be good. Saved, and not undone by a restore."""

    lr_scale: float = 1.0
    """Factor on the scheduled learning rate."""
    lr_ceiling: float = 1.0
    """Value up to which lr_scale may ramp back."""
    skipped: int = 0
    """Number of faults so far; the update of each was not made or was undone."""
    consecutive: int = 0
    """Number of faults in a row."""
    good: int = 0
    """Number of good steps in a row."""
    restores: int = 0
    """Number of restores so far."""
    halvings: int = 0
    """Number of times that the micro-batch was halved because memory ran out."""
    ineffective: int = 0
    """Number of steps in a row without an effective update."""
    last_good_step: int = 0
    """Step of the newest checkpoint that is known to be good."""
    candidates: list[int] = field(default_factory=list)
    """Steps of newer checkpoints that may become the last good one, at least GOOD_STEPS apart."""
    best_step: int = 0
    """Step of the checkpoint with the best validation score."""
    best_score: float = float("-inf")
    """Its validation score."""

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def record_checkpoint(self, step: int, score: float | None) -> None:
        """Record that the checkpoint of `step` was written, with its validation score; None if it was not validated."""
        if score is not None and score > self.best_score:
            self.best_step, self.best_score = step, score
        if not self.candidates or step - max(self.candidates) >= GOOD_STEPS:
            self.candidates.append(step)


def escalate(state: RecoveryState, config: RecoveryConfig, *, step: int, fault: Fault | None) -> Action:
    """Return the action for the outcome of `step`, counted from 1, and count the outcome in the state."""
    if fault is None:
        _good_step(state, config, step)
        return Action.proceed
    state.skipped += 1
    state.consecutive += 1
    state.good = 0
    if state.consecutive > config.max_consecutive_nans or fault.kind in UNRECOVERABLE:
        return Action.stop
    if not config.enabled:
        return Action.stop if fault.damages_weights else Action.skip
    if not fault.damages_weights and state.consecutive < RESTORE_AFTER:
        return Action.skip
    return _restore(state, config)


def _restore(state: RecoveryState, config: RecoveryConfig) -> Action:
    if state.restores >= MAX_RESTORES:
        return Action.stop
    state.lr_ceiling = config.recovery_lr_factor**state.restores
    state.lr_scale = min(state.lr_scale, state.lr_ceiling) * config.recovery_lr_factor
    state.restores += 1
    # These were saved between the last good checkpoint and the fault, so they may be bad.
    state.candidates = []
    return Action.restore


def _good_step(state: RecoveryState, config: RecoveryConfig, step: int) -> None:
    state.consecutive = 0
    state.good += 1
    if state.good > GOOD_STEPS and state.lr_scale < state.lr_ceiling:
        back = config.recovery_lr_factor ** (-1 / RAMP_STEPS)
        state.lr_scale = min(state.lr_ceiling, state.lr_scale * back)
    # A skipped update does not change the weights, so a fault after a checkpoint only delays when it counts as good.
    for candidate in sorted(state.candidates):
        if state.good >= GOOD_STEPS <= step - candidate:
            state.candidates.remove(candidate)
            state.last_good_step = candidate

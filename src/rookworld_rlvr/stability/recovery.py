"""Recovery after a fault, as an escalation of three actions.

1. **skip**: the update is not made, the fault is counted.
2. **restore**: after `restore_after` faults in a row, or at once if the weights themselves are wrong, the
   last good checkpoint comes back (weights, optimiser, schedule, random state, controllers, references, the
   trend of rewards; after a collapse the best checkpoint). The prompts go on, so the same batch does not return.
   The learning rate is multiplied by `recovery_lr_factor`; after GOOD_STEPS good steps it ramps back over
   RAMP_STEPS, each restore after the first to a ceiling lower by the same factor.
3. **stop**: after more than `max_consecutive_nans` faults in a row, or more than `max_restores` restores,
   the run ends with exit code 4 and a written diagnosis.

A checkpoint is good once GOOD_STEPS steps in a row went well after it. Nothing here loosens a guard.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from .faults import LASTING, Fault
from .guards import GuardConfig

# Good steps in a row after which the learning rate ramps back, and an earlier checkpoint counts as good: as many as the
# guards remember.
GOOD_STEPS = 20
# Steps in which the ramp undoes one backoff.
RAMP_STEPS = 20


class Action(StrEnum):
    """Action taken after a step."""

    go_on = "go_on"
    skip = "skip"
    restore = "restore"
    stop = "stop"


@dataclass(slots=True)
class RecoveryConfig:
    """Conditions of each action."""

    enabled: bool = True
    """Off: a non-finite update is skipped and counted, as elsewhere; no guard, no restore, no backoff."""
    recovery_lr_factor: float = 0.5
    """The learning rate is multiplied by this at every restore."""
    max_consecutive_nans: int = 5
    """Faults in a row that are survived; one more and training stops (exit code 4)."""
    restore_after: int = 2
    """Faults in a row after which the last good checkpoint is restored."""
    max_restores: int = 8
    """Restores that are tried; where one more is due, training stops (exit code 4)."""
    guard: GuardConfig = field(default_factory=GuardConfig)

    def __post_init__(self) -> None:
        if not 0 < self.recovery_lr_factor <= 1 or self.max_consecutive_nans < 1:
            raise ValueError(
                "recovery: expected recovery_lr_factor in (0, 1] and max_consecutive_nans from 1, "
                f"got {self.recovery_lr_factor} and {self.max_consecutive_nans}"
            )
        if self.restore_after < 1:
            raise ValueError(f"recovery.restore_after: expected 1 or more, got {self.restore_after}")
        if self.max_restores < 0:
            raise ValueError(f"recovery.max_restores: expected 0 or more, got {self.max_restores}")


@dataclass(slots=True)
class RecoveryState:
    """Counts of faults and restores, and the checkpoints known to be good; saved, and not undone by a restore."""

    lr_scale: float = 1.0
    """What the scheduled learning rate is multiplied by."""
    lr_ceiling: float = 1.0
    """What lr_scale may ramp back to."""
    skipped: int = 0
    """Faults so far, each an update that was not made or was undone."""
    consecutive: int = 0
    """Faults in a row."""
    good: int = 0
    """Good steps in a row."""
    restores: int = 0
    """Restores so far."""
    halvings: int = 0
    """How often the micro-batch was halved because memory ran out."""
    ineffective: int = 0
    """Steps in a row without an effective update."""
    last_good_step: int = 0
    """The newest checkpoint that is known to be good."""
    candidates: dict[int, float] = field(default_factory=dict)
    """Newer checkpoints that may become it, GOOD_STEPS apart, each with its score."""
    best_step: int = 0
    """The checkpoint of the best score among those known to be good."""
    best_score: float = float("-inf")
    """Validation score, or the running mean reward where there is no validation."""

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def saved(self, step: int, score: float, *, measured: bool) -> None:
        """Take note that the checkpoint of `step` is written; `score` is -inf if there is no score yet.

        A score measured on this very checkpoint counts at once. A running mean lags behind the checkpoint, so it
        counts only once the checkpoint is known to be good.
        """
        if measured and score > self.best_score:
            self.best_step, self.best_score = step, score
        newest = max(self.candidates, default=None)
        if newest is None or step - newest >= GOOD_STEPS:
            self.candidates[step] = score

    def proven(self, step: int) -> None:
        """The candidate of `step` turned out to be good, and so did those before it."""
        for known in sorted(self.candidates):
            if known <= step:
                score = self.candidates.pop(known)
                self.last_good_step = known
                if score > self.best_score:
                    self.best_step, self.best_score = known, score


def escalate(state: RecoveryState, config: RecoveryConfig, *, step: int, fault: Fault | None) -> Action:
    """The action for the outcome of `step` (1 is the first), which is counted in the state."""
    if fault is None:
        _good_step(state, config, step)
        return Action.go_on
    state.skipped += 1
    state.consecutive += 1
    state.good = 0
    if state.consecutive > config.max_consecutive_nans or fault.kind in LASTING:
        return Action.stop
    if not config.enabled:
        return Action.stop if fault.damages else Action.skip
    if not fault.damages and state.consecutive < config.restore_after:
        return Action.skip
    return _restore(state, config)


def _restore(state: RecoveryState, config: RecoveryConfig) -> Action:
    if state.restores >= config.max_restores:
        return Action.stop
    state.lr_ceiling = config.recovery_lr_factor**state.restores
    state.lr_scale = min(state.lr_scale, state.lr_ceiling) * config.recovery_lr_factor
    state.restores += 1
    # Saved between the good state and the fault: nobody knows.
    state.candidates = {}
    return Action.restore


def _good_step(state: RecoveryState, config: RecoveryConfig, step: int) -> None:
    state.consecutive = 0
    state.good += 1
    if state.good > GOOD_STEPS and state.lr_scale < state.lr_ceiling:
        back = config.recovery_lr_factor ** (-1 / RAMP_STEPS)
        state.lr_scale = min(state.lr_ceiling, state.lr_scale * back)
    # A skipped update leaves the weights alone, so what counts is that a checkpoint's successors all went well.
    proven = [saved for saved in state.candidates if state.good >= GOOD_STEPS <= step - saved]
    if proven:
        state.proven(max(proven))

"""What one step did: the trainer turns it into metrics, transcripts and decisions."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..model.batch import Batch
from ..rollout.groups import Collected, Group
from ..stability.faults import Fault
from ..stockfish.pool import EngineCounts
from ..tasks import Example
from .loss import TokenTotals


@dataclass(slots=True)
class StepReport:
    """One step."""

    step: int
    """Counted from 0."""
    kl_coef: float
    schedule_step: int = 0
    """Where the schedules stand: behind `step` after a restore."""
    staleness: int = 0
    """Steps by which the weights that sampled are older than those that are trained."""
    entropy_coef: float = 0.0
    loss: float = 0.0
    """Mean over the step's updates."""
    lr: float = 0.0
    grad_norm: float = 0.0
    """Before clipping; largest of the step's updates."""
    update_norm: float = 0.0
    """Norm of the change of all parameters, summed over updates; 0 for a skipped one."""
    updates: int = 0
    """Updates made."""
    fault: Fault | None = None
    """What went wrong, None for a good step."""
    fault_batch: Batch | None = None
    """What was trained on when it did."""
    asked: Sequence[Example] = ()
    """What was sampled last, before anything is known of it."""
    collected: Collected | None = None
    """The groups that are trained on, or would have been, with their rewards; None if the step did not come to them."""
    used_P: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """True where a group's advantages count."""
    advantages_PG: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    sampled_groups: int = 0
    """Groups sampled, those dropped or replaced included."""
    sampled_completions: int = 0
    """Completions sampled, likewise."""
    rejected_completions: int = 0
    """Completions beyond the KL cap, those replaced included."""
    engine: EngineCounts | None = None
    """Counts of the judge's engines for this step; None without engines, or if the step did not reach the judge."""
    tokens: TokenTotals = field(default_factory=TokenTotals)
    times_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the phases generate, score, train and of the whole step."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of `collected`; empty without them."""
        return self.collected.groups if self.collected else ()

    @property
    def rewards_PG(self) -> Tensor:
        """The rewards of `collected`, (P, G), float32; (0, 0) without them."""
        return self.collected.rewards_PG if self.collected else torch.zeros(0, 0)

    def reward_by_task(self) -> dict[str, float]:
        """The mean reward of each task that was asked."""
        rows: dict[str, list[Tensor]] = {}
        for group, rewards_G in zip(self.groups, self.rewards_PG, strict=True):
            rows.setdefault(group.example.task.value, []).append(rewards_G)
        return {task: float(torch.stack(rewards).mean()) for task, rewards in rows.items()}

    def take_collection(self, sampled: "StepReport") -> None:
        """Take over what is known of a collection that was made for another report."""
        self.asked, self.collected, self.engine = sampled.asked, sampled.collected, sampled.engine
        self.sampled_groups, self.sampled_completions = sampled.sampled_groups, sampled.sampled_completions
        self.rejected_completions, self.staleness = sampled.rejected_completions, sampled.staleness
        self.times_s |= sampled.times_s

    def add_engine_counts(self, counts: EngineCounts | None) -> None:
        """Add what engines have done; None is nothing."""
        if counts is not None:
            self.engine = (self.engine or EngineCounts()) + counts

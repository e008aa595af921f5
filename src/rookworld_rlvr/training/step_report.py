"""What one step did, as sums that add up over micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from ..engine.pool import EngineCounts
from ..model.batch import Batch
from ..objective import TokenStatistics, kl_k3
from ..rollout.collect import Group
from ..tasks import Example
from .faults import Fault


@dataclass(slots=True)
class TokenTotals:
    """Sums and extremes over trained tokens, each pass over a token counted. Log-probs, KL, entropy in nat."""

    count: int = 0
    kl_count: int = 0
    """Those of which a reference says something."""
    logprob_sum: float = 0.0
    ref_logprob_sum: float = 0.0
    kl_sum: float = 0.0
    kl_exact_sum: float = 0.0
    kl_original_sum: float = 0.0
    entropy_sum: float = 0.0
    clipped_sum: float = 0.0
    corrected_sum: float = 0.0
    surrogate_sum: float = 0.0
    kl_term_sum: float = 0.0
    kl_max: float = 0.0
    ratio_max: float = 0.0
    sampler_ratio_max: float = 0.0
    kl_min: float = float("inf")

    @classmethod
    def of(cls, statistics: TokenStatistics, original_logprobs: Tensor | None, terms: "TokenTerms") -> "TokenTotals":
        """Totals of one micro-batch's trained tokens, each tensor (N,), N at least 1."""
        logprobs = statistics.logprobs.detach()
        totals = cls(
            count=logprobs.numel(),
            logprob_sum=float(logprobs.sum()),
            entropy_sum=float(statistics.entropy.detach().sum()),
            clipped_sum=float(terms.clipped.sum()),
            corrected_sum=float((terms.correction != 1).sum()),
            surrogate_sum=float(terms.surrogate.sum()),
            kl_term_sum=float(terms.kl.sum()),
            ratio_max=float(terms.ratio.max()),
            sampler_ratio_max=float(terms.sampler_log_ratio.abs().max().exp()),
        )
        totals._add_kl(statistics, original_logprobs)
        return totals

    def _add_kl(self, statistics: TokenStatistics, original_logprobs: Tensor | None) -> None:
        """Nothing without a reference."""
        if statistics.ref_logprobs is None or statistics.kl_exact is None:
            return
        logprobs, ref_logprobs = statistics.logprobs.detach(), statistics.ref_logprobs
        kl = kl_k3(logprobs, ref_logprobs)
        kl_original = kl if original_logprobs is None else kl_k3(logprobs, original_logprobs)
        self.kl_count = kl.numel()
        self.ref_logprob_sum, self.kl_sum = float(ref_logprobs.sum()), float(kl.sum())
        self.kl_exact_sum, self.kl_original_sum = float(statistics.kl_exact.detach().sum()), float(kl_original.sum())
        self.kl_min, self.kl_max = float(kl.min()), float(kl.max())

    def add(self, other: "TokenTotals") -> None:
        """Take in another micro-batch."""
        for name in (spec.name for spec in fields(self)):
            mine, theirs = getattr(self, name), getattr(other, name)
            join = max if name.endswith("_max") else min if name.endswith("_min") else sum
            setattr(self, name, join((mine, theirs)))

    @property
    def kl_mean(self) -> float:
        """k3 estimate of KL(policy‖reference), nat a token; 0 before any token."""
        return self.kl_sum / max(self.kl_count, 1)

    @property
    def kl_exact_mean(self) -> float:
        """KL(policy‖reference) over the whole vocabulary, nat a token: what guards and controllers look at.

        One token in ten thousand may have a k3 of a thousand nat, which moves a step's mean and means nothing.
        """
        return self.kl_exact_sum / max(self.kl_count, 1)


@dataclass(frozen=True, slots=True)
class TokenTerms:
    """What the loss made of one micro-batch's trained tokens; each (N,), detached."""

    surrogate: Tensor
    """Policy loss before the sampler's correction, in the advantages' unit."""
    kl: Tensor
    """KL term before its coefficient, nat."""
    ratio: Tensor
    """policy / old probability; of the sequence under GSPO."""
    clipped: Tensor
    """True where the clip binds."""
    correction: Tensor
    """Weight against the mismatch of sampler and trainer; 1 where none is needed."""
    sampler_log_ratio: Tensor
    """old − sampler log-prob, nat, before any truncation."""


@dataclass(slots=True)
class StepReport:
    """One step. The trainer turns it into metrics, transcripts and decisions."""

    step: int
    """Counted from 0."""
    kl_coef: float
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
    groups: list[Group] = field(default_factory=list)
    """The groups that are trained on, or would have been."""
    rewards_PG: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    valid_PG: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.bool))
    """False where a completion was rejected at collection."""
    counted_P: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """True where a group's advantages count."""
    advantages_PG: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    sampled_groups: int = 0
    """Groups sampled, those dropped or replaced included."""
    sampled_completions: int = 0
    """Completions sampled, likewise."""
    rejected_completions: int = 0
    """Completions beyond the KL cap, those replaced included."""
    engine: EngineCounts | None = None
    """What the judge's engines did for the step; None where it has none, or it was not come to."""
    tokens: TokenTotals = field(default_factory=TokenTotals)
    times_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the phases generate, score, train and of the whole step."""

    def note(self, groups: Sequence[Group], rewards_PG: Tensor, valid_PG: Tensor) -> None:
        """What is trained on, before anything is made of it."""
        self.groups, self.rewards_PG, self.valid_PG = list(groups), rewards_PG, valid_PG

    def reward_by_task(self) -> dict[str, float]:
        """The mean reward of each task that was asked."""
        rows: dict[str, list[Tensor]] = {}
        for group, rewards_G in zip(self.groups, self.rewards_PG, strict=True):
            rows.setdefault(group.example.task.value, []).append(rewards_G)
        return {task: float(torch.stack(rewards).mean()) for task, rewards in rows.items()}

    def add_engine_counts(self, counts: EngineCounts | None, *, since: EngineCounts) -> None:
        """Add what was done since."""
        if counts is not None:
            self.engine = (self.engine or EngineCounts()) + (counts - since)

"""What one step did, as sums that add up over micro-batches."""

from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from ..objective import TokenStatistics, kl_k3
from ..rollout.collect import Group


@dataclass(slots=True)
class TokenTotals:
    """Sums and extremes over trained tokens. Log-probs, KL and entropy in nat."""

    count: int = 0
    logprob_sum: float = 0.0
    ref_logprob_sum: float = 0.0
    kl_sum: float = 0.0
    kl_exact_sum: float = 0.0
    entropy_sum: float = 0.0
    clipped_sum: float = 0.0
    kl_max: float = 0.0
    ratio_max: float = 0.0
    sampler_ratio_max: float = 0.0
    kl_min: float = float("inf")

    @classmethod
    def of(
        cls,
        statistics: TokenStatistics,
        *,
        sampler_logprobs: Tensor,
        ratio: Tensor,
        clipped: Tensor,
    ) -> "TokenTotals":
        """Totals of one micro-batch's trained tokens, each tensor (N,), N at least 1, with a reference."""
        assert statistics.ref_logprobs is not None and statistics.kl_exact is not None
        logprobs, ref_logprobs = statistics.logprobs.detach(), statistics.ref_logprobs
        kl = kl_k3(logprobs, ref_logprobs)
        return cls(
            count=logprobs.numel(),
            logprob_sum=float(logprobs.sum()),
            ref_logprob_sum=float(ref_logprobs.sum()),
            kl_sum=float(kl.sum()),
            kl_exact_sum=float(statistics.kl_exact.detach().sum()),
            entropy_sum=float(statistics.entropy.sum()),
            clipped_sum=float(clipped.sum()),
            kl_max=float(kl.max()),
            ratio_max=float(ratio.max()),
            sampler_ratio_max=float((logprobs - sampler_logprobs).abs().max().exp()),
            kl_min=float(kl.min()),
        )

    def add(self, other: "TokenTotals") -> None:
        """Take in another micro-batch."""
        for name in (spec.name for spec in fields(self)):
            mine, theirs = getattr(self, name), getattr(other, name)
            join = max if name.endswith("_max") else min if name.endswith("_min") else sum
            setattr(self, name, join((mine, theirs)))


@dataclass(slots=True)
class StepReport:
    """One step. The trainer turns it into metrics, transcripts and decisions."""

    step: int
    """Counted from 0."""
    kl_coef: float
    loss: float = 0.0
    lr: float = 0.0
    grad_norm: float = 0.0
    """Before clipping."""
    update_norm: float = 0.0
    """Norm of the change of all parameters; 0 for a skipped update."""
    fault: str = ""
    """What was not finite, empty for a good update."""
    groups: list[Group] = field(default_factory=list)
    rewards_PG: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    advantages_PG: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    tokens: TokenTotals = field(default_factory=TokenTotals)
    times_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the phases generate, score, train and of the whole step."""

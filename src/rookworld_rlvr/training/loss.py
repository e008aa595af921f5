"""Loss of a micro-batch: a pure function of a policy, the batch and a plan that is fixed before the update.

    loss = Σ weight · (correction · surrogate + kl_coef · KL − entropy_coef · entropy)    over trained tokens

This module checks and records nothing; `step` does. Source: GRPO, arXiv 2402.03300. `objective.losses` defines the
surrogates and the weights.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..model.batch import Batch, TokenBatch
from ..model.policy import Policy, spread
from ..objective import (
    LOSSES,
    KLConfig,
    KLForm,
    KLInputs,
    LossSizes,
    ObjectiveConfig,
    TokenStatistics,
    kl_k3,
    kl_penalty,
    mismatch_weights,
    weighted_sum,
)

# Log-ratio in nats beyond which the KL term of a token continues linearly: finite, with a gradient that is never 0.
TOKEN_CLAMP_NAT = 10.0


@dataclass(frozen=True, slots=True)
class LossPlan:
    """Options and sizes that all micro-batches of one update share."""

    objective: ObjectiveConfig
    kl: KLConfig
    temperature: float
    sizes: LossSizes
    """Sizes of the whole update, so that its gradient does not depend on the micro-batches."""
    kl_coef: float
    moves_temperature: float
    """Weight of the entropy over legal moves beside their expected value."""
    reference: Policy | None
    """Current reference model; None if KL is neither measured nor penalised."""
    original: Policy | None
    """Starting model, if the reference may differ from it and KL is measured or penalised; else None."""


@dataclass(frozen=True, slots=True)
class MicroLoss:
    """Loss and totals of a micro-batch of N trained tokens."""

    loss: Tensor
    """This micro-batch's share of the update's loss, a scalar with a gradient."""
    totals: "TokenTotals"
    logprobs: Tensor
    """Log-probs of the policy (N,), nat, detached."""
    ref_logprobs: Tensor | None
    """Log-probs of the reference (N,), nat; None without a reference."""


@dataclass(frozen=True, slots=True)
class TokenTotals:
    """Sums and extremes over trained tokens; a token counts once per pass over it. Log-probs, KL, entropy in nat."""

    count: int = 0
    kl_count: int = 0
    """Number of tokens for which the reference was computed."""
    logprob_sum: float = 0.0
    ref_logprob_sum: float = 0.0
    kl_sum: float = 0.0
    kl_exact_sum: float = 0.0
    kl_original_sum: float = 0.0
    entropy_sum: float = 0.0
    clipped_sum: float = 0.0
    corrected_sum: float = 0.0
    """Number of tokens whose weight for the mismatch of sampler and trainer is not 1."""
    surrogate_sum: float = 0.0
    """Policy loss before that weight, in the advantages' unit."""
    kl_term_sum: float = 0.0
    """KL term before its coefficient."""
    expected_value_sum: float = 0.0
    """Expected value of the first candidate over all legal moves, summed over updates."""
    move_entropy_sum: float = 0.0
    """Entropy over the legal moves, mean over prompts, summed over updates."""
    kl_max: float = 0.0
    ratio_max: float = 0.0
    """Largest ratio policy / old of a token's probability, or of the sequence's with GSPO."""
    sampler_ratio_max: float = 0.0
    """Largest ratio of old and sampler probability either way, before any truncation."""
    kl_min: float = float("inf")

    @classmethod
    def of(cls, statistics: TokenStatistics, original_logprobs: Tensor | None, **terms: Tensor) -> "TokenTotals":
        """Return the totals of one micro-batch's N trained tokens, N at least 1.

        `original_logprobs` are (N,), nat. `terms` are sums and extremes of the loss's terms, by field name.
        """
        logprobs = statistics.logprobs.detach()
        sums = {
            "logprob_sum": logprobs.sum(),
            "entropy_sum": statistics.entropy.detach().sum(),
            **terms,
            **_kl_totals(statistics, original_logprobs),
        }
        # All values are read together, because each read waits for the device.
        values = torch.stack([value.float() for value in sums.values()]).tolist()
        kl_count = logprobs.numel() if "kl_sum" in sums else 0
        return cls(count=logprobs.numel(), kl_count=kl_count, **dict(zip(sums, values, strict=True)))

    @classmethod
    def total(cls, totals: "Iterable[TokenTotals]") -> "TokenTotals":
        """Return the totals of several micro-batches together."""
        parts = [cls(), *totals]
        return cls(
            **{name: sum(getattr(part, name) for part in parts) for name in SUMS},
            **{name: max(getattr(part, name) for part in parts) for name in MAXIMA},
            kl_min=min(part.kl_min for part in parts),
        )

    @property
    def kl_mean(self) -> float:
        """k3 estimate of KL(policy‖reference), nats per token; 0 without tokens."""
        return self.kl_sum / max(self.kl_count, 1)

    @property
    def kl_exact_mean(self) -> float:
        """KL(policy‖reference) over the whole vocabulary, nats per token. Guards use it, not `kl_mean`.

        One token in ten thousand may have a k3 of a thousand nats, which changes a step's mean and means nothing.
        """
        return self.kl_exact_sum / max(self.kl_count, 1)


SUMS = (
    "count",
    "kl_count",
    "logprob_sum",
    "ref_logprob_sum",
    "kl_sum",
    "kl_exact_sum",
    "kl_original_sum",
    "entropy_sum",
    "clipped_sum",
    "corrected_sum",
    "surrogate_sum",
    "kl_term_sum",
    "expected_value_sum",
    "move_entropy_sum",
)
MAXIMA = ("kl_max", "ratio_max", "sampler_ratio_max")


def _kl_totals(statistics: TokenStatistics, original_logprobs: Tensor | None) -> dict[str, Tensor]:
    """Return sums and extremes of KL, by field name of `TokenTotals`; empty without a reference."""
    if statistics.ref_logprobs is None or statistics.kl_exact is None:
        return {}
    logprobs, ref_logprobs = statistics.logprobs.detach(), statistics.ref_logprobs
    kl = kl_k3(logprobs, ref_logprobs)
    kl_original = kl if original_logprobs is None else kl_k3(logprobs, original_logprobs)
    return {
        "ref_logprob_sum": ref_logprobs.sum(),
        "kl_sum": kl.sum(),
        "kl_exact_sum": statistics.kl_exact.detach().sum(),
        "kl_original_sum": kl_original.sum(),
        "kl_min": kl.min(),
        "kl_max": kl.max(),
    }


def planned_statistics(policy: Policy, batch: TokenBatch, plan: LossPlan) -> TokenStatistics:
    """Return the statistics of a batch's trained tokens with all that the loss of the plan needs."""
    return policy.statistics(
        batch,
        temperature=plan.temperature,
        reference=plan.reference,
        entropy_gradient=plan.objective.entropy_coef > 0,
        kl_gradient=plan.kl.form is KLForm.exact,
    )


def grpo_loss(policy: Policy, micro: Batch, plan: LossPlan, statistics: TokenStatistics | None = None) -> MicroLoss:
    """Return the loss of a micro-batch and its token totals.

    If the batch has no old log-probs, the policy's own log-probs, detached, take their place: the ratio is 1, and its
    gradient is the policy gradient. `statistics` are the `planned_statistics` of the batch, if a pass has them already.
    """
    mask_BT, loss = micro.loss_mask_BT, LOSSES[plan.objective.loss]
    statistics = statistics or planned_statistics(policy, micro, plan)
    logprobs_BT = spread(statistics.logprobs, mask_BT)
    old_logprobs_BT = logprobs_BT.detach() if micro.old_logprobs_BT is None else micro.old_logprobs_BT
    surrogate = loss.surrogate(
        logprobs_BT, old_logprobs_BT, advantages_B=micro.advantages_B, loss_mask=mask_BT, clip=plan.objective.clip
    )
    correction_BT = mismatch_weights(
        old_logprobs_BT, micro.sampler_logprobs_BT, loss_mask=mask_BT, cap=plan.objective.mismatch_cap
    )
    kl_BT = _kl_term(plan, statistics, logprobs_BT, old_logprobs_BT, mask_BT)
    totals = TokenTotals.of(
        statistics,
        _original_logprobs(micro, plan),
        surrogate_sum=surrogate.per_token.detach()[mask_BT].sum(),
        kl_term_sum=kl_BT.detach()[mask_BT].sum(),
        clipped_sum=surrogate.clipped[mask_BT].sum(),
        corrected_sum=(correction_BT[mask_BT] != 1).sum(),
        ratio_max=surrogate.ratio[mask_BT].max(),
        sampler_ratio_max=(old_logprobs_BT - micro.sampler_logprobs_BT)[mask_BT].abs().max().exp(),
    )
    per_token_BT = correction_BT * surrogate.per_token + plan.kl_coef * kl_BT
    if plan.objective.entropy_coef:
        per_token_BT = per_token_BT - plan.objective.entropy_coef * spread(statistics.entropy, mask_BT)
    return MicroLoss(
        weighted_sum(per_token_BT, loss.token_weights(mask_BT, plan.sizes), mask_BT),
        totals,
        statistics.logprobs.detach(),
        statistics.ref_logprobs,
    )


def _kl_term(
    plan: LossPlan, statistics: TokenStatistics, logprobs_BT: Tensor, old_logprobs_BT: Tensor, mask_BT: Tensor
) -> Tensor:
    """Return the KL term before its coefficient, (B, T), nat; 0 without a reference."""
    if statistics.ref_logprobs is None or statistics.kl_exact is None:
        return torch.zeros_like(logprobs_BT)
    inputs = KLInputs(
        logprobs_BT,
        spread(statistics.ref_logprobs, mask_BT),
        log_ratio=logprobs_BT - old_logprobs_BT,
        kl_exact=spread(statistics.kl_exact, mask_BT),
    )
    return kl_penalty(plan.kl.form, inputs, loss_mask=mask_BT, token_clamp=TOKEN_CLAMP_NAT)


@torch.no_grad()
def _original_logprobs(micro: Batch, plan: LossPlan) -> Tensor | None:
    """Return the log-probs under the starting model, (N,), nat; None if the plan has no `original`."""
    if plan.original is None:
        return None
    return plan.original.statistics(micro, temperature=plan.temperature).logprobs

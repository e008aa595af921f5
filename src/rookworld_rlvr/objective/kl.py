"""KL(policy‖reference), estimated per token: what to report, and what to put into the loss.

Throughout, logprobs and ref_logprobs are those of tokens sampled from the policy, in nat and of one shape,
and Δ = ref_logprob - logprob. An estimator with the right value may have the wrong gradient, and the other
way round: differentiated at its sample, k1 gives zero in expectation, k2 gives ∇KL(policy‖reference), and
k3 gives ∇KL(reference‖policy), the other direction.

"Exact" is meant per position, at prefixes as they were sampled. Every per-token form, the full-vocabulary
one included, leaves out how a token changes the later states and their KL. Exact for the sequence are k1
in the reward, and k2 of the summed log-ratio.

Sources: joschu.net/blog/kl-approx, arXiv 2512.21852, arXiv 2505.17508, arXiv 2402.03300.
"""

from enum import StrEnum

import torch
from torch import Tensor

from rookworld_rlvr.objective.masked import MAX_EXPONENT_NAT, keep, masked_exp


class KLForm(StrEnum):
    """Which per-token term is optimised."""

    k2_straight_through = "k2_straight_through"
    """Value of k3, gradient of k2: one sampled token a position."""
    exact = "exact"
    """Sum over the vocabulary: no sampling noise, one more head pass for the reference."""


def kl_k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """-Δ: unbiased, of either sign, the noisiest. Its gradient is 0 in expectation: never a loss.

    Source: joschu.net/blog/kl-approx.
    """
    return logprobs - ref_logprobs


def kl_k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """½Δ²: biased in value, never negative; its gradient -Δ·∇logprob is ∇KL(policy‖reference), exactly.

    Finite for any finite log-probs. Source: joschu.net/blog/kl-approx; gradient: arXiv 2512.21852.
    """
    return 0.5 * (ref_logprobs - logprobs).square()


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """e^Δ - Δ - 1: unbiased in value, never negative, for reporting.

    Its gradient is that of KL(reference‖policy): not a loss for this KL. Δ is cut at 40 nat so that the
    value stays finite, which also ends the gradient there. Source: joschu.net/blog/kl-approx.
    """
    delta = (ref_logprobs - logprobs).clamp(max=MAX_EXPONENT_NAT)
    return torch.expm1(delta) - delta


def kl_penalty(
    form: KLForm,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    *,
    kl_exact: Tensor | None,
    log_ratio: Tensor,
    loss_mask: Tensor,
) -> Tensor:
    """The KL term of each token to add to the loss, nat, in the shape of logprobs; 0 under the mask.

    `k2_straight_through`: forward value k3, gradient -Δ·∇logprob, which in expectation over the position's
    token is ∇KL(policy‖reference). Both are weighted by the detached ratio exp(log_ratio), with log_ratio =
    logprobs - old_logprobs, so that this also holds for tokens drawn from the old policy; on-policy the
    weight is 1. `exact`: kl_exact as it is, value and gradient; the token drawn plays no part, so neither
    does the ratio. In both, the prefix is taken as sampled: see the module about what that leaves out.

    Raises ValueError when `exact` is asked for without kl_exact. Source: arXiv 2512.21852, 2505.17508.
    """
    if form is KLForm.exact:
        if kl_exact is None:
            raise ValueError("kl_exact: expected a tensor for the form exact, got None")
        return keep(kl_exact, loss_mask)
    logprobs, ref_logprobs = keep(logprobs, loss_mask), keep(ref_logprobs, loss_mask)
    weight = masked_exp(log_ratio.detach(), loss_mask)
    k2 = kl_k2(logprobs, ref_logprobs)
    return weight * (kl_k3(logprobs, ref_logprobs).detach() + (k2 - k2.detach()))

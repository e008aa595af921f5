"""KL(policy‖reference), estimated per token: estimators to report, and terms for the loss.

Throughout, logprobs and ref_logprobs are those of tokens sampled from the policy, in nat and of one shape,
and Δ = ref_logprob - logprob. An estimator with the right value may have the wrong gradient, and the other
way round: differentiated at its sample, k1 gives zero in expectation, k2 gives ∇KL(policy‖reference), and
k3 gives ∇KL(reference‖policy), the other direction.

"Exact" means exact at each position, for prefixes as they were sampled. Every per-token form, the full-vocabulary
form included, leaves out how a token changes the later states and their KL. This part is small if the later states
differ little, and it is the larger part if a text may end early (tests/objective/test_kl_sequence.py measures one).
Two forms are exact for the sequence: k1 in the reward (`sequence_kl`), and k2 of the summed log-ratio.

Sources: joschu.net/blog/kl-approx, arXiv 2512.21852, arXiv 2505.17508, arXiv 2402.03300.
"""

import math
from enum import StrEnum

import torch
from torch import Tensor

from .masked import MAX_EXPONENT_NAT, keep, masked_exp


class KLForm(StrEnum):
    """Per-token term that is optimised. All but k3_naive follow KL(policy‖reference)."""

    k2_straight_through = "k2_straight_through"
    """Value of k3, gradient of k2, of one sampled token per position. TRL's ratio-corrected k3 has, token by token, the
    same value and gradient."""
    exact = "exact"
    """Sum over the vocabulary: no sampling noise, and backward reads the reference's whole rows, not one token."""
    in_reward = "in_reward"
    """Nothing in the loss: the KL of the sequence is taken off the reward, see `sequence_kl`."""
    k3_naive = "k3_naive"
    """k3 differentiated as it is, for comparison only: follows KL(reference‖policy)."""


def kl_k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The k1 estimator -Δ: unbiased, noisy, and of either sign. Its expected gradient is 0, so it is no loss.

    Source: joschu.net/blog/kl-approx.
    """
    return logprobs - ref_logprobs


def kl_k2(logprobs: Tensor, ref_logprobs: Tensor, token_clamp: float = math.inf) -> Tensor:
    """The k2 estimator ½Δ²: biased in value, never negative. Its gradient -Δ·∇logprob is ∇KL(policy‖reference).

    Continued linearly beyond |Δ| = token_clamp, nat. Finite for any finite log-probs.
    Source: joschu.net/blog/kl-approx; gradient: arXiv 2512.21852.
    """
    delta = ref_logprobs - logprobs
    near = delta.clamp(-token_clamp, token_clamp)
    return 0.5 * near.square() + near.detach() * (delta - near)


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor, token_clamp: float = math.inf) -> Tensor:
    """e^Δ - Δ - 1: unbiased in value, never negative, for reporting.

    Its gradient is that of KL(reference‖policy): not a loss for this KL. Continued linearly beyond
    |Δ| = token_clamp and always beyond Δ = 40 nat, where e^Δ would soon overflow: the value goes on rising
    and stays finite, and the gradient is never 0 but at Δ = 0. Source: joschu.net/blog/kl-approx.
    """
    delta = ref_logprobs - logprobs
    near = delta.clamp(-token_clamp, min(token_clamp, MAX_EXPONENT_NAT))
    slope = torch.expm1(near)
    return slope - near + slope.detach() * (delta - near)


def sequence_kl(logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """Σ_t -Δ over each completion's trained tokens (B,), nat, detached: what `in_reward` takes off a reward.

    logprobs, ref_logprobs and loss_mask are (B, T), logprobs of the policy that sampled. In expectation over
    completions the value is the KL of the sequences, and as a reward its policy gradient is exactly that KL's
    gradient, later states included: k1 is the one estimator of which this holds (k3 in the reward is wrong).
    Of either sign for one completion; 0 for one without trained tokens. Assumes one policy gradient weight a
    completion: a loss that divides by its length, or a clip, bends it. Source: arXiv 2512.21852, 2505.17508.
    """
    return keep(kl_k1(logprobs, ref_logprobs).detach(), loss_mask).sum(-1)


def kl_penalty(
    form: KLForm,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    *,
    kl_exact: Tensor | None,
    log_ratio: Tensor,
    loss_mask: Tensor,
    token_clamp: float = math.inf,
) -> Tensor:
    """The KL term of each token to add to the loss, nat, in the shape of logprobs; 0 under the mask.

    log_ratio = logprobs - old_logprobs, read by value: k2_straight_through weighs by its exp, so that it holds for
    tokens drawn from the old policy too. kl_exact is the full-vocabulary KL of each position. The prefix is taken as
    sampled: see the module about what that leaves out.

    Beyond |Δ| = token_clamp, nat, above 0, a token's term is continued linearly, value f(c) + f'(c)·(Δ - c):
    one token pulls no harder than at c, and unlike a clamped value never stops pulling. This trades a bias
    for a bounded tail; infinity, the default, turns it off.

    Raises ValueError when `exact` is used without kl_exact, or on a token_clamp not above 0.
    Source: arXiv 2512.21852, 2505.17508.
    """
    if not token_clamp > 0:
        raise ValueError(f"token_clamp: expected above 0, got {token_clamp}")
    logprobs, ref_logprobs = keep(logprobs, loss_mask), keep(ref_logprobs, loss_mask)
    kl_exact = None if kl_exact is None else keep(kl_exact, loss_mask)
    log_ratio = keep(log_ratio.detach(), loss_mask)
    match form:
        case KLForm.k2_straight_through:
            # sg(r)·(sg(k3) + k2 - sg(k2)): the unbiased value, and the gradient -r·Δ·∇logprob, which in expectation
            # over the position's token is ∇KL(policy‖reference). Linear, with slope ∓c, beyond |Δ| = c.
            k2 = kl_k2(logprobs, ref_logprobs, token_clamp)
            k3 = kl_k3(logprobs, ref_logprobs, token_clamp)
            return masked_exp(log_ratio, loss_mask) * (k3.detach() + (k2 - k2.detach()))
        case KLForm.exact:
            # Σ_v p_v·(log p_v - log q_v) as it is, value and gradient; the token drawn plays no part, so neither does
            # the ratio. It needs no clamp: a token without mass under the policy adds p·log p → 0, and a token without
            # mass under the reference adds only -log q, with which both value and gradient grow linearly.
            if kl_exact is None:
                raise ValueError("kl_exact: expected a tensor for the form exact, got None")
            return kl_exact
        case KLForm.in_reward:
            # 0: the KL is part of the advantage already. See `sequence_kl`.
            return torch.zeros_like(logprobs)
        case KLForm.k3_naive:
            # k3, unweighted, as in arXiv 2402.03300. Its gradient -(e^Δ - 1)·∇logprob is in expectation that of
            # KL(reference‖policy), and its value is biased once the tokens are not the policy's own.
            return kl_k3(logprobs, ref_logprobs, token_clamp)

"""Per-token estimators of KL(policy‖reference): values to report, and terms for the loss with their coefficient.

Throughout, logprobs and ref_logprobs are those of tokens sampled from the policy, in nat and of one shape,
and Δ = ref_logprob - logprob. An estimator with the right value may have the wrong gradient, and vice versa:
differentiated at its sample, k1 gives zero in expectation, k2 gives ∇KL(policy‖reference), and
k3 gives ∇KL(reference‖policy), the other direction.

"Exact" means exact at each position, for prefixes as they were sampled. Every per-token form, the full-vocabulary
form included, leaves out how a token changes the later states and their KL. This part is small if the later states
differ little, and it is the larger part if a text may end early (tests/objective/test_kl_sequence.py measures a case).
Two forms are exact for the sequence: k1 in the reward (`sequence_kl`), and k2 of the summed log-ratio.

Sources: joschu.net/blog/kl-approx, arXiv 2512.21852, arXiv 2505.17508, arXiv 2402.03300.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from .masked import MAX_EXPONENT_NAT, keep, masked_exp


class KLForm(StrEnum):
    """Per-token KL term that is optimised. The gradients of all but k3_naive follow KL(policy‖reference)."""

    k2_straight_through = "k2_straight_through"
    """Value of k3 and gradient of k2, from one sampled token per position. TRL's ratio-corrected k3 has, token by
    token, the same value and gradient."""
    exact = "exact"
    """Sum over the vocabulary: no sampling noise, but backward reads whole rows of the reference, not one token."""
    in_reward = "in_reward"
    """No term in the loss: the KL of the sequence is subtracted from the reward, see `sequence_kl`."""
    k3_naive = "k3_naive"
    """k3 differentiated directly, for comparison only: its gradient follows KL(reference‖policy)."""
    off = "off"
    """Neither penalised nor measured. The reference is not computed, groups of zero advantage are left out, and guards
    see no KL. To measure KL without a penalty, set the coefficient to 0 instead."""


@dataclass(slots=True)
class KLConfig:
    """The KL term of the loss."""

    form: KLForm = KLForm.k2_straight_through
    """Term that is optimised."""
    coef: float = 0.05
    """Coefficient after the warm-up. 0 turns the penalty off, but KL is still measured."""
    warmup_steps: int = 0
    """Number of steps over which the coefficient rises linearly from 0 to `coef`."""

    def __post_init__(self) -> None:
        if not 0 <= self.coef < math.inf:
            raise ValueError(f"kl.coef: expected a finite number from 0 up, got {self.coef}")
        if self.warmup_steps < 0:
            raise ValueError(f"kl.warmup_steps: expected 0 or more, got {self.warmup_steps}")

    def coefficient(self, step: int) -> float:
        """Return the coefficient in force at `step` of the schedule, counted from 0."""
        if self.form is KLForm.off:
            return 0.0
        return step / self.warmup_steps * self.coef if step < self.warmup_steps else self.coef


def kl_k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Return the k1 estimator -Δ: unbiased, noisy, of either sign. Its expected gradient is 0, so it is not a loss.

    Source: joschu.net/blog/kl-approx.
    """
    return logprobs - ref_logprobs


def kl_k2(logprobs: Tensor, ref_logprobs: Tensor, token_clamp: float = math.inf) -> Tensor:
    """Return the k2 estimator ½Δ²: biased in value, never negative.

    Its gradient -Δ·∇logprob is ∇KL(policy‖reference) in expectation. It is continued linearly beyond
    |Δ| = token_clamp, nat, and is finite for any finite log-probs.
    Source: joschu.net/blog/kl-approx; gradient: arXiv 2512.21852.
    """
    delta = ref_logprobs - logprobs
    near = delta.clamp(-token_clamp, token_clamp)
    return 0.5 * near.square() + near.detach() * (delta - near)


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor, token_clamp: float = math.inf) -> Tensor:
    """Return the k3 estimator e^Δ - Δ - 1: unbiased in value, never negative, for reporting.

    Its gradient is that of KL(reference‖policy), so it is not a loss for this KL. It is continued linearly beyond
    |Δ| = token_clamp, and always beyond Δ = 40 nat, where e^Δ would soon overflow. So the value keeps rising
    and stays finite, and the gradient is 0 only at Δ = 0. Source: joschu.net/blog/kl-approx.
    """
    delta = ref_logprobs - logprobs
    near = delta.clamp(-token_clamp, min(token_clamp, MAX_EXPONENT_NAT))
    slope = torch.expm1(near)
    return slope - near + slope.detach() * (delta - near)


def sequence_kl(logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """Return Σ_t -Δ over each completion's trained tokens (B,), nat, detached; `in_reward` subtracts it from a reward.

    logprobs, ref_logprobs and loss_mask are (B, T), logprobs those of the policy that sampled. In expectation over
    completions the value is the KL of the sequences, and as a reward its policy gradient is exactly that KL's
    gradient, later states included. This holds only for the estimator k1 (k3 in the reward is wrong). The value of one
    completion has either sign, and is 0 without trained tokens. Assumes one policy gradient weight per completion: a
    loss that divides by the completion's length, or a clip, biases the gradient. Source: arXiv 2512.21852, 2505.17508.
    """
    return keep(kl_k1(logprobs, ref_logprobs).detach(), loss_mask).sum(-1)


@dataclass(frozen=True, slots=True)
class KLInputs:
    """Values of each token from which its KL term is made. All tensors have one shape; values are in nat."""

    logprobs: Tensor
    """Log-probs of the policy, with a gradient."""
    ref_logprobs: Tensor
    """Log-probs of the reference."""
    log_ratio: Tensor
    """logprobs - old_logprobs; only its value is used. k2_straight_through is weighted by its exp, so that it is also
    right for tokens drawn from the old policy."""
    kl_exact: Tensor | None = None
    """Full-vocabulary KL of each position; required by the form `exact`."""


def kl_penalty(form: KLForm, inputs: KLInputs, *, loss_mask: Tensor, token_clamp: float = math.inf) -> Tensor:
    """Return the KL term of each token to add to the loss, nat, in the shape of the inputs; 0 under the mask.

    The prefix is taken as sampled; the module's docstring says what that leaves out.

    Beyond |Δ| = token_clamp, nat, above 0, a token's term is continued linearly, value f(c) + f'(c)·(Δ - c). So one
    token pulls no harder than at c and, unlike with a clamped value, never stops pulling. This trades a bias
    for a bounded tail; infinity, the default, turns it off.

    Raises ValueError when `exact` is used without kl_exact, or on a token_clamp not above 0.
    Source: arXiv 2512.21852, 2505.17508.
    """
    if not token_clamp > 0:
        raise ValueError(f"token_clamp: expected above 0, got {token_clamp}")
    logprobs, ref_logprobs = keep(inputs.logprobs, loss_mask), keep(inputs.ref_logprobs, loss_mask)
    match form:
        case KLForm.k2_straight_through:
            # sg(r)·(sg(k3) + k2 - sg(k2)). The value is unbiased, and the gradient -r·Δ·∇logprob is, in expectation
            # over the position's token, ∇KL(policy‖reference). Linear, with slope ∓c, beyond |Δ| = c.
            k2 = kl_k2(logprobs, ref_logprobs, token_clamp)
            k3 = kl_k3(logprobs, ref_logprobs, token_clamp)
            return masked_exp(inputs.log_ratio.detach(), loss_mask) * (k3.detach() + (k2 - k2.detach()))
        case KLForm.exact:
            # Σ_v p_v·(log p_v - log q_v), both as value and for the gradient. The drawn token does not matter, so no
            # ratio is needed. No clamp is needed either: a token without mass under the policy adds p·log p → 0, and a
            # token without mass under the reference adds only -log q, with which value and gradient grow linearly.
            if inputs.kl_exact is None:
                raise ValueError("kl_exact: expected a tensor for the form exact, got None")
            return keep(inputs.kl_exact, loss_mask)
        case KLForm.in_reward | KLForm.off:
            # With in_reward the KL is already part of the advantage. See `sequence_kl`.
            return torch.zeros_like(logprobs)
        case KLForm.k3_naive:
            # k3, unweighted, as in arXiv 2402.03300. Its gradient -(e^Δ - 1)·∇logprob is in expectation that of
            # KL(reference‖policy), and its value is biased if the tokens were not sampled from the current policy.
            return kl_k3(logprobs, ref_logprobs, token_clamp)

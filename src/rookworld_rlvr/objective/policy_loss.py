"""Surrogates, one term per token: the clipped one of PPO and GRPO, CISPO and GSPO."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .masked import keep, masked_exp


@dataclass(slots=True)
class ClipConfig:
    """Bounds on the ratio of new to old probability. Raises ValueError for a bound out of its range."""

    low: float = 0.2
    """The ratio's lower bound is 1 - low. Above 0 and at most 1, which turns the lower bound off."""
    high: float = 0.28
    """The ratio's upper bound is 1 + high. Above 0; infinity turns the upper bound off. By default larger than
    low, so that rare tokens can grow (arXiv 2503.14476)."""

    def __post_init__(self) -> None:
        if not 0 < self.low <= 1:
            raise ValueError(f"objective.clip.low: expected above 0 and at most 1, got {self.low}")
        if not self.high > 0:
            raise ValueError(f"objective.clip.high: expected above 0, got {self.high}")


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """Surrogate of each token, and the values that are reported about it. Every tensor has shape (B, T)."""

    per_token: Tensor
    """Loss to minimise, in the advantages' unit; 0 under the mask."""
    ratio: Tensor
    """policy / old probability of the token, or of the sequence if the surrogate uses that; detached; 1 under
    the mask."""
    clipped: Tensor
    """True if a bound is in effect: the token gets no gradient, or with cispo a bounded one. False under the
    mask."""


def clipped_policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, *, advantages_B: Tensor, loss_mask: Tensor, clip: ClipConfig
) -> PolicyLoss:
    """Return -min(r·A, clip(r, 1 - low, 1 + high)·A) for each token, with r = policy / old probability.

    logprobs, old_logprobs (nat) and loss_mask (bool) are (B, T); a completion's advantage A applies to each
    of its tokens. On-policy r is 1 and the gradient -A·∇logprob. The clip is in effect only if a further change would
    be rewarded: r too high at A > 0, too low at A < 0. An advantage of 0 gives 0 and no gradient.
    Assumes that the ratio of the prefix may be left out: the tokens' ratios correct each token, not the states in which
    it is drawn.

    The log-ratio is masked before exp, so nothing under the mask affects value or gradient. It is clamped at 40 nat,
    so that the loss stays finite and guards can report it. Raises ValueError on shapes that disagree.
    Source: arXiv 1707.06347, 2402.03300; separate bounds: arXiv 2503.14476.
    """
    _check_shapes(logprobs, old_logprobs, advantages_B)
    ratio = masked_exp(logprobs - old_logprobs, loss_mask)
    return clipped_surrogate(ratio, advantages_B=advantages_B, loss_mask=loss_mask, clip=clip)


def cispo_policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, *, advantages_B: Tensor, loss_mask: Tensor, clip: ClipConfig
) -> PolicyLoss:
    """Return -sg(clip(r, 1 - low, 1 + high))·A·logprob for each token, with r = policy / old probability
    and sg the stop-gradient; shapes and units as in `clipped_policy_loss`.

    The gradient is -clip(r)·A·∇logprob: REINFORCE with a bounded importance weight. Rare tokens at which the reasoning
    changes keep the gradient that PPO's clip would remove. In exchange, nothing stops a token whose
    probability has moved far enough. The loss value is not informative: it depends on the level of the log-probs.

    On-policy the weight is 1 and the gradient is that of the clipped surrogate. An advantage of 0 gives 0. The paper
    tunes only the upper bound; low = 1 turns the lower one off. Raises ValueError on shapes that disagree.
    Source: arXiv 2506.13585.
    """
    _check_shapes(logprobs, old_logprobs, advantages_B)
    ratio = masked_exp((logprobs - old_logprobs).detach(), loss_mask)
    weight = ratio.clamp(1 - clip.low, 1 + clip.high)
    advantages_B1 = advantages_B.unsqueeze(-1)
    return PolicyLoss(
        per_token=-weight * advantages_B1 * keep(logprobs, loss_mask),
        ratio=ratio,
        clipped=(weight != ratio) & (advantages_B1 != 0),
    )


def gspo_policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, *, advantages_B: Tensor, loss_mask: Tensor, clip: ClipConfig
) -> PolicyLoss:
    """Return -min(s·A, clip(s, 1 - low, 1 + high)·A) at every trained token of a completion, with
    s = exp(mean over its trained tokens of (logprob - old_logprob)); shapes as in `clipped_policy_loss`.

    The gradient flows through s, a function of all tokens of the completion. Each token carries the term of the
    whole sequence, so that the mean over a completion's tokens, then over completions, is the paper's loss.
    `ratio` and `clipped` are those of the sequence, broadcast. On-policy s is 1, and this mean has the same
    gradient as GRPO's mean over each completion.

    Assumes that each row is one whole completion, because a part of it would have another ratio. s is a geometric mean
    and changes far less than a token's ratio, so the paper clips at 3e-4 and 4e-4, not at 0.2. A row without trained
    tokens has s = 1 and gives 0. Raises ValueError on shapes that disagree. Source: arXiv 2507.18071.
    """
    _check_shapes(logprobs, old_logprobs, advantages_B)
    lengths_B1 = loss_mask.sum(-1, keepdim=True).clamp(min=1)
    mean_B1 = keep(logprobs - old_logprobs, loss_mask).sum(-1, keepdim=True) / lengths_B1
    ratio = masked_exp(mean_B1.expand_as(logprobs), loss_mask)
    return clipped_surrogate(ratio, advantages_B=advantages_B, loss_mask=loss_mask, clip=clip)


def clipped_surrogate(ratio: Tensor, *, advantages_B: Tensor, loss_mask: Tensor, clip: ClipConfig) -> PolicyLoss:
    """Return the lower of the unclipped and the clipped surrogate, negated.

    The ratio (B, T) must be differentiable, at least 0, and finite also under the mask.
    """
    advantages_B1 = advantages_B.unsqueeze(-1)
    free = ratio * advantages_B1
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high) * advantages_B1
    surrogate = torch.minimum(free, bounded)
    return PolicyLoss(per_token=keep(-surrogate, loss_mask), ratio=ratio.detach(), clipped=bounded < free)


def _check_shapes(logprobs: Tensor, old_logprobs: Tensor, advantages_B: Tensor) -> None:
    """Raise ValueError unless the log-probs are both (B, T) and the advantages (B,)."""
    if logprobs.dim() != 2 or advantages_B.shape != logprobs.shape[:1] or old_logprobs.shape != logprobs.shape:
        raise ValueError(
            f"expected logprobs and old_logprobs (B, T) and advantages (B,), got {tuple(logprobs.shape)}, "
            f"{tuple(old_logprobs.shape)} and {tuple(advantages_B.shape)}"
        )

"""The clipped surrogate of PPO and GRPO, one term a token, and what every surrogate shares."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .masked import keep, masked_exp


@dataclass(slots=True)
class ClipConfig:
    """Bounds of the change of a probability per batch. Raises ValueError on bounds that never bind or always do."""

    clip_low: float = 0.2
    """The ratio counts down to 1 - clip_low; above 0, at most 1 (which turns the lower bound off)."""
    clip_high: float = 0.28
    """The ratio counts up to 1 + clip_high; above 0, infinity turns the upper bound off. Wider than
    clip_low, so that rare tokens can grow (arXiv 2503.14476)."""

    def __post_init__(self) -> None:
        if not 0 < self.clip_low <= 1:
            raise ValueError(f"clip_low: expected above 0 and at most 1, got {self.clip_low}")
        if not self.clip_high > 0:
            raise ValueError(f"clip_high: expected above 0, got {self.clip_high}")


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The surrogate of each token and what its report needs. Every tensor has shape (B, T)."""

    per_token: Tensor
    """Loss to minimise, in the advantages' unit; 0 under the mask."""
    ratio: Tensor
    """policy / old probability of the token, or of the sequence where the surrogate works on it; detached;
    1 under the mask."""
    clipped: Tensor
    """True where a bound binds: the token gets no gradient, or under cispo a bounded one. False under the
    mask."""


def clipped_policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, *, advantages_B: Tensor, loss_mask: Tensor, clip: ClipConfig
) -> PolicyLoss:
    """-min(r·A, clip(r, 1 - clip_low, 1 + clip_high)·A) for each token, with r = policy / old probability.

    logprobs, old_logprobs (nat) and loss_mask (bool) are (B, T); a completion's advantage A holds for each
    of its tokens. On-policy r is 1 and the gradient -A·∇logprob. The clip binds only where moving on would
    be rewarded: r too high at A > 0, too low at A < 0. An advantage of 0 gives 0 and no gradient.
    Assumes that the prefix's own ratio may be left out: the tokens' ratios correct each token, not the states it is
    drawn in.

    The log-ratio is masked before exp, so nothing under the mask reaches value or gradient. Beyond 40 nat
    it is cut: the loss stays finite, for the guard to see. Raises ValueError on shapes that disagree.
    Source: arXiv 1707.06347, 2402.03300; separate bounds: arXiv 2503.14476.
    """
    check_shapes(logprobs, old_logprobs, advantages_B)
    ratio = masked_exp(logprobs - old_logprobs, loss_mask)
    return pessimistic(ratio, advantages_B=advantages_B, loss_mask=loss_mask, clip=clip)


def pessimistic(ratio: Tensor, *, advantages_B: Tensor, loss_mask: Tensor, clip: ClipConfig) -> PolicyLoss:
    """The lower of the free and the clipped surrogate, negated, for a differentiable ratio (B, T) of at
    least 0, finite under the mask too.
    """
    advantages_B1 = advantages_B.unsqueeze(-1)
    free = ratio * advantages_B1
    bounded = ratio.clamp(1 - clip.clip_low, 1 + clip.clip_high) * advantages_B1
    surrogate = torch.minimum(free, bounded)
    return PolicyLoss(per_token=keep(-surrogate, loss_mask), ratio=ratio.detach(), clipped=bounded < free)


def check_shapes(logprobs: Tensor, old_logprobs: Tensor, advantages_B: Tensor) -> None:
    """Raises ValueError unless the log-probs are both (B, T) and the advantages (B,)."""
    if logprobs.dim() != 2 or advantages_B.shape != logprobs.shape[:1] or old_logprobs.shape != logprobs.shape:
        raise ValueError(
            f"expected logprobs and old_logprobs (B, T) and advantages (B,), got {tuple(logprobs.shape)}, "
            f"{tuple(old_logprobs.shape)} and {tuple(advantages_B.shape)}"
        )

"""GSPO: one ratio for the whole completion, which is clipped as a whole."""

from torch import Tensor

from .masked import keep, masked_exp
from .policy_loss import ClipConfig, PolicyLoss, check_shapes, clipped_surrogate


def gspo_policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, *, advantages_B: Tensor, loss_mask: Tensor, clip: ClipConfig
) -> PolicyLoss:
    """Return -min(s·A, clip(s, 1 - clip_low, 1 + clip_high)·A) at every trained token of a completion, with
    s = exp(mean over its trained tokens of (logprob - old_logprob)); shapes as in `clipped_policy_loss`.

    The gradient flows through s, a function of all tokens of the completion. Each token carries the term of the
    whole sequence, so that the mean over a completion's tokens, then over completions, is the paper's loss.
    `ratio` and `clipped` are those of the sequence, broadcast. On-policy s is 1, and this mean has the same
    gradient as GRPO's mean over each completion.

    Assumes that each row is one whole completion, because a part of it would have another ratio. s is a geometric mean
    and changes far less than a token's ratio, so the paper clips at 3e-4 and 4e-4, not at 0.2. A row without trained
    tokens has s = 1 and gives 0. Raises ValueError on shapes that disagree. Source: arXiv 2507.18071.
    """
    check_shapes(logprobs, old_logprobs, advantages_B)
    lengths_B1 = loss_mask.sum(-1, keepdim=True).clamp(min=1)
    mean_B1 = keep(logprobs - old_logprobs, loss_mask).sum(-1, keepdim=True) / lengths_B1
    ratio = masked_exp(mean_B1.expand_as(logprobs), loss_mask)
    return clipped_surrogate(ratio, advantages_B=advantages_B, loss_mask=loss_mask, clip=clip)

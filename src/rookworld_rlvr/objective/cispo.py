"""CISPO: the clipped ratio is a weight, so no token loses its gradient."""

from torch import Tensor

from .masked import keep, masked_exp
from .policy_loss import ClipConfig, PolicyLoss, check_shapes


def cispo_policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, *, advantages_B: Tensor, loss_mask: Tensor, clip: ClipConfig
) -> PolicyLoss:
    """Return -sg(clip(r, 1 - clip_low, 1 + clip_high))·A·logprob for each token, with r = policy / old probability
    and sg the stop-gradient; shapes and units as in `clipped_policy_loss`.

    The gradient is -clip(r)·A·∇logprob: REINFORCE with a bounded importance weight. Rare tokens at which the reasoning
    changes keep the gradient that PPO's clip would remove. In exchange, nothing stops a token whose
    probability has moved far enough. The loss value is not informative: it depends on the level of the log-probs.

    On-policy the weight is 1 and the gradient is that of the clipped surrogate. An advantage of 0 gives 0. The paper
    tunes only the upper bound; clip_low = 1 turns the lower one off. Raises ValueError on shapes that disagree.
    Source: arXiv 2506.13585.
    """
    check_shapes(logprobs, old_logprobs, advantages_B)
    ratio = masked_exp((logprobs - old_logprobs).detach(), loss_mask)
    weight = ratio.clamp(1 - clip.clip_low, 1 + clip.clip_high)
    advantages_B1 = advantages_B.unsqueeze(-1)
    return PolicyLoss(
        per_token=-weight * advantages_B1 * keep(logprobs, loss_mask),
        ratio=ratio,
        clipped=(weight != ratio) & (advantages_B1 != 0),
    )

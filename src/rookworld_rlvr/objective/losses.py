"""Available losses: each is a surrogate for each token, and weights that turn per-token terms into an update's loss.

An update's loss is Σ weights·per_token over its tokens. The weights are functions of sizes of the whole update or step,
never of the micro-batch in which they are computed. So the losses and gradients of the micro-batches add up to those of
the whole batch, for micro-batches of any size.

In every function loss_mask_BT is boolean and each of its rows is one whole completion. The weights are (B, T) float32,
0 under the mask; a row without trained tokens has no weight.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from .masked import keep
from .policy_loss import PolicyLoss, cispo_policy_loss, clipped_policy_loss, gspo_policy_loss


@dataclass(frozen=True, slots=True)
class LossSizes:
    """Sizes by which a loss may be divided, the same for every micro-batch of an update.

    Raises ValueError for a size that is not finite and above 0: an update without trained tokens has no loss,
    and the caller must skip it.
    """

    completions: int
    """Completions with a trained token in this update."""
    tokens_per_update: float
    """Trained tokens of the whole step, divided by the number of updates in one pass over the step. Not the tokens of
    this update: an update with few tokens would then change the policy as much as one with many."""
    max_tokens: int
    """Number of tokens of the longest completion that is allowed."""

    def __post_init__(self) -> None:
        for name in ("completions", "tokens_per_update", "max_tokens"):
            if not 0 < (size := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: expected finite and above 0, got {size}")


def per_completion(loss_mask_BT: Tensor, sizes: LossSizes) -> Tensor:
    """Return 1 / (completions · own length): each completion counts once, whatever its length.

    A token of a short completion weighs more, so of two right answers the shorter is learned faster, and of two wrong
    answers the longer is forgotten more slowly (arXiv 2503.20783). Source: arXiv 2402.03300.
    """
    lengths_B1 = loss_mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return loss_mask_BT.float() / (sizes.completions * lengths_B1)


def per_step_token(loss_mask_BT: Tensor, sizes: LossSizes) -> Tensor:
    """Return 1 / tokens of the step's average update: each token of the step counts once, whichever update it is in.
    Source: arXiv 2503.14476."""
    return loss_mask_BT.float() / sizes.tokens_per_update


def per_token_budget(loss_mask_BT: Tensor, sizes: LossSizes) -> Tensor:
    """Return 1 / (completions · max_tokens), a constant: on-policy the gradient is that of the expected reward
    itself, without a bias by length. It shrinks as max_tokens grows. Source: Dr. GRPO, arXiv 2503.20783."""
    return loss_mask_BT.float() / (sizes.completions * sizes.max_tokens)


def weighted_sum(per_token: Tensor, weights_BT: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """Return Σ weights·per_token over the trained tokens, a scalar in the terms' unit; all three are (B, T).

    An empty mask gives 0 with a zero gradient. Values under the mask, including NaN, affect neither value nor
    gradient. Raises as `keep` does for a mask that does not fit both.
    """
    return (keep(per_token, loss_mask_BT) * keep(weights_BT, loss_mask_BT)).sum()


class LossKind(StrEnum):
    """Loss that is minimised. With one update per step the surrogates agree, and only the token weights differ. Then
    dapo and cispo have the same gradient, and so do grpo and gspo."""

    grpo = "grpo"
    """Tokens are clipped, and each completion counts once: biased by length (arXiv 2402.03300)."""
    dr_grpo = "dr_grpo"
    """Tokens are clipped, and the sum is divided by a constant: no bias by length (arXiv 2503.20783)."""
    dapo = "dapo"
    """Tokens are clipped, and each token of the step counts once (arXiv 2503.14476)."""
    cispo = "cispo"
    """Importance weights are clipped instead of tokens, and each token of the step counts once (arXiv 2506.13585)."""
    gspo = "gspo"
    """One clipped ratio per completion, and each completion counts once (arXiv 2507.18071)."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss: Σ token_weights · surrogate.per_token, which `weighted_sum` computes."""

    surrogate: Callable[..., PolicyLoss]
    """(logprobs, old_logprobs, …) → PolicyLoss, each (B, T); with the arguments of `clipped_policy_loss`."""
    token_weights: Callable[[Tensor, LossSizes], Tensor]
    """(loss mask (B, T), sizes) → weights (B, T), float32, 0 under the mask."""


LOSSES: Mapping[LossKind, Loss] = {
    LossKind.grpo: Loss(clipped_policy_loss, per_completion),
    LossKind.dr_grpo: Loss(clipped_policy_loss, per_token_budget),
    LossKind.dapo: Loss(clipped_policy_loss, per_step_token),
    LossKind.cispo: Loss(cispo_policy_loss, per_step_token),
    LossKind.gspo: Loss(gspo_policy_loss, per_completion),
}

"""Available losses: each is a surrogate for each token, and weights of the tokens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

from .policy_loss import PolicyLoss, cispo_policy_loss, clipped_policy_loss, gspo_policy_loss
from .token_weights import LossSizes, per_completion, per_step_token, per_token_budget


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

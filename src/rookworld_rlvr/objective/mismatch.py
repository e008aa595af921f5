"""Weights that correct for completions sampled by another engine than the one that trains.

The sampler and the trainer round differently, so even an "on-policy" completion is drawn from a slightly different
policy. Multiplying a token's loss by old / sampler probability corrects for that. The ratio is truncated at a cap: a
small bias for a bounded variance.

Source: truncated importance sampling, Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL
Training", https://fengyao.notion.site/off-policy-rl (no arXiv id). TRL 1.16 has it as
`vllm_importance_sampling_mode=token_truncate`.
"""

import torch
from torch import Tensor

from .masked import keep, masked_exp


def mismatch_weights(old_logprobs: Tensor, sampler_logprobs: Tensor, *, loss_mask: Tensor, cap: float) -> Tensor:
    """Return the weight min(old / sampler, cap) of each token's loss (B, T), detached; 1 under the mask.

    old_logprobs are the trainer's and sampler_logprobs the sampler's, of the same weights and tokens, (B, T), nat.
    Equal log-probs give exactly 1. The log-ratio is masked before it is exponentiated, and clamped at 40 nat. A cap of
    0 turns the correction off: every weight is 1. Infinity leaves the ratio as it is.

    Raises ValueError on shapes that disagree. Source: see the module.
    """
    if old_logprobs.dim() != 2 or old_logprobs.shape != sampler_logprobs.shape:
        raise ValueError(
            f"expected old and sampler logprobs (B, T), got {tuple(old_logprobs.shape)} and "
            f"{tuple(sampler_logprobs.shape)}"
        )
    log_ratio = keep((old_logprobs - sampler_logprobs).detach(), loss_mask)
    if not cap:
        return torch.ones_like(log_ratio)
    # The ratio is 1 under the mask, and a cap above 1 does not change that.
    return masked_exp(log_ratio, loss_mask).clamp(max=cap)

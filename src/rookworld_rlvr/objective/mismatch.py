"""Weights that correct for completions sampled by another engine than the one that trains.

The sampler and the trainer round differently, so even an "on-policy" completion is drawn from a slightly
different policy. Multiplying a token's loss by old / sampler probability corrects for that. The ratio's tail
is either truncated (a small bias for a bounded variance) or masked (tokens that differ too much are not used).
A token's own ratio ignores that the sampler also drew its prefix. The ratio of the sequence, the product of
its tokens' ratios, accounts for that, but has the larger variance.

Source: truncation, Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL
Training", https://fengyao.notion.site/off-policy-rl (no arXiv id); masks, https://ringtech.notion.site/icepop;
token versus sequence, https://richardli.xyz/rl-collapse. TRL 1.16 has these modes as `vllm_importance_sampling_mode`.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from .masked import keep, masked_exp


class MismatchMode(StrEnum):
    """Treatment of the ratio old / sampler probability."""

    off = "off"
    """No correction: every weight is 1."""
    token_truncate = "token_truncate"
    """min(ratio, cap), for each token separately."""
    token_mask = "token_mask"
    """The ratio, or 0 if it is above the cap or below 1 / cap, for each token separately (IcePop)."""
    sequence_truncate = "sequence_truncate"
    """min(ratio, cap), with the product of the ratios of a completion's trained tokens as ratio."""
    sequence_mask = "sequence_mask"
    """That product, or 0 if it is above the cap or below 1 / cap, which drops the completion."""


@dataclass(slots=True)
class MismatchConfig:
    """Correction for a sampler that differs from the trainer. Raises ValueError on a cap out of range."""

    mode: MismatchMode = MismatchMode.token_truncate
    """Treatment of the ratio old / sampler probability."""
    cap: float = 2.0
    """Largest weight, above 1; infinity leaves the ratio as it is. Not used by `off`."""

    def __post_init__(self) -> None:
        if not self.cap > 1:
            raise ValueError(f"cap: expected above 1, got {self.cap}")


def mismatch_weights(
    old_logprobs: Tensor, sampler_logprobs: Tensor, *, loss_mask: Tensor, config: MismatchConfig
) -> Tensor:
    """Return the weight of each token's loss (B, T), 0 to cap, detached; 1 under the mask.

    old_logprobs are the trainer's and sampler_logprobs the sampler's, of the same weights and tokens, (B, T),
    nat; each row is one whole completion. Equal log-probs give exactly 1. The log-ratio is masked before it
    is summed or exponentiated, and clamped at 40 nat. A sequence mode gives all trained tokens of a completion
    the same weight.

    Raises ValueError on shapes that disagree. Source: see the module.
    """
    if old_logprobs.dim() != 2 or old_logprobs.shape != sampler_logprobs.shape:
        raise ValueError(
            f"expected old and sampler logprobs (B, T), got {tuple(old_logprobs.shape)} and "
            f"{tuple(sampler_logprobs.shape)}"
        )
    log_ratio = keep((old_logprobs - sampler_logprobs).detach(), loss_mask)
    if config.mode is MismatchMode.off:
        return torch.ones_like(log_ratio)
    if config.mode in (MismatchMode.sequence_truncate, MismatchMode.sequence_mask):
        log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    # The ratio is 1 under the mask, and a cap above 1 does not change that.
    ratio = masked_exp(log_ratio, loss_mask)
    if config.mode in (MismatchMode.token_truncate, MismatchMode.sequence_truncate):
        return ratio.clamp(max=config.cap)
    return torch.where((ratio < 1 / config.cap) | (ratio > config.cap), 0.0, ratio)

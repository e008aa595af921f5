"""The mathematics of the objective: pure torch, nothing of chess.

Read in this order: `masked` (what counts), `logprobs` (what the model says), `advantages` (what was good),
`policy_loss` (what to do about it), `kl` (how far to go).
"""

from rookworld_rlvr.objective.advantages import (
    AdvantageConfig,
    AdvantageScale,
    group_advantages,
    zero_variance_fraction,
)
from rookworld_rlvr.objective.kl import KLForm, kl_k1, kl_k2, kl_k3, kl_penalty
from rookworld_rlvr.objective.logprobs import Head, TokenStatistics, token_statistics
from rookworld_rlvr.objective.masked import (
    MAX_EXPONENT_NAT,
    keep,
    masked_exp,
    masked_max,
    masked_mean,
    masked_min,
    masked_sum,
)
from rookworld_rlvr.objective.policy_loss import ClipConfig, PolicyLoss, clipped_policy_loss, normalise

__all__ = [
    "MAX_EXPONENT_NAT",
    "AdvantageConfig",
    "AdvantageScale",
    "ClipConfig",
    "Head",
    "KLForm",
    "PolicyLoss",
    "TokenStatistics",
    "clipped_policy_loss",
    "group_advantages",
    "keep",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "kl_penalty",
    "masked_exp",
    "masked_max",
    "masked_mean",
    "masked_min",
    "masked_sum",
    "normalise",
    "token_statistics",
    "zero_variance_fraction",
]

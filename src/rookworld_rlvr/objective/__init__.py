"""Mathematics of the objective in pure torch, independent of chess.

Read in this order: `masked` (values under a loss mask), `logprobs`, `advantages`, `policy_loss` (the surrogates),
`losses` (their sums over tokens), `kl`, `mismatch` (importance weights between the sampler and the
trainer) and `config` (the options).
"""

from .advantages import AdvantageConfig, AdvantageScale, group_advantages, zero_variance_groups
from .config import CollectionConfig, ObjectiveConfig, Truncated, ZeroVariance
from .kl import KLConfig, KLForm, KLInputs, kl_k1, kl_k2, kl_k3, kl_penalty, sequence_kl
from .logprobs import Head, ReferenceStates, StatisticsOptions, TokenStatistics, token_statistics
from .losses import LOSSES, LossKind, LossSizes, weighted_sum
from .masked import keep, masked_exp
from .mismatch import mismatch_weights
from .policy_loss import ClipConfig, cispo_policy_loss, clipped_policy_loss, gspo_policy_loss

__all__ = [
    "LOSSES",
    "AdvantageConfig",
    "AdvantageScale",
    "ClipConfig",
    "CollectionConfig",
    "Head",
    "KLConfig",
    "KLForm",
    "KLInputs",
    "LossKind",
    "LossSizes",
    "ObjectiveConfig",
    "ReferenceStates",
    "StatisticsOptions",
    "TokenStatistics",
    "Truncated",
    "ZeroVariance",
    "cispo_policy_loss",
    "clipped_policy_loss",
    "group_advantages",
    "gspo_policy_loss",
    "keep",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "kl_penalty",
    "masked_exp",
    "mismatch_weights",
    "sequence_kl",
    "token_statistics",
    "weighted_sum",
    "zero_variance_groups",
]

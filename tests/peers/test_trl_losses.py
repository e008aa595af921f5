"""Every loss that TRL has too: value and gradient of a real GRPOTrainer and of our training step agree.

Prompts are of equal length here, because TRL's log-probs are wrong where they are not (test_trl_padding).
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rookworld_rlvr.objective import ClipConfig, KLForm, LossKind
from rookworld_rlvr.training.context import StepConfig
from rookworld_rlvr.training.kl_control import KLConfig

pytest.importorskip("trl", reason="needs trl: scripts/setup.sh peers makes an environment that has it")

TOLERANCE = 1e-5
# What would pass for agreement by being small: gradients here are far above the tolerance.
LEAST_GRADIENT = 0.01
NAIVE, CORRECTED = {"use_bias_correction_kl": False}, {"use_bias_correction_kl": True}

SHARED = {
    "grpo": ({"loss_type": "grpo"}, StepConfig(loss=LossKind.grpo)),
    "bnpo": ({"loss_type": "bnpo"}, StepConfig(loss=LossKind.bnpo)),
    "dr_grpo": ({"loss_type": "dr_grpo"}, StepConfig(loss=LossKind.dr_grpo)),
    "dapo": ({"loss_type": "dapo"}, StepConfig(loss=LossKind.dapo)),
    # TRL bounds the weight from above alone, and by the ratio itself instead of by its distance from 1.
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.1},
        StepConfig(loss=LossKind.cispo, clip=ClipConfig(clip_low=1.0, clip_high=0.1)),
    ),
    # A sequence's ratio moves less than a token's, so the bounds are tighter.
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05, "epsilon_high": 0.08},
        StepConfig(loss=LossKind.gspo, clip=ClipConfig(clip_low=0.05, clip_high=0.08)),
    ),
    "symmetric clip": (
        {"loss_type": "grpo", "epsilon": 0.1, "epsilon_high": None},
        StepConfig(loss=LossKind.grpo, clip=ClipConfig(clip_low=0.1, clip_high=0.1)),
    ),
    "dual clip": (
        {"loss_type": "dapo", "delta": 1.5},
        StepConfig(loss=LossKind.dapo, clip=ClipConfig(dual_clip=1.5)),
    ),
    "dual clip of sequences": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05, "delta": 1.3},
        StepConfig(loss=LossKind.gspo, clip=ClipConfig(clip_low=0.05, dual_clip=1.3)),
    ),
}

"""Losses that TRL has too: a real GRPOTrainer and our training step agree in value and gradient.

Prompts have equal lengths here, because TRL's log-probs are wrong if they differ (see test_trl_padding).
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rookworld_rlvr.objective import ClipConfig, KLConfig, KLForm, LossKind, ObjectiveConfig

pytest.importorskip("trl", reason="needs trl: scripts/setup.sh peers makes an environment that has it")

TOLERANCE = 1e-5
# Gradients must be far above the tolerance, so that they do not agree only because they are small.
LEAST_GRADIENT = 0.01


def uncorrected(loss: LossKind, low: float = 0.2, high: float = 0.28) -> ObjectiveConfig:
    """Return the objective with these clip bounds and without a correction of the sampler's rounding."""
    return ObjectiveConfig(loss=loss, clip=ClipConfig(low, high), mismatch_cap=0.0)


LOSSES = {
    "grpo": ({"loss_type": "grpo"}, uncorrected(LossKind.grpo)),
    "dr_grpo": ({"loss_type": "dr_grpo"}, uncorrected(LossKind.dr_grpo)),
    "dapo": ({"loss_type": "dapo"}, uncorrected(LossKind.dapo)),
    # TRL clips the weight only from above, and its bound is the ratio itself instead of the distance from 1.
    "cispo": ({"loss_type": "cispo", "epsilon_high": 1.1}, uncorrected(LossKind.cispo, low=1.0, high=0.1)),
    # A sequence's ratio moves less than a token's, so the bounds are tighter.
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05, "epsilon_high": 0.08},
        uncorrected(LossKind.gspo, low=0.05, high=0.08),
    ),
    "symmetric clip": (
        {"loss_type": "grpo", "epsilon": 0.1, "epsilon_high": None},
        uncorrected(LossKind.grpo, low=0.1, high=0.1),
    ),
}

# For each token, TRL's ratio-corrected k3 has the value and gradient of our default form.
KL_FORMS = {
    KLForm.k3_naive: {"use_bias_correction_kl": False},
    KLForm.k2_straight_through: {"use_bias_correction_kl": True},
}
# With sequence ratios TRL corrects the KL by the sequence's ratio; see the test of gspo below.
PAIRS = [(loss, form) for loss in LOSSES for form in KL_FORMS if loss != "gspo" or form is KLForm.k3_naive]
TOKEN_KL = KLConfig(coef=0.05, form=KLForm.k2_straight_through)
NAIVE_KL = KLConfig(coef=0.05, form=KLForm.k3_naive)


@pytest.fixture
def old_logprobs(ours: Any) -> Callable[[Any], torch.Tensor]:
    """Log-probs of an older policy, so far from the current one that each clip bound binds somewhere."""

    def make(rollouts: Any) -> torch.Tensor:
        now_N = ours.logprobs(ours.batch(rollouts, torch.zeros(len(rollouts.completions))))
        return now_N + 0.4 * torch.randn(now_N.shape, generator=torch.Generator().manual_seed(3))

    return make


@pytest.fixture
def compare(ours: Any, sample: Any, make_theirs: Any, old_logprobs: Any) -> Callable[..., Any]:
    """Outcomes of TRL and of our step on the same off-policy batch."""

    def run(settings: dict[str, Any], objective: ObjectiveConfig, kl: KLConfig = TOKEN_KL) -> tuple[Any, Any]:
        rollouts = sample()
        old_N = old_logprobs(rollouts)
        theirs = make_theirs(rollouts, **settings)
        inputs = theirs.inputs(old_N)
        batch = ours.batch(rollouts, inputs["advantages"], old_N)
        return theirs.loss(inputs), ours.loss(batch, objective, kl)

    return run


def rows_of(inputs: dict[str, Any], rows: slice) -> dict[str, Any]:
    """Return some rows of a TRL batch. Its number of tokens stays that of the whole batch."""
    return {name: value[rows] if value.dim() else value for name, value in inputs.items()}


@pytest.mark.parametrize(("loss", "form"), PAIRS)
def test_loss_and_gradient_equal_trl(compare: Any, loss: str, form: KLForm) -> None:
    settings, objective = LOSSES[loss]
    theirs, ours = compare(settings | KL_FORMS[form], objective, KLConfig(coef=0.05, form=form))
    assert theirs.distance(ours) < TOLERANCE
    assert theirs.gradient_max > LEAST_GRADIENT
    assert all(0 < fraction < 1 for fraction in theirs.clipped + ours.clipped)


def test_gspo_with_ratio_corrected_kl_differs_from_trl(compare: Any) -> None:
    """TRL corrects the KL by the sequence's ratio, and we correct it by the token's.

    Ours stays unbiased per position, because each token was drawn with its own old probability.
    """
    settings, objective = LOSSES["gspo"]
    theirs, ours = compare(settings | {"use_bias_correction_kl": True}, objective)
    assert theirs.distance(ours) > 100 * TOLERANCE


@pytest.mark.parametrize("loss", list(LOSSES))
def test_trl_micro_batches_sum_to_our_update(
    ours: Any, sample: Any, make_theirs: Any, old_logprobs: Any, loss: str
) -> None:
    settings, objective = LOSSES[loss]
    rollouts = sample()
    old_N = old_logprobs(rollouts)
    cut = {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 2, "use_bias_correction_kl": False}
    theirs = make_theirs(rollouts, **settings, **cut)
    inputs = theirs.inputs(old_N)
    halves = [theirs.loss(rows_of(inputs, rows), accumulation=2) for rows in (slice(0, 6), slice(6, 12))]
    batch = ours.batch(rollouts, inputs["advantages"], old_N)
    whole = ours.loss(batch, objective, NAIVE_KL)
    assert halves[0].plus(halves[1]).distance(whole) < TOLERANCE


@pytest.mark.parametrize("loss", ["dapo", "cispo"])
def test_partial_update_divides_by_average_tokens_per_update_like_trl(
    ours: Any, sample: Any, make_theirs: Any, old_logprobs: Any, loss: str
) -> None:
    settings, objective = LOSSES[loss]
    rollouts = sample()
    old_N = old_logprobs(rollouts)
    theirs = make_theirs(rollouts, **settings, per_device_train_batch_size=6, steps_per_generation=2)
    inputs = theirs.inputs(old_N)
    part, tokens_per_update = slice(0, 6), len(old_N) / 2
    batch = ours.batch(rollouts, inputs["advantages"], old_N).select(torch.arange(12)[part])
    assert batch.trained_tokens() != tokens_per_update
    outcome = ours.loss(batch, objective, TOKEN_KL, tokens_per_update=tokens_per_update)
    assert theirs.loss(rows_of(inputs, part)).distance(outcome) < TOLERANCE


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo"])
def test_masked_completion_counts_in_trl_mean_but_not_in_ours(
    ours: Any, sample: Any, make_theirs: Any, old_logprobs: Any, loss: str
) -> None:
    """TRL divides the sum over eleven completions by twelve, so masking truncated completions shrinks every step."""
    settings, objective = LOSSES[loss]
    rollouts = sample()
    old_N = old_logprobs(rollouts)
    theirs = make_theirs(rollouts, **settings)
    inputs = theirs.inputs(old_N)
    batch = ours.batch(rollouts, inputs["advantages"], old_N).select(torch.arange(11))
    inputs["completion_mask"][11] = 0
    outcome = ours.loss(batch, objective, TOKEN_KL)
    assert theirs.loss(inputs).distance(outcome.times(11 / 12)) < TOLERANCE


def test_sampler_mismatch_correction_equals_trl(ours: Any, sample: Any, make_theirs: Any) -> None:
    """TRL corrects only samples of vLLM, so it is configured as if vLLM had sampled with the sampler's log-probs."""
    cap = 1.2
    rollouts = sample()
    theirs = make_theirs(
        rollouts,
        loss_type="dapo",
        vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=cap,
    )
    inputs = theirs.inputs(sampler=True)
    weights = inputs["importance_sampling_ratio"]
    assert (weights == cap).any() and (weights < 1).any() and weights.max() <= cap
    batch = ours.batch(rollouts, inputs["advantages"])
    outcome = ours.loss(batch, ObjectiveConfig(loss=LossKind.dapo, mismatch_cap=cap), TOKEN_KL)
    assert theirs.loss(inputs).distance(outcome) < TOLERANCE
    # Without the correction the two losses differ, so they do not agree only because all weights are near 1.
    assert theirs.loss(inputs).distance(ours.loss(batch, uncorrected(LossKind.dapo), TOKEN_KL)) > 100 * TOLERANCE

"""Prompts of different lengths: TRL pads on the left and passes no position ids, so a model with absolute positions
gives wrong log-probs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.objective import KLConfig, KLForm, LossKind, ObjectiveConfig

pytest.importorskip("trl", reason="needs trl: scripts/setup.sh peers makes an environment that has it")

PROMPT_LENGTHS = (4, 7, 12)
LONGEST = slice(8, 12)
TEMPERATURE = 0.8


@torch.no_grad()
def alone(model: Any, prompt: list[int], completion: list[int]) -> Tensor:
    """Return the log-probs of a completion's tokens from a pass over its text alone, without padding or mask."""
    tokens = torch.tensor([prompt + completion])
    logprobs_TV = (model(tokens).logits[0].float() / TEMPERATURE).log_softmax(-1)
    states = torch.arange(len(prompt) - 1, tokens.shape[1] - 1)
    return logprobs_TV[states, tokens[0, len(prompt) :]]


def worst(values: list[Tensor], truth: list[Tensor], rows: slice = slice(None)) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(values[rows], truth[rows], strict=True))


def test_left_padding_makes_trl_logprobs_wrong_but_not_ours(ours: Any, sample: Any, make_theirs: Any) -> None:
    rollouts = sample(PROMPT_LENGTHS)
    policy, reference = ours.context.policy.model, ours.context.references.current.model
    truth = [alone(policy, *row) for row in rollouts.rows()]
    ref_truth = [alone(reference, *row) for row in rollouts.rows()]
    theirs = make_theirs(rollouts)
    inputs = theirs.inputs()
    lengths = [len(tokens) for tokens in rollouts.completions]
    ref_logprobs = [row[:length] for row, length in zip(inputs["ref_per_token_logps"], lengths, strict=True)]
    assert worst(theirs.logprobs(inputs), truth) > 0.01
    assert worst(ref_logprobs, ref_truth) > 0.01
    # The padding is the cause: TRL is right for the longest prompts, which have none.
    assert worst(theirs.logprobs(inputs), truth, LONGEST) < 1e-4
    batch = ours.batch(rollouts, inputs["advantages"])
    assert worst(list(torch.split(ours.logprobs(batch), lengths)), truth) < 1e-4


def test_losses_differ_from_trl_if_prompt_lengths_differ(ours: Any, sample: Any, make_theirs: Any) -> None:
    distances = {}
    for prompt_lengths in [(7, 7, 7), PROMPT_LENGTHS]:
        rollouts = sample(prompt_lengths)
        theirs = make_theirs(rollouts, loss_type="dapo")
        inputs = theirs.inputs()
        batch = ours.batch(rollouts, inputs["advantages"])
        objective = ObjectiveConfig(loss=LossKind.dapo, mismatch_cap=0.0)
        kl = KLConfig(coef=0.05, form=KLForm.k2_straight_through)
        distances[prompt_lengths] = theirs.loss(inputs).distance(ours.loss(batch, objective, kl))
    assert distances[7, 7, 7] < 1e-5 and distances[PROMPT_LENGTHS] > 1e-3

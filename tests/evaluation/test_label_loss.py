"""Label losses of batches of rows, against a computation of one row at a time and without padding."""

from pathlib import Path

import pytest
import torch

from rookworld_rlvr.evaluation.label_loss import label_losses
from rookworld_rlvr.model.device import Device, Precision, select_device
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.types import Example


@pytest.fixture(scope="module")
def policy(small_model: Path) -> Policy:
    return load_policy(ModelConfig(path=str(small_model)), select_device(Device.cpu), Precision.fp32)


@pytest.fixture(scope="module")
def examples(corpus) -> tuple[Example, ...]:
    return read_corpus(corpus.held_out).examples


def alone(policy: Policy, example: Example) -> tuple[float, int]:
    """Return the loss and the number of tokens, with one forward pass over the preceding tokens for each token."""
    encode = policy.tokenizer.encode
    prompt = encode(example.prompt)
    label = [*encode(example.completion), policy.tokenizer.eos_token_id]
    total = 0.0
    for place, token in enumerate(label):
        with torch.no_grad():
            logits = policy.model(torch.tensor([prompt + label[:place]])).logits[0, -1]
        total -= torch.log(torch.softmax(logits.double(), 0)[token]).item()
    return total, len(label)


def test_label_loss_equals_token_by_token_computation(policy: Policy, examples) -> None:
    losses = label_losses(policy, examples)
    for example, loss in list(zip(examples, losses, strict=True))[:2]:
        nat, tokens = alone(policy, example)
        assert loss is not None and loss.tokens == tokens
        assert loss.nat == pytest.approx(nat, rel=1e-4) and loss.nat_per_token == loss.nat / tokens


def test_label_loss_is_independent_of_batch_and_keeps_training_mode(policy: Policy, examples) -> None:
    together = label_losses(policy, examples)
    apart = [label_losses(policy, [example])[0] for example in examples]
    assert [loss.nat for loss in together if loss] == pytest.approx([loss.nat for loss in apart if loss], rel=1e-5)
    assert len(together) == len(examples) and policy.model.training


def test_a_row_without_a_label_or_too_long_has_no_loss(policy: Policy, examples) -> None:
    most = policy.model.config.max_position_embeddings
    unlabelled = Example(examples[0].task, examples[0].prompt, None)
    long = Example(examples[0].task, examples[0].prompt, (examples[0].completion or "") * most)
    assert label_losses(policy, [unlabelled, examples[0], long])[::2] == [None, None]

"""A packed batch gives the log-probs and gradients of the padded one, and computes no token twice."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from rookworld_rlvr.model.batch import Batch, micro_batches
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.packed import pack
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rewards import Score
from rookworld_rlvr.rollout.generator import SampledCompletion
from rookworld_rlvr.rollout.groups import Group, Sample, make_batch
from rookworld_rlvr.tasks.types import Example

CPU = torch.device("cpu")
PAD = 1
# Completions of one token, of many, of two length classes; a group of one; prompts that share a prefix.
LENGTHS = {
    (5, 6, 7): (1, 3, 40, 4),
    (8,): (2,),
    (9, 10, 11, 12): (7, 1, 6),
    (5, 6, 7, 8): (33, 2),
    (5, 6, 7, 8, 9): (1,),
}


def group(prompt: tuple[int, ...], lengths: tuple[int, ...]) -> Group:
    generator = torch.Generator().manual_seed(len(prompt))
    samples = []
    for length in lengths:
        tokens = tuple(torch.randint(2, 40, (length,), generator=generator).tolist())
        samples.append(Sample(SampledCompletion(tokens, (-1.0,) * length, finished=False), "", Score(0.0, {}, None)))
    return Group(Example("policy", "", None), prompt, tuple(samples))


@pytest.fixture(scope="module")
def batch() -> Batch:
    return make_batch([group(*item) for item in LENGTHS.items()], pad_id=PAD, device=CPU)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request: pytest.FixtureRequest) -> Any:
    """GPT-2 with learned positions, and Llama with rotary positions and half as many key heads as query heads."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    if request.param == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=40, n_positions=64, initializer_range=0.3)
        )
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3))


def logprobs_and_gradient(policy: Policy, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    policy.model.zero_grad()
    logprobs = policy.statistics(batch, temperature=0.9).logprobs
    # Each token has a different weight, so that tokens in the wrong place are detected.
    (logprobs * torch.linspace(-1, 2, len(logprobs))).sum().backward()
    return logprobs.detach(), [parameter.grad.clone() for parameter in policy.model.parameters()]


@pytest.fixture
def policies(model: Any) -> tuple[Policy, Policy]:
    padded = Policy(model.eval(), tokenizer=None)
    return padded, replace(padded, packs=True)


def assert_equal(policies: tuple[Policy, Policy], batch: Batch) -> None:
    (expected, gradient), (values, found_gradient) = (logprobs_and_gradient(policy, batch) for policy in policies)
    torch.testing.assert_close(values, expected, atol=2e-5, rtol=0)
    for ours, theirs in zip(found_gradient, gradient, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


def test_packed_logprobs_and_gradients_equal_padded_ones(policies: tuple[Policy, Policy], batch: Batch) -> None:
    assert_equal(policies, batch)


@pytest.mark.parametrize("rows", [[0], [1, 5], [10, 2, 6, 0], [4, 3, 2, 1, 0]], ids=str)
def test_packing_equals_padding_for_any_selection_of_rows(
    policies: tuple[Policy, Policy], batch: Batch, rows: list[int]
) -> None:
    assert_equal(policies, batch.select(torch.tensor(rows)))


def test_packed_batch_holds_each_prompt_once_and_little_filler(batch: Batch) -> None:
    packed = pack(batch)
    completions = sum(length - 1 for lengths in LENGTHS.values() for length in lengths)
    # 106 tokens, filled up to a multiple of 4, which is the largest power of two within 5 % of 106.
    assert sum(map(len, LENGTHS)) + completions == 106
    assert packed.tokens_1N.shape == (1, 108)
    assert packed.tokens_1N[0, 106:].tolist() == [0, 0]
    assert packed.tokens_1N[0, :17].tolist() == [token for prompt in LENGTHS for token in prompt]
    assert PAD not in packed.tokens_1N
    assert packed.states_M.shape == (batch.trained_tokens(),)
    # All completions of a prompt begin at the state of its last token.
    assert packed.states_M[0] == packed.states_M[1] == 2
    assert packed.positions_1N[0, :4].tolist() == [0, 1, 2, 0]


def test_moves_are_not_padded_to_the_length_of_an_answer() -> None:
    packed = pack(make_batch([group((5, 6, 7), (4, 5, 16, 15, 4))], pad_id=PAD, device=CPU))
    _, *classes = packed.layout._parts
    assert [tuple(part.at.shape) for part in classes] == [(1, 3, 4), (1, 2, 15)]


@pytest.mark.parametrize("size", [1, 2, 4, 99])
def test_micro_batches_by_prompt_hold_every_row_once(batch: Batch, size: int) -> None:
    shuffled = batch.select(torch.tensor([10, 3, 7, 0, 5, 1, 9, 2, 8, 4, 6]))
    pieces = list(micro_batches(shuffled, size, by_prompt=True))
    prompts = [prompt for piece in pieces for prompt in piece.prompts_B.tolist()]
    assert prompts == sorted(prompts) and len(prompts) == 11
    assert sum(piece.trained_tokens() for piece in pieces) == batch.trained_tokens()
    assert max(len(piece.tokens_BT) for piece in pieces) <= size


def test_a_row_without_a_trained_token_is_refused(batch: Batch) -> None:
    mask_BT = batch.loss_mask_BT.clone()
    mask_BT[3] = False
    with pytest.raises(ValueError, match="expected a trained token in every row"):
        pack(replace(batch, loss_mask_BT=mask_BT))


@contextmanager
def another_thread_that_casts() -> Iterator[None]:
    """Enter and leave bf16 contexts in another thread, as a thread does that computes another micro-batch."""
    stop = Event()

    def work() -> None:
        while not stop.is_set():
            with torch.autocast("cpu", torch.bfloat16):
                pass

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_gradients_in_bf16_do_not_depend_on_another_thread(policies: tuple[Policy, Policy]) -> None:
    # More tokens than a chunk of the head has, so that its weight is used more than once.
    groups = [group(prompt, lengths * 12) for prompt, lengths in LENGTHS.items()]
    batch, policy = make_batch(groups, pad_id=PAD, device=CPU), replace(policies[1], precision=Precision.bf16)
    _, alone = logprobs_and_gradient(policy, batch)
    for _ in range(5):
        with another_thread_that_casts():
            _, beside = logprobs_and_gradient(policy, batch)
        assert all(map(torch.equal, alone, beside))

"""The decode step in fixed buffers, which CUDA graphs replay, samples what our generator samples. Here without CUDA."""

from collections.abc import Callable, Hashable
from typing import Any

import pytest
import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM

from rookworld_rlvr.app.generators import make_generator
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rollout.decode_graph import DecodeBuffers, GraphGenerator, places_of_weights
from rookworld_rlvr.rollout.generator import (
    GeneratorConfig,
    GeneratorKind,
    SampledCompletion,
    TrainerModelGenerator,
    group_bytes,
)
from rookworld_rlvr.rollout.hf_generator import HFGenerator
from rookworld_rlvr.rollout.native_generator import PAGE, NativeGenerator

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40}
PROMPTS = [(5, 6, 7, 8, 5, 6), (9, 10, 11), (12,), tuple(range(2, 39)) * 2, (3, 3, 3, 4)]


@pytest.fixture(autouse=True)
def one_thread(threads: Callable[[int], None]) -> None:
    threads(1)


def grouped_query_model() -> Any:
    """Return a random Llama with rotary positions, four query heads and two key heads."""
    torch.manual_seed(3)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 160}
    return LlamaForCausalLM(LlamaConfig(**SIZES, **heads, initializer_range=0.4)).eval()


def two_calls_model() -> Any:
    """Return a random model with two calls of attention per layer."""
    torch.manual_seed(0)
    return DiffLlamaForCausalLM(DiffLlamaConfig(**SIZES, num_attention_heads=2, initializer_range=0.2)).eval()


def sampled(generator: Any, prompts: Any, *, temperature: float = 1.0, top_k: int = 0) -> list[SampledCompletion]:
    groups = generator.generate(prompts, group_size=6, temperature=temperature, seeds=range(len(prompts)), top_k=top_k)
    return [done for group in groups for done in group]


def both(model: Any, limit: int) -> tuple[NativeGenerator, GraphGenerator]:
    config = GeneratorConfig(max_new_tokens=limit)
    return NativeGenerator(model, config, eos_id=0, pad_id=1), GraphGenerator(model, config, eos_id=0, pad_id=1)


def assert_same(ours: list[SampledCompletion], theirs: list[SampledCompletion]) -> None:
    assert [done.tokens for done in ours] == [done.tokens for done in theirs]
    assert [done.finished for done in ours] == [done.finished for done in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.tensor(mine.logprobs), torch.tensor(other.logprobs), atol=2e-5, rtol=0)


@pytest.mark.parametrize("make", [grouped_query_model, two_calls_model])
@pytest.mark.parametrize(("temperature", "top_k"), [(0.0, 0), (1.0, 0), (1.3, 5)])
def test_steps_in_fixed_buffers_sample_the_same_tokens(
    make: Callable[[], Any], temperature: float, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, run = dict[Hashable, int](), DecodeBuffers.run

    def seen(buffers: DecodeBuffers, key: Any, step: Any, count: int, device: Any) -> None:
        keys[key] = keys.get(key, 0) + count
        run(buffers, key, step, count, device)

    monkeypatch.setattr(DecodeBuffers, "run", seen)
    ours, theirs = both(make(), 2 * PAGE + 5)
    expected = sampled(ours, PROMPTS, temperature=temperature, top_k=top_k)
    assert_same(sampled(theirs, PROMPTS, temperature=temperature, top_k=top_k), expected)
    if temperature == 1.0 and make is grouped_query_model:
        groups, sizes, _, slots = (set(values) for values in list(zip(*keys, strict=True))[:4])
        # Five prompts are padded to eight, the batch has been made smaller, and three pages of slots were filled.
        assert max(groups) == 8 and len(groups) > 1 and len(sizes) > 1 and len(slots) == 3


def test_the_shipped_model_and_the_last_position(policy: Policy, prompts: list[tuple[int, ...]]) -> None:
    ours, theirs = both(policy.model, 30)
    assert_same(sampled(theirs, prompts), sampled(ours, prompts))
    long = [(5,) * (policy.model.config.max_position_embeddings - length) for length in (12, 1)]
    assert_same(sampled(theirs, long), sampled(ours, long))
    assert_same(sampled(both(policy.model, 1)[1], prompts), sampled(both(policy.model, 1)[0], prompts))


def test_buffers_keep_nothing_of_an_earlier_batch() -> None:
    """An earlier batch had another size, another temperature, or weights of NaN."""
    model = grouped_query_model()
    ours, theirs = both(model, 40)
    expected = sampled(ours, PROMPTS)
    assert_same(sampled(theirs, PROMPTS[:1]), expected[:6])
    assert_same(sampled(theirs, PROMPTS), expected)
    sampled(theirs, PROMPTS, temperature=0.0)
    weight = model.get_input_embeddings().weight
    before = weight.detach().clone()
    weight.data.fill_(torch.nan)
    assert all(value != value for done in sampled(theirs, PROMPTS) for value in done.logprobs)
    weight.data.copy_(before)
    assert_same(sampled(theirs, PROMPTS), expected)


def test_replaced_weights_are_noticed_and_updated_ones_need_nothing() -> None:
    model = grouped_query_model()
    places = places_of_weights(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert places_of_weights(model) == places
    replaced = model.model.layers[1].mlp.up_proj.weight
    kept, replaced.data = replaced.data, replaced.data.clone()
    assert places_of_weights(model) != places and kept is not replaced.data


@pytest.mark.parametrize("kind", list(GeneratorKind))
def test_graphs_are_refused_without_cuda(policy: Policy, kind: GeneratorKind) -> None:
    with pytest.raises(UserError, match=rf"^generator\.cuda_graph: expected .* got generator\.kind={kind} on cpu$"):
        make_generator(policy, GeneratorConfig(kind=kind, cuda_graph=True))


def test_an_automatic_batch_is_128_completions_on_a_cpu_and_all_on_an_accelerator() -> None:
    model, cpu, other = grouped_query_model(), torch.device("cpu"), torch.device("meta")

    def groups(device: torch.device, kind: type[TrainerModelGenerator] = NativeGenerator, batch_size: int = 0) -> int:
        config = GeneratorConfig(max_new_tokens=10, batch_size=batch_size)
        generator: Any = kind(model, config, eos_id=0, pad_id=1)
        return int(generator._groups_at_a_time([(5, 6)] * 100, 8, device))

    assert (groups(cpu), groups(cpu, batch_size=64), groups(cpu, batch_size=1)) == (16, 8, 1)
    assert (groups(other), groups(other, HFGenerator), groups(other, batch_size=64)) == (100, 100, 8)


def test_memory_of_a_group_is_computed_from_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = grouped_query_model()
    # Two layers of keys and values of two heads of width 8 are 64 numbers a token.
    of_prompt, of_completion = 3 * (64 + 16 * 32) + 4 * 4 * 3**2, 5 * 64 + 4 * 4 * (3 + 5) + 8 * 40
    shapes = {"new_tokens": 5, "group_size": 6}
    assert group_bytes(model.config, 3, **shapes, prompts=1) == 4 * (of_prompt + 6 * of_completion)
    assert group_bytes(model.config, 3, **shapes, prompts=6) == 4 * (6 * of_prompt + 6 * of_completion)
    needed = group_bytes(model.config, 3, **shapes, prompts=1)
    monkeypatch.setattr("rookworld_rlvr.rollout.generator.free_bytes", lambda _device: 2.0 * 7 * needed)
    generator: Any = NativeGenerator(model, GeneratorConfig(max_new_tokens=5), eos_id=0, pad_id=1)
    assert generator._groups_at_a_time([(5, 6, 7)] * 100, 6, torch.device("meta")) == 7
    monkeypatch.setattr("rookworld_rlvr.rollout.generator.free_bytes", lambda _device: 0.0)
    assert generator._groups_at_a_time([(5, 6, 7)] * 100, 6, torch.device("meta")) == 1

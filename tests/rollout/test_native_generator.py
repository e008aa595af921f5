"""The native generator's optimisations change none of its samples."""

from collections.abc import Callable
from dataclasses import replace
from threading import current_thread
from typing import Any

import pytest
import torch
from transformers import (
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from rookworld_rlvr.app.generators import make_generator
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model import weights
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy, shares_prompts
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rollout import native_generator
from rookworld_rlvr.rollout.generator import GeneratorConfig, GeneratorKind, SampledCompletion
from rookworld_rlvr.rollout.groups import prompt_tokens
from rookworld_rlvr.rollout.hf_generator import HFGenerator
from rookworld_rlvr.rollout.native_generator import NativeGenerator
from rookworld_rlvr.rollout.sampling import inverse_cdf

EOS, PAD = 0, 1
POSITION = "r1bqkbnr/pppp1ppp/2n5/4p3/2B1P3/5N2/PPPP1PPP/RNBQK2R b KQkq - 3 3"
ANSWERABLE = [f"A: {POSITION}+g8f6+e2e4 e7e5 g1f3 b8c6 f1c4 g8f6+", f"P: {POSITION} "]


@pytest.fixture(scope="module")
def tiny() -> Policy:
    """The shipped model."""
    return load_policy(ModelConfig(), torch.device("cpu"), Precision.fp32)


def grouped_query_model() -> Any:
    """Return a random Llama with rotary positions, four query heads and two key heads."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.4)).eval()


def rows(generator: Any, prompts: Any, *, temperature: float, group_size: int = 4) -> list[SampledCompletion]:
    seeds = range(len(prompts))
    groups = generator.generate(prompts, group_size=group_size, temperature=temperature, seeds=seeds)
    return [done for group in groups for done in group]


def of_policy(policy: Policy) -> NativeGenerator:
    ids = {"eos_id": int(policy.tokenizer.eos_token_id), "pad_id": policy.pad_id}
    return NativeGenerator(policy.model, GeneratorConfig(max_new_tokens=96), **ids)


def assert_same(ours: list[SampledCompletion], theirs: list[SampledCompletion]) -> None:
    assert [done.tokens for done in ours] == [done.tokens for done in theirs]
    assert [done.finished for done in ours] == [done.finished for done in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.tensor(mine.logprobs), torch.tensor(other.logprobs), atol=2e-5, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompts_divided_among_cores_get_the_same_completions(
    tiny: Policy, temperature: float, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads(1)
    prompts = [prompt_tokens(tiny.tokenizer, text) for text in ANSWERABLE * 2]
    alone = rows(of_policy(tiny), prompts, temperature=temperature)
    names = set[str]()
    handle = tiny.model.base_model.register_forward_pre_hook(lambda *_: names.add(current_thread().name))
    threads(3)
    # So few completions are not divided among cores.
    rows(of_policy(tiny), prompts, temperature=temperature)
    assert names == {current_thread().name}
    names.clear()
    monkeypatch.setattr(native_generator, "ROWS_PER_CORE", 1)
    shared = rows(of_policy(tiny), prompts, temperature=temperature)
    handle.remove()
    assert_same(shared, alone)
    assert len(names) > 1 and all(name.startswith("core") for name in names)
    assert tiny.model.config._attn_implementation == "eager"


def test_remaining_rows_keep_their_cached_keys_when_others_finish(tiny: Policy) -> None:
    """Compare with passes over each row alone, without a cache."""
    prompts = [prompt_tokens(tiny.tokenizer, text) for text in ANSWERABLE]
    done = rows(of_policy(tiny), prompts, temperature=1.0, group_size=12)
    assert len({len(row.tokens) for row in done}) > 3
    assert_logprobs_are_of_single_passes(tiny.model.eval(), [p for p in prompts for _ in range(12)], done)


def assert_logprobs_are_of_single_passes(model: Any, prompts: Any, done: list[SampledCompletion]) -> None:
    for prompt, row in zip(prompts, done, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + row.tokens]), use_cache=False).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits, -1)[range(len(row.tokens)), row.tokens]
        torch.testing.assert_close(torch.tensor(row.logprobs), expected, atol=1e-4, rtol=0)


def test_grouped_query_model_generates_as_in_transformers() -> None:
    model = grouped_query_model()
    prompts = [(5, 6, 7, 8, 5, 6), (9, 10, 11), (12,)]
    config = GeneratorConfig(max_new_tokens=20)
    ours, theirs = (
        rows(engine(model, config, eos_id=EOS, pad_id=PAD), prompts, temperature=0.0, group_size=1)
        for engine in (NativeGenerator, HFGenerator)
    )
    assert_same(ours, theirs)
    sampled = rows(NativeGenerator(model, config, eos_id=EOS, pad_id=PAD), prompts, temperature=1.0)
    assert_logprobs_are_of_single_passes(model, [prompt for prompt in prompts for _ in range(4)], sampled)


def test_two_attention_calls_per_layer_generate_as_in_transformers() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = DiffLlamaForCausalLM(DiffLlamaConfig(**sizes, vocab_size=40, initializer_range=0.2)).eval()
    prompts, config = [tuple(range(2, 9)), (5, 6, 7)], GeneratorConfig(max_new_tokens=12)
    made = (kind(model, config, eos_id=EOS, pad_id=PAD) for kind in (NativeGenerator, HFGenerator))
    ours, theirs = (rows(generator, prompts, temperature=1.0) for generator in made)
    assert_same(ours, theirs)


def test_completions_stop_at_the_last_model_position() -> None:
    model = grouped_query_model()
    generator = NativeGenerator(model, GeneratorConfig(max_new_tokens=40), eos_id=-1, pad_id=PAD)
    done = rows(generator, [tuple(range(2, 12)) * 5, (3,) * 60], temperature=1.0, group_size=2)
    assert [len(row.tokens) for row in done] == [14, 14, 4, 4]
    with pytest.raises(ValueError, match="shorter than the model's 64 positions, got 64"):
        rows(generator, [(3,) * 64], temperature=1.0)


def test_inverse_cdf_draws_by_probability_and_never_impossible_tokens() -> None:
    shares = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    uniform = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-24])
    assert inverse_cdf(shares.log().expand(6, -1), uniform).tolist() == [1, 1, 3, 3, 4, 4]
    many = inverse_cdf(shares.log().expand(4000, -1), torch.rand(4000, generator=torch.Generator().manual_seed(0)))
    counts = torch.bincount(many, minlength=6) / 4000
    assert torch.allclose(counts, shares, atol=0.03) and counts[shares == 0].sum() == 0
    spoilt = inverse_cdf(torch.full((1, 6), torch.nan), torch.tensor([0.5]))
    assert 0 <= int(spoilt) < 6


def test_sliding_window_model_is_refused_with_hint_to_generator_hf(tiny: Policy) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    windowed = MistralForCausalLM(MistralConfig(**sizes, num_key_value_heads=2, vocab_size=40, sliding_window=8))
    policy = replace(tiny, model=windowed)
    policy.shares = shares_prompts(policy)
    assert shares_prompts(tiny) and shares_prompts(replace(tiny, model=grouped_query_model())) and not policy.shares
    with pytest.raises(UserError, match=r"got MistralForCausalLM; generator\.kind=hf samples from any"):
        make_generator(policy, GeneratorConfig())
    assert isinstance(make_generator(policy, GeneratorConfig(kind=GeneratorKind.hf)), HFGenerator)


def test_only_a_large_trained_model_samples_in_bf16_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [(5, 6, 7, 8, 9, 10, 11, 12)]

    def sampled(precision: Precision, *, trained: bool = True) -> list[SampledCompletion]:
        policy = load_policy(ModelConfig(), torch.device("cpu"), precision)
        policy.model.requires_grad_(trained)
        generator = make_generator(policy, GeneratorConfig(max_new_tokens=4))
        return generator.generate(prompts, group_size=2, temperature=1.0, seeds=[1])[0]

    exact = sampled(Precision.fp32)
    assert sampled(Precision.bf16) == exact
    monkeypatch.setattr(weights, "SMALL_MODEL", 1000)
    assert sampled(Precision.fp32) == exact
    rounded = sampled(Precision.bf16)
    differences = torch.tensor(rounded[0].logprobs[:1]) - torch.tensor(exact[0].logprobs[:1])
    assert 0 < differences.abs() < 0.1
    assert sampled(Precision.bf16, trained=False) == exact

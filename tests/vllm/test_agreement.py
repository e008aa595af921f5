"""vLLM's log-probs equal the trainer's after real updates, in both modes, and its samples are reproducible."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.rollout.generator import Generator, GeneratorConfig, SampledCompletion
from rookworld_rlvr.rollout.hf_generator import HFGenerator
from rookworld_rlvr.training.metrics import step_metrics
from rookworld_rlvr.training.step import grpo_step

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: scripts/setup.sh vllm")
MODES = pytest.mark.parametrize("sampler", ["vllm", "vllm_server"], indirect=True)
UPDATES, BOUND_NAT = 20, 1e-4
Prompts = list[tuple[int, ...]]
Groups = Sequence[Sequence[SampledCompletion]]


def largest_gap(model: Any, prompts: Prompts, groups: Groups, temperature: float) -> float:
    """Return the largest gap between the sampler's log-probs and those of one plain pass for each completion."""
    gaps = []
    for prompt, group in zip(prompts, groups, strict=True):
        for done in group:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + done.tokens])).logits[0, len(prompt) - 1 : -1]
            logprobs = torch.log_softmax(logits / temperature, dim=-1)
            chosen = logprobs.gather(1, torch.tensor(done.tokens).unsqueeze(1)).squeeze(1)
            gaps.append(float((chosen - torch.tensor(done.logprobs)).abs().max()))
    return max(gaps)


@MODES
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_vllm_logprobs_agree_with_trainer_after_twenty_updates(
    sampler: Generator, temperature: float, prompts: Prompts, make_context: Callable[..., Any]
) -> None:
    context = make_context(f"generator.temperature={temperature}", "kl.coef=0", "recovery.enabled=false")
    context.sampler.generator, context.config.steps = sampler, UPDATES
    model, before = context.policy.model, checksum(context.policy.model)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    head = model.lm_head.weight.detach().clone()
    for step in range(UPDATES):
        report = grpo_step(context, step)
        assert report.fault is None and report.updates == 1
        # The ratio to the trainer's own pass over the step's tokens, before its update.
        assert abs(step_metrics(report, context)["sampler/ratio_raw_max"] - 1) < BOUND_NAT
    assert checksum(model) != before and float((model.lm_head.weight.detach() - head).abs().max()) > 0.01
    sampler.sync(model)
    assert sampler.weights_checksum() == checksum(model)
    groups = sampler.generate(prompts, group_size=4, temperature=temperature, seeds=range(len(prompts)))
    assert largest_gap(model, prompts, groups, temperature) < BOUND_NAT
    greedy = sampler.generate(prompts, group_size=1, temperature=0.0)
    assert largest_gap(model, prompts, greedy, 1.0) < BOUND_NAT


@MODES
def test_vllm_greedy_completions_equal_those_of_hf_generator(
    sampler: Generator, policy: Policy, prompts: Prompts
) -> None:
    reference = HFGenerator(
        policy.model,
        GeneratorConfig(max_new_tokens=64),
        eos_id=policy.tokenizer.eos_token_id,
        pad_id=policy.pad_id,
    )
    expected = reference.generate(prompts, group_size=1, temperature=0.0)
    got = sampler.generate(prompts, group_size=1, temperature=0.0)
    assert [[done.tokens for done in group] for group in got] == [[d.tokens for d in group] for group in expected]
    assert [[done.finished for done in group] for group in got] == [[d.finished for d in group] for group in expected]


@MODES
def test_a_completion_ends_with_its_end_token_or_at_the_limit(
    sampler: Generator, policy: Policy, prompts: Prompts
) -> None:
    eos_id = policy.tokenizer.eos_token_id
    # A prompt that leaves room for three tokens.
    positions = policy.model.config.max_position_embeddings
    long = (prompts[0] * 9)[: positions - 3]
    *groups, cut = sampler.generate([*prompts, long], group_size=4, temperature=1.0, seeds=range(len(prompts) + 1))
    for done in (done for group in groups for done in group):
        assert done.finished == (done.tokens[-1] == eos_id) and eos_id not in done.tokens[:-1]
        assert len(done.logprobs) == len(done.tokens) <= 64 and (done.finished or len(done.tokens) == 64)
    assert any(done.finished for group in groups for done in group)
    assert all(len(done.tokens) == 3 or done.finished for done in cut)
    with pytest.raises(ValueError, match=f"shorter than the model's {positions} positions"):
        sampler.generate([(*long, 5, 5, 5)], group_size=1, temperature=1.0, seeds=[0])


@MODES
def test_seeds_determine_vllm_samples_and_rng_state_is_unchanged(sampler: Generator, prompts: Prompts) -> None:
    def sampled(seed: int) -> list[list[tuple[int, ...]]]:
        seeds = range(seed, seed + len(prompts))
        groups = sampler.generate(prompts, group_size=4, temperature=1.0, seeds=seeds)
        return [[done.tokens for done in group] for group in groups]

    state = torch.get_rng_state()
    first = sampled(0)
    assert sampled(0) == first != sampled(100)
    # Members of a group differ, and so do the groups of two equal prompts.
    assert len(set(first[0])) > 1 and first[0] != first[-1]
    assert torch.equal(torch.get_rng_state(), state)

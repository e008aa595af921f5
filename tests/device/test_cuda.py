"""The shipped model on a CUDA device passes preflight, matches the CPU and resumes. Skipped without a CUDA device."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.generators import make_generator
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rewards import Score
from rookworld_rlvr.rollout.decode_graph import DecodeBuffers, GraphGenerator
from rookworld_rlvr.rollout.generator import Generator, GeneratorConfig, SampledCompletion
from rookworld_rlvr.rollout.groups import Group, Sample, make_batch, prompt_tokens
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.training.data import default_file

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
ROWS = 4


def logprobs_of_labels(device: str, precision: Precision) -> tuple[Tensor, Tensor]:
    """Return the log-probs of some rows' labels and the embeddings' gradient of their sum, both moved to the CPU."""
    policy = load_policy(ModelConfig(), torch.device(device), precision)
    groups = []
    for row in read_corpus(default_file("train.txt")).examples[:ROWS]:
        tokens = tuple(policy.tokenizer.encode(row.completion, add_special_tokens=False))
        label = SampledCompletion(tokens, (0.0,) * len(tokens), True)
        sample = Sample(label, row.completion or "", Score(0.0, {}, None))
        groups.append(Group(row, prompt_tokens(policy.tokenizer, row.prompt), (sample,)))
    batch = make_batch(groups, pad_id=policy.pad_id, device=torch.device(device))
    logprobs = policy.statistics(batch, temperature=1.0).logprobs
    logprobs.sum().backward()
    gradient = policy.model.get_input_embeddings().weight.grad
    return logprobs.detach().cpu(), gradient.cpu()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_preflight_checks_pass_on_cuda(precision: str) -> None:
    assert main(["smoke", "device=cuda", f"precision={precision}"]) == 0


# On a CPU, bf16 differs from fp32 by 0.06 nats in the log-probs and by 0.015 (relative) in the gradient.
@pytest.mark.parametrize(("precision", "nats"), [(Precision.fp32, 1e-3), (Precision.bf16, 0.2)])
def test_cuda_logprobs_and_gradient_match_the_cpu(precision: Precision, nats: float) -> None:
    logprobs, gradient = logprobs_of_labels("cpu", Precision.fp32)
    cuda_logprobs, cuda_gradient = logprobs_of_labels("cuda", precision)
    torch.testing.assert_close(cuda_logprobs, logprobs, rtol=0, atol=nats)
    assert float((cuda_gradient - gradient).norm() / gradient.norm()) < nats


def sampled(generator: Generator, prompts: list[tuple[int, ...]], seed: int = 0) -> list[SampledCompletion]:
    """Return 12 completions of each prompt."""
    seeds = range(seed, seed + len(prompts))
    groups = generator.generate(prompts, group_size=12, temperature=1.0, seeds=seeds)
    return [done for group in groups for done in group]


@pytest.fixture(params=["fp32", "bf16"])
def on_cuda(request: pytest.FixtureRequest) -> tuple[Policy, list[tuple[int, ...]]]:
    policy = load_policy(ModelConfig(), torch.device("cuda"), Precision(request.param))
    rows = read_corpus(default_file("train.txt")).examples[:10]
    return policy, [prompt_tokens(policy.tokenizer, row.prompt) for row in rows]


def test_replayed_graphs_sample_what_the_same_steps_sample_without_a_graph(
    on_cuda: tuple[Policy, list[tuple[int, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, prompts = on_cuda
    graphs = make_generator(policy, GeneratorConfig(max_new_tokens=96, cuda_graph=True))
    assert isinstance(graphs, GraphGenerator)
    first, again = sampled(graphs, prompts), sampled(graphs, prompts)
    assert len(graphs.buffers.graphs) > 1
    captured = list(graphs.buffers.graphs.values())

    def without_graph(_self: DecodeBuffers, _key: Any, step: Callable[[], None], count: int, _device: Any) -> None:
        for _ in range(count):
            step()

    with monkeypatch.context() as patch:
        patch.setattr(DecodeBuffers, "run", without_graph)
        expected = sampled(graphs, prompts)
    assert first == again == expected
    # Other seeds and fewer prompts: the graphs of the first batch serve again.
    other = sampled(graphs, prompts[:9], seed=5)
    assert all(graph in graphs.buffers.graphs.values() for graph in captured)
    if policy.precision is Precision.fp32:
        eager = sampled(make_generator(policy, GeneratorConfig(max_new_tokens=96)), prompts[:9], seed=5)
        assert [done.tokens for done in other] == [done.tokens for done in eager]
        for ours, theirs in zip(other, eager, strict=True):
            assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def test_graphs_follow_weights_that_are_updated_or_replaced(on_cuda: tuple[Policy, list[tuple[int, ...]]]) -> None:
    policy, prompts = on_cuda
    graphs = make_generator(policy, GeneratorConfig(max_new_tokens=24, cuda_graph=True))
    assert isinstance(graphs, GraphGenerator)
    before = sampled(graphs, prompts)
    captured = list(graphs.buffers.graphs.values())
    weight = policy.model.get_input_embeddings().weight
    copied = weight.detach().clone()
    with torch.no_grad():
        weight.mul_(1.5)
    updated = sampled(graphs, prompts)
    assert updated != before and all(graph in graphs.buffers.graphs.values() for graph in captured)
    weight.data = copied
    replaced = sampled(graphs, prompts)
    assert [done.tokens for done in replaced] == [done.tokens for done in before]
    assert not any(graph in graphs.buffers.graphs.values() for graph in captured)


def test_automatic_batch_on_cuda_is_all_completions_unless_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = load_policy(ModelConfig(), torch.device("cuda"), Precision.bf16)
    generator, prompts = make_generator(policy, GeneratorConfig(max_new_tokens=8)), [(5, 6, 7)] * 40

    def passes() -> int:
        counted = list[int]()
        hook = policy.model.base_model.register_forward_pre_hook(lambda *_: counted.append(1))
        generator.generate(prompts, group_size=16, temperature=1.0, seeds=range(40))
        hook.remove()
        return len(counted)

    together = passes()
    monkeypatch.setattr("rookworld_rlvr.rollout.generator.free_bytes", lambda _device: 0.0)
    assert together <= 8 < passes()


def test_a_run_on_cuda_can_be_resumed(train: Callable[..., Path]) -> None:
    folder = train("device=cuda", "steps=1", "checkpoint_every=1")
    resumed = train("device=cuda", "steps=2", f"resume={folder}")
    steps = [json.loads(line)["step"] for line in (resumed / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2]

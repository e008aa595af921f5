"""The arithmetic of `benchmarks/roofline.py`, and a tiny real run of it."""

from collections.abc import Callable
from dataclasses import replace
from threading import Barrier, Thread
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rookworld_rlvr.rollout.generator import SampledCompletion
from rookworld_rlvr.training.loss import TokenTotals
from rookworld_rlvr.training.state import StepReport

SHARES = ("share/generate", "share/train", "mfu/train", "mfu/step")
STEP = ("generator.max_new_tokens=12", "objective.prompts_per_step=2", "objective.group_size=4", "threads=1")


@pytest.fixture(scope="module")
def roofline(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("roofline")


@pytest.fixture(scope="module")
def shape(roofline: ModuleType) -> Any:
    """Return a shape of two layers of width 8, each with 4·8² attention and 8·8² MLP weights; 16 tokens, no biases."""
    sizes = {"layers": 2, "query_width": 8, "key_width": 8, "bytes_per_number": 4}
    return roofline.Shape(body_weights=2 * 12 * 64, head_weights=8 * 16, **sizes)


@pytest.fixture(scope="module")
def groups(roofline: ModuleType) -> list[Any]:
    return [roofline.Lengths(3, (1, 2)), roofline.Lengths(5, (4, 4))]


@pytest.mark.parametrize("kind", ["native", "hf"])
def test_shares_of_a_step_lie_between_0_and_1(roofline: ModuleType, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(roofline, "MATMUL_SIZES", (256, 512))
    monkeypatch.setattr(roofline, "ARRAY_NUMBERS", 2**22)
    limits, row = roofline.measure(kind, 1, STEP)
    assert limits.flops_per_s > 0 and limits.bytes_per_s > 0
    assert all(0 < row[share] <= 1 for share in SHARES)
    # hf makes one pass for each token of a batch's longest completion, in at most two batches.
    assert row["passes"] in (12, 24) if kind == "hf" else row["passes"] > 0


def test_lengths_of_all_generated_groups_are_kept(roofline: ModuleType) -> None:
    class Fake:
        def generate(self, prompts: Any, *, group_size: int, temperature: float, seeds: Any, top_k: int) -> Any:
            return [[SampledCompletion((1,) * (i + 1), (0.0,) * (i + 1), True) for i in range(group_size)]] * len(
                prompts
            )

    generator = roofline.LengthsOfGroups(Fake())  # type: ignore[arg-type]
    assert len(generator.generate([(1, 2), (1, 2, 3)], group_size=2, temperature=1.0)) == 2
    generator.generate([(1,)], group_size=3, temperature=1.0)
    assert generator.groups == [
        roofline.Lengths(2, (1, 2)),
        roofline.Lengths(3, (1, 2)),
        roofline.Lengths(1, (1, 2, 3)),
    ]


def test_flop_count_equals_calculation_by_hand(roofline: ModuleType, shape: Any, groups: list[Any]) -> None:
    # Input tokens: 3 + 0 + 1 and 5 + 3 + 3. Sampled tokens: 3 and 8.
    assert [group.inputs() for group in groups] == [4, 11]
    # A prompt of 3 has 1 + 2 + 3 pairs, its longer completion adds 4. A prompt of 5 has 15, then twice 6 + 7 + 8.
    assert [group.pairs() for group in groups] == [6 + 4, 15 + 2 * 21]
    assert roofline.forward_flops(shape, groups) == 2 * (1536 * 15 + 128 * 11) + 4 * 2 * 8 * (10 + 57)


def test_flop_count_equals_torch_flop_counter(roofline: ModuleType) -> None:
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=11, n_positions=8, attn_implementation="eager")
    model = GPT2LMHeadModel(config)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(torch.zeros(1, 6, dtype=torch.long), use_cache=False)
    sizes = roofline.shape_of(model, 4)
    vectors = sum(weight.numel() for weight in model.parameters() if weight.dim() == 1)
    # torch counts the head at every position and all pairs of tokens, but no biases or norms.
    dense = 2 * ((sizes.body_weights - vectors) * 6 + sizes.head_weights * 6)
    assert counted.get_total_flops() == dense + 4 * sizes.layers * sizes.query_width * 36


def test_byte_count_equals_calculation_by_hand(roofline: ModuleType, shape: Any, groups: list[Any]) -> None:
    weights, token_bytes = 1536 + 128, 2 * 2 * 8
    # A prompt is read once for each token of its longest completion, a completion of C tokens 0 + … + (C - 1) times.
    read, written = (3 * 2 + 0 + 1) + (5 * 4 + 6 + 6), 15
    assert roofline.generation(shape, groups, passes=4).bytes == 4 * (4 * weights + token_bytes * (read + written))
    # Drafts halve the passes. An engine whose passes are unknown (0) is taken to make one for each token.
    assert roofline.generation(shape, groups, passes=2).bytes == 4 * (2 * weights + token_bytes * (read / 2 + written))
    assert roofline.generation(shape, groups, passes=0) == roofline.generation(shape, groups, passes=4)


def test_training_is_three_forward_passes_per_token(roofline: ModuleType, shape: Any, groups: list[Any]) -> None:
    forward, weights = roofline.forward_flops(shape, groups), 1536 + 128
    report = StepReport(step=0, kl_coef=0.1, updates=2, tokens=TokenTotals(count=22, kl_count=22))
    done, reference = roofline.training(shape, groups, report, examples_per_pass=4)
    assert (done.flops, reference) == (pytest.approx(8 * forward), pytest.approx(2 * forward))
    # 2 epochs over 4 completions: 2 micro-batches, each reads the policy twice, the reference once, and writes once.
    assert done.bytes == weights * (2 * 4 * 4 + 2 * 7 * 4)
    report = replace(report, tokens=TokenTotals(count=22))
    assert roofline.training(shape, groups, report, examples_per_pass=4)[1] == 0


def test_least_time_is_set_by_the_binding_limit(roofline: ModuleType) -> None:
    limits = roofline.Limits(flops_per_s=100.0, bytes_per_s=10.0)
    assert (roofline.Work(200.0, 10.0).least_s(limits), roofline.Work(200.0, 10.0).bound(limits)) == (2.0, "compute")
    assert (roofline.Work(100.0, 30.0).least_s(limits), roofline.Work(100.0, 30.0).bound(limits)) == (3.0, "memory")


def test_passes_of_threads_side_by_side_are_counted_apart(roofline: ModuleType) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=1, vocab_size=8, pad_token_id=0)).eval()
    both = Barrier(2)

    @torch.no_grad()
    def make(passes: int) -> None:
        both.wait()
        for _ in range(passes):
            model.base_model(torch.zeros(1, 1, dtype=torch.long))
        both.wait()

    with roofline.counted_passes(model) as passes:
        threads = [Thread(target=make, args=(count,)) for count in (3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert max(passes.values()) == 4

"""`rookworld bench`: a real, tiny run of it, and what its figures are made of. No time is asserted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.app import bench, machine, work
from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.machine import Limits
from rookworld_rlvr.app.work import Lengths, Shape, Work
from rookworld_rlvr.rollout.generator import SampledCompletion
from rookworld_rlvr.training.loss import TokenTotals
from rookworld_rlvr.training.state import StepReport

# Two layers of width 8: in each 4·8² weights of attention and 8·8² of its MLP, no biases; 16 words.
SHAPE = Shape(body_weights=2 * 12 * 64, head_weights=8 * 16, layers=2, query_width=8, key_width=8, bytes_a_number=4)
GROUPS = [Lengths(3, (1, 2)), Lengths(5, (4, 4))]
SHARES = ("share/generate", "share/train", "mfu/train", "mfu/step")


@pytest.fixture
def small_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MATMUL_SIZES", (256, 512))
    monkeypatch.setattr(machine, "ARRAY_NUMBERS", 2**22)


@pytest.mark.usefixtures("small_arrays")
def test_bench_measures_each_generator_on_the_same_prompts(
    small_overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "bench.json"
    given = [*small_overrides, "generator.max_new_tokens=12", "bench.rounds=2", f"bench.output={output}"]
    assert main(["bench", *given, "bench.generators=[hf,static]"]) == 0
    shown, figures = capfd.readouterr().out, json.loads(output.read_text())
    assert "static" in shown and "hf" in shown and "completions/s" in shown
    assert list(figures["generators"]) == ["hf", "static"] and list(figures["ratios_to_hf"]) == ["static"]
    for kind, row in figures["generators"].items():
        assert all(0 < row[share] <= 1 for share in SHARES), (kind, row)
        assert row["peak_gib"] > 0 and row["tokens_per_s"] > 0
        assert row["generate_s"] + row["score_s"] + row["train_s"] <= row["step_s"]
        assert [len(figures["rounds"][kind]), row["passes"] > 0] == [2, True]
    spread = figures["ratios_to_hf"]["static"]["completions_per_s"]
    assert spread["low"] <= spread["median"] <= spread["high"]
    # hf makes a pass for each token of a batch's longest completion, which here is cut; batches are of similar prompts.
    assert all(row["passes"] in (12, 24) for row in figures["rounds"]["hf"])
    assert figures["machine"]["threads"] == 1 and figures["machine"]["flops_per_s"] > 0


@pytest.mark.usefixtures("small_arrays")
def test_a_step_without_anything_to_train_on_is_told(
    small_overrides: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    # So cold that all completions of a group are alike.
    given = ["generator.temperature=1e-4", "objective.collection.zero_variance=drop", "generator.max_new_tokens=8"]
    assert main(["bench", *small_overrides, *given, "bench.rounds=1"]) == 4
    assert "nothing to train on" in capfd.readouterr().err


def test_all_groups_that_were_generated_are_noted_also_over_several_calls() -> None:
    class Fake:
        def generate(self, prompts: Any, *, group_size: int, temperature: float, seeds: Any, top_k: int) -> Any:
            return [[SampledCompletion((1,) * (i + 1), (0.0,) * (i + 1), True) for i in range(group_size)]] * len(
                prompts
            )

    noting = bench.Noting(Fake())  # type: ignore[arg-type]
    assert len(noting.generate([(1, 2), (1, 2, 3)], group_size=2, temperature=1.0)) == 2
    noting.generate([(1,)], group_size=3, temperature=1.0)
    assert noting.groups == [Lengths(2, (1, 2)), Lengths(3, (1, 2)), Lengths(1, (1, 2, 3))]


@pytest.mark.parametrize(
    "override", ["bench.rounds=0", "bench.generators=[]", "bench.generators=[hf,hf]", "bench.output=/nope/bench.json"]
)
def test_what_cannot_be_measured_is_refused(
    override: str, small_overrides: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *small_overrides, override]) == 2
    assert override.split("=")[0] in capfd.readouterr().err


def test_operations_are_counted_as_by_hand() -> None:
    # 3 + 0 + 1 and 5 + 3 + 3 tokens go in; 3 and 8 are drawn.
    assert [group.inputs() for group in GROUPS] == [4, 11]
    # A prompt of 3: 1 + 2 + 3; its second completion's first token sees 4. A prompt of 5: 15, then twice 6 + 7 + 8.
    assert [group.pairs() for group in GROUPS] == [6 + 4, 15 + 2 * 21]
    assert work.forward_flops(SHAPE, GROUPS) == 2 * (1536 * 15 + 128 * 11) + 4 * 2 * 8 * (10 + 57)


def test_operations_agree_with_those_that_torch_counts_in_a_forward_pass() -> None:
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=11, n_positions=8, attn_implementation="eager")
    model = GPT2LMHeadModel(config)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        model(torch.zeros(1, 6, dtype=torch.long), use_cache=False)
    shape = work.shape_of(model, 4)
    vectors = sum(weight.numel() for weight in model.parameters() if weight.dim() == 1)
    # torch counts the head at each position, every pair of tokens, and no bias or norm.
    dense = 2 * ((shape.body_weights - vectors) * 6 + shape.head_weights * 6)
    assert counted.get_total_flops() == dense + 4 * shape.layers * shape.query_width * 36


def test_bytes_are_counted_as_by_hand() -> None:
    weights, a_token = 1536 + 128, 2 * 2 * 8
    # Read: prompts as often as their longest completion draws, and each completion's own 0 + … + (C - 1).
    read, written = (3 * 2 + 0 + 1) + (5 * 4 + 6 + 6), 15
    assert work.generation(SHAPE, GROUPS, passes=4).bytes == 4 * (4 * weights + a_token * (read + written))
    # Drafts halve the passes; an engine that is not counted makes one a token.
    assert work.generation(SHAPE, GROUPS, passes=2).bytes == 4 * (2 * weights + a_token * (read / 2 + written))
    assert work.generation(SHAPE, GROUPS, passes=0) == work.generation(SHAPE, GROUPS, passes=4)


def test_training_is_three_forward_passes_a_trained_token_and_the_reference_one() -> None:
    forward, weights = work.forward_flops(SHAPE, GROUPS), 1536 + 128
    report = StepReport(step=0, kl_coef=0.1, updates=2, tokens=TokenTotals(count=22, kl_count=22))
    done, reference = work.training(SHAPE, GROUPS, report, rows_a_pass=4)
    assert (done.flops, reference) == (pytest.approx(8 * forward), pytest.approx(2 * forward))
    # Two passes over 4 completions, 2 micro-batches, each reading policy twice and reference once and writing once.
    assert done.bytes == weights * (2 * 4 * 4 + 2 * 7 * 4)
    report.tokens.kl_count = 0
    assert work.training(SHAPE, GROUPS, report, rows_a_pass=4)[1] == 0


def test_the_least_time_is_that_of_the_limit_met_first() -> None:
    limits = Limits(flops_per_s=100.0, bytes_per_s=10.0)
    assert (Work(200.0, 10.0).least_s(limits), Work(200.0, 10.0).bound(limits)) == (2.0, "compute")
    assert (Work(100.0, 30.0).least_s(limits), Work(100.0, 30.0).bound(limits)) == (3.0, "memory")


def test_medians_and_ratios_are_over_rounds() -> None:
    def rows(*rates: float) -> list[dict[str, Any]]:
        return [{"completions_per_s": rate, "tokens_per_s": 2 * rate, "peak_gib": rate} for rate in rates]

    assert bench.medians(rows(1.0, 9.0, 2.0)) == {"completions_per_s": 2.0, "tokens_per_s": 4.0, "peak_gib": 9.0}
    found = bench.ratios(rows(2.0, 9.0, 4.0), rows(1.0, 3.0, 4.0))["completions_per_s"]
    assert (found["median"], found["low"], found["high"], found["mean"]) == (2.0, 1.0, 3.0, 2.0)

"""Several processes train like a single one: with the same prompts, the same gradient and the same faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.objective import KLForm, LossKind

Ranks = Callable[..., list[Any]]
# Two micro-batches of one group each, one for each of two ranks. The small model's completions differ in length.
TWO_MICROS = ["objective.prompts_per_step=2", "optim.micro_batch_size=4"]
# Three prompts and three micro-batches: one of four ranks is idle.
EMPTY_RANK = ["objective.prompts_per_step=3", "optim.micro_batch_size=4"]
DROPPED = ["objective.collection.zero_variance=drop", "generator.temperature=0.1"]
KL = ["kl.coef=0.05"]
CASES = {
    "default": KL,
    "dropped": [*KL, *DROPPED],
    "adapter": [*KL, "model.lora.rank=4"],
    "several updates, KL in the reward": [*KL, "kl.form=in_reward", "objective.epochs=2", "objective.minibatches=2"],
}
# With more micro-batches than ranks the gradients are summed in another order and round differently.
ALL_MOVES = [*KL, "rubric.source=cached", "data.train=default", "data.held_out=default"]
# GSPO refuses a mismatch correction by token.
GSPO = ["objective.loss=gspo", "objective.mismatch_cap=0"]
LOSSES = [GSPO if loss is LossKind.gspo else [f"objective.loss={loss}"] for loss in LossKind]
EVERY = [[*KL, *loss, f"kl.form='{form}'"] for loss in LOSSES for form in KLForm]
COMPARED = ("loss", "grad_norm", "logprobs", "kl")
SAME = ("groups", "updates", "fault")
TOLERANCE = 1e-5


def told_by_all_alike(ended: list[Any]) -> list[list[dict[str, Any]]]:
    """Return the reports of rank 0 after checking that all ranks report the same, except for `held_bytes`."""
    assert all(one.code == 0 for one in ended), "\n".join(one.text for one in ended)
    first, *others = ([[{**step, "held_bytes": 0} for step in steps] for steps in one.reports] for one in ended)
    assert all(theirs == first for theirs in others)
    reports: list[list[dict[str, Any]]] = ended[0].reports
    return reports


def assert_close(reports: list[list[dict[str, Any]]], alone: list[list[dict[str, Any]]]) -> None:
    for steps, expected in zip(reports, alone, strict=True):
        for step, other in zip(steps, expected, strict=True):
            for key in COMPARED:
                assert step[key] == pytest.approx(other[key], rel=TOLERANCE, abs=TOLERANCE), (key, step, other)
            assert [step[key] for key in SAME] == [other[key] for key in SAME]


def test_two_ranks_give_the_same_bits_as_one_process(ranks: Ranks) -> None:
    cases = [[*TWO_MICROS, *case] for case in CASES.values()]
    [alone] = ranks(1, *cases, steps=4)
    assert alone.code == 0, alone.text
    assert told_by_all_alike(ranks(2, *cases, steps=4)) == alone.reports
    by_case = dict(zip(CASES, alone.reports, strict=True))
    assert any(step["groups"] < 2 for step in by_case["dropped"])
    assert len({step["weights"] for step in by_case["default"]}) == 4


@pytest.mark.slow
def test_four_ranks_with_one_idle_rank_match_one_process(ranks: Ranks) -> None:
    cases = [[*EMPTY_RANK, *case] for case in (*CASES.values(), ALL_MOVES)]
    [alone] = ranks(1, *cases, steps=3)
    assert_close(told_by_all_alike(ranks(4, *cases, steps=3)), alone.reports)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_nan_on_one_rank_of_four_skips_the_step_on_all(ranks: Ranks, kind: str) -> None:
    harm = {"kind": "nan", "rank": 3, "step": 1, "moment": "collected"}
    four = ["objective.prompts_per_step=4", "optim.micro_batch_size=4"]
    [steps] = told_by_all_alike(ranks(4, [*four], steps=3, kind=kind, replayed=False, harm=[harm]))
    assert [step["updates"] for step in steps] == [1, 0, 1]
    assert "logprobs" in steps[1]["fault"] and steps[1]["weights"] == steps[0]["weights"] != steps[2]["weights"]


@pytest.mark.slow
def test_engines_or_memory_errors_on_one_rank_keep_ranks_in_step(ranks: Ranks) -> None:
    harm = [
        {"kind": "engines", "rank": 1, "step": 0, "moment": "begun"},
        {"kind": "memory for the gradients", "rank": 1, "step": 1, "moment": "begun"},
        {"kind": "memory for the update", "rank": 0, "step": 2, "moment": "begun"},
    ]
    ended = ranks(2, TWO_MICROS, steps=3, replayed=False, harm=harm)
    assert all(one.code == 0 for one in ended), "\n".join(one.text for one in ended)
    for number, updates in enumerate([1, 1, 0]):
        steps = [one.reports[0][number] for one in ended]
        # After a fault in the update the weights of one rank have moved, so the run ends and they are not compared.
        assert updates == 0 or steps[0]["weights"] == steps[1]["weights"]
        assert [step["updates"] for step in steps] == [updates, updates]
        assert [step["fault"] for step in steps] == ["" if updates else "memory (update: out of memory)"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "moment"), [("ddp", "updated"), ("ddp", "micro_batch"), ("fsdp2", "micro_batch")])
def test_exception_on_one_rank_ends_all_ranks_and_is_printed(
    ranks: Ranks, tmp_path: Path, kind: str, moment: str
) -> None:
    harm = {"kind": "error", "rank": 1, "step": 1, "moment": moment}
    given = [f"output_root={tmp_path}", "steps=3", "evaluation.rows=0", *TWO_MICROS]
    ended = ranks(2, given, kind=kind, harm=[harm], whole=True, replayed=False)
    assert [one.code for one in ended] == [1, 1], "\n".join(one.text for one in ended)
    assert "rank 1" in ended[0].text and "a hook that is broken" in ended[0].text
    assert "a hook that is broken" in ended[1].text


def test_signal_to_one_rank_ends_all_ranks_after_the_same_step(ranks: Ranks, tmp_path: Path) -> None:
    harm = {"kind": "signal", "rank": 1, "step": 1, "moment": "updated"}
    given = [f"output_root={tmp_path}", "steps=9", "evaluation.rows=0", *TWO_MICROS]
    ended = ranks(2, given, harm=[harm], whole=True, replayed=False)
    assert [one.code for one in ended] == [0, 0], "\n".join(one.text for one in ended)
    assert [(one.reports[0][0]["stopped"], one.reports[0][0]["steps"]) for one in ended] == [("interrupted", 2)] * 2


@pytest.mark.slow
def test_diverged_weights_are_reported_with_the_rank(ranks: Ranks, tmp_path: Path) -> None:
    harm = {"kind": "other weights", "rank": 1, "step": 1, "moment": "updated"}
    given = [f"output_root={tmp_path}", "steps=20", "evaluation.rows=0"]
    ended = ranks(2, given, harm=[harm], whole=True, replayed=False)
    assert [one.code for one in ended] == [1, 1]
    assert all("expected the weights of rank 0" in one.text and "on rank 1" in one.text for one in ended)


@pytest.mark.slow
def test_two_ranks_match_one_process_for_every_loss_and_kl_form(ranks: Ranks) -> None:
    two = [[*TWO_MICROS, *case] for case in EVERY]
    [alone] = ranks(1, *two, steps=2)
    assert told_by_all_alike(ranks(2, *two, steps=2)) == alone.reports

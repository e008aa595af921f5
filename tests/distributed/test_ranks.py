"""Several processes train as one does: the same prompts, the same gradient, the same faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.objective import KLForm, LossKind

Ranks = Callable[..., list[Any]]
# Unequal lengths are what the small model writes. Two micro-batches of a group each, one for each of two ranks.
TWO_MICROS = ["objective.prompts_per_step=2", "optim.micro_batch_size=4"]
# Three prompts and three micro-batches: one of four ranks has nothing to do.
EMPTY_RANK = ["objective.prompts_per_step=3", "optim.micro_batch_size=4"]
DROPPED = ["objective.collection.zero_variance=drop", "generator.temperature=0.1"]
KL = ["kl.coef=0.05"]
CASES = {
    "default": KL,
    "dropped": [*KL, *DROPPED],
    "several updates, KL in the reward": [*KL, "kl.form=in_reward", "objective.epochs=2", "objective.minibatches=2"],
}
# More micro-batches than ranks: the sum of their gradients rounds in another order.
ALL_MOVES = [*KL, "rubric.source=cached", "data.train=default", "data.held_out=default"]
EVERY = [[*KL, f"objective.loss={loss}", f"kl.form={form}"] for loss in LossKind for form in KLForm]
COMPARED = ("loss", "grad_norm", "logprobs", "kl")
SAME = ("groups", "updates", "fault")
TOLERANCE = 1e-5


def told_by_all_alike(ended: list[Any]) -> list[list[dict[str, Any]]]:
    """Reports of the ranks: the same from all of them, except for the share of the weights that each holds."""
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


def test_two_ranks_of_a_micro_batch_each_give_the_bits_of_one_process_with_both(ranks: Ranks) -> None:
    cases = [[*TWO_MICROS, *case] for case in CASES.values()]
    [alone] = ranks(1, *cases, steps=4)
    assert alone.code == 0, alone.text
    assert told_by_all_alike(ranks(2, *cases, steps=4)) == alone.reports
    by_case = dict(zip(CASES, alone.reports, strict=True))
    assert any(step["groups"] < 2 for step in by_case["dropped"])
    assert len({step["weights"] for step in by_case["default"]}) == 4


@pytest.mark.slow
def test_four_ranks_one_of_them_without_work_agree_with_one_process(ranks: Ranks) -> None:
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


def test_what_only_one_rank_has_and_memory_that_only_one_lacks_part_no_ranks(ranks: Ranks) -> None:
    harm = [
        {"kind": "engines", "rank": 1, "step": 0, "moment": "begun"},
        {"kind": "memory for the gradients", "rank": 1, "step": 1, "moment": "begun"},
        {"kind": "memory for the update", "rank": 0, "step": 2, "moment": "begun"},
    ]
    ended = ranks(2, TWO_MICROS, steps=3, replayed=False, harm=harm)
    assert all(one.code == 0 for one in ended), "\n".join(one.text for one in ended)
    for number, updates in enumerate([1, 1, 0]):
        steps = [one.reports[0][number] for one in ended]
        # The fault of an update ends the run: one rank's weights have moved.
        assert updates == 0 or steps[0]["weights"] == steps[1]["weights"]
        assert [step["updates"] for step in steps] == [updates, updates]
        assert [step["fault"] for step in steps] == ["" if updates else "memory (update: out of memory)"] * 2


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        ("ddp", "updated"),
        pytest.param("ddp", "micro_batch", marks=pytest.mark.slow),
        pytest.param("fsdp2", "micro_batch", marks=pytest.mark.slow),
    ],
)
def test_an_exception_on_one_rank_ends_all_and_each_names_it(
    ranks: Ranks, tmp_path: Path, kind: str, moment: str
) -> None:
    harm = {"kind": "error", "rank": 1, "step": 1, "moment": moment}
    given = [f"output_root={tmp_path}", "steps=3", "evaluation_rows=0", *TWO_MICROS]
    ended = ranks(2, given, kind=kind, harm=[harm], whole=True, replayed=False)
    assert [one.code for one in ended] == [1, 1], "\n".join(one.text for one in ended)
    assert "rank 1" in ended[0].text and "a hook that is broken" in ended[0].text
    assert "a hook that is broken" in ended[1].text


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_named_when_the_time_is_over(ranks: Ranks, tmp_path: Path) -> None:
    harm = {"kind": "sleep", "rank": 1, "step": 1, "moment": "updated", "seconds": 25}
    given = [f"output_root={tmp_path}", "steps=3", "evaluation_rows=0", "distributed.timeout_s=10"]
    ended = ranks(2, given, harm=[harm], whole=True, replayed=False)
    assert [one.code for one in ended] == [1, 1]
    assert "within 10 s, rank 1 did not come" in ended[0].text


@pytest.mark.slow
def test_weights_that_part_are_told_with_the_rank(ranks: Ranks, tmp_path: Path) -> None:
    harm = {"kind": "other weights", "rank": 1, "step": 1, "moment": "updated"}
    given = [f"output_root={tmp_path}", "steps=20", "evaluation_rows=0"]
    ended = ranks(2, given, harm=[harm], whole=True, replayed=False)
    assert [one.code for one in ended] == [1, 1]
    assert all("expected the weights of rank 0" in one.text and "on rank 1" in one.text for one in ended)


@pytest.mark.slow
def test_each_loss_and_each_form_of_the_kl_agree_over_two_updates(ranks: Ranks) -> None:
    two = [[*TWO_MICROS, *case] for case in EVERY]
    [alone] = ranks(1, *two, steps=2)
    assert told_by_all_alike(ranks(2, *two, steps=2)) == alone.reports

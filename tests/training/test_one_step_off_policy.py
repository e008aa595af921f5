"""The next batch is sampled beside training, by weights one step older, and a resumed run draws it again by them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.app.cli import main
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.state import Moment
from rookworld_rlvr.training.step import grpo_step

Train = Callable[..., Path]
EARLY = ("max_staleness=1", "evaluation_rows=0")
OF_THE_MACHINE = ("time/", "throughput/", "memory/")


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if not key.startswith(OF_THE_MACHINE)} for row in rows]


def test_batches_are_one_step_old_and_weighed_for_it(make_config: Callable[..., RunConfig]) -> None:
    context = build_unsaved_run(make_config(*EARLY, "steps=4", "optim.lr=0.01")).context
    pending = []
    context.hooks.append(
        lambda moment, context, _report: (
            pending.append(context.prefetch.pending) if moment is Moment.micro_batch else None
        )
    )
    reports = [grpo_step(context, step) for step in range(4)]
    assert [report.collection.staleness for report in reports] == [0, 1, 1, 1]
    assert reports[0].tokens.sampler_ratio_max < 1.001 < max(r.tokens.sampler_ratio_max for r in reports[1:])
    # While a step is trained the next batch is on its way; behind the last step there is none.
    assert pending == [True, True, True, False]
    assert all(len(report.groups) == 2 and report.times_s["generate"] > 0 for report in reports)
    context.prefetch.close()


def test_where_the_weights_do_not_move_it_changes_nothing(train: Train) -> None:
    still = ("optim.lr=0", "steps=3", "evaluation_rows=0")
    early, on_time = train(*EARLY, *still, root="early"), train(*still, root="on_time")
    ours, theirs = metrics(early), metrics(on_time)
    assert [row.pop("sampler/staleness") for row in ours] == [0, 1, 1]
    assert [row.pop("sampler/staleness") for row in theirs] == [0, 0, 0] and ours == theirs


def test_a_resumed_run_draws_the_batch_in_flight_again_from_its_old_weights(train: Train, tmp_path: Path) -> None:
    given = ("steps=6", "checkpoint_every=3", "keep_checkpoints=9", "validation.every=2", "validation.rows=2")
    whole = train(*EARLY, *given)
    killed = tmp_path / "outputs" / whole.parent.name / "killed"
    shutil.copytree(whole, killed, symlinks=True)
    assert main(["train", f"resume={killed}/checkpoints/step-3"]) == 0
    assert metrics(killed) == metrics(whole)
    ours, theirs = ((run / "checkpoints/step-6/model.safetensors").read_bytes() for run in (killed, whole))
    assert ours == theirs


def test_a_restore_forgets_what_damaged_weights_have_sampled(train: Train) -> None:
    # The limit is passed at once, and the last good checkpoint comes back each time.
    given = ("steps=5", "optim.lr=0.05", "recovery.guard.kl_limit=0.05", "recovery.max_restores=9")
    rows = metrics(train(*EARLY, *given))
    restored = next(i for i, row in enumerate(rows) if row["recovery/restores"])
    # What is trained behind it is sampled from the weights that came back.
    assert [row["sampler/staleness"] for row in rows[restored : restored + 2]][-1] == 0


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("max_staleness=2", "max_staleness: expected 0 or 1, got 2"),
    ],
)
def test_what_does_not_go_with_it_is_refused_in_one_line(
    override: str, told: str, small_overrides: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *small_overrides, *EARLY, override]) == 2
    error = capfd.readouterr().err
    assert told in error and error.count("\n") == 1

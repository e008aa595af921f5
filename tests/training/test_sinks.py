"""Sinks of metrics: the trackers' files, and the lines on the console."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rookworld_rlvr.training import sinks
from rookworld_rlvr.training.sinks import ConsoleSink, TensorBoardSink

Train = Callable[..., Path]


def rows(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_holds_every_value_of_every_step(train: Train) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = train("logging.tracker=tensorboard", "steps=2", "evaluation.rows=0")
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    first, second = rows(folder)
    keys = (first.keys() | second.keys()) - {"step"}
    assert set(events.Tags()["scalars"]) == keys
    for key in keys:
        values = {event.step: event.value for event in events.Scalars(key)}
        assert values == pytest.approx({row["step"]: row[key] for row in (first, second) if key in row}, rel=1e-6), key


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_hides_steps_that_a_resumed_run_repeats(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps, value in ((range(1, 5), 0.5), (range(3, 6), 0.25)):
        sink = TensorBoardSink(tmp_path)
        for step in steps:
            sink.write(step, {"loss": value})
        sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("loss")]
    assert shown == [(1, 0.5), (2, 0.5), (3, 0.25), (4, 0.25), (5, 0.25)]


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
@pytest.mark.parametrize(("given", "project"), [(None, "rookworld-rlvr"), ("chess-test", "chess-test")])
def test_wandb_works_offline_without_an_account(
    given: str | None,
    project: str,
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
    wandb_records: Callable[[Path], list[Any]],
) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    if given:
        monkeypatch.setenv("WANDB_PROJECT", given)
    folder = train("logging.tracker=wandb", "steps=2", "evaluation.rows=0")
    [log] = folder.glob("wandb/offline-run-*/run-*.wandb")
    records = wandb_records(log)
    [run] = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (run.project, run.display_name) == (project, folder.name)
    settings = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert settings["objective"]["prompts_per_step"] == 2
    steps = [record.history for record in records if record.WhichOneof("record_type") == "history"]
    logged = [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in s.item} for s in steps]
    for written, row in zip(logged, rows(folder), strict=True):
        assert written["_step"] == row["step"]
        assert all(written[key] == pytest.approx(row[key]) for key in row if key != "step")


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_disabled_by_environment_variable_writes_nothing(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    folder = train("logging.tracker=wandb", "steps=1", "evaluation.rows=0")
    assert not list(folder.glob("wandb/*")) and len(rows(folder)) == 1


TABLES = {"transcripts", "before and after"}
TRACKED = ("steps=2", "evaluation.rows=2")


def tensorboard_keys(folder: Path) -> tuple[set[str], set[str]]:
    """Return the names of the scalars, and the names of everything else."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    texts = {tag.removesuffix("/text_summary") for tag in events.Tags()["tensors"]}
    return set(events.Tags()["scalars"]), texts


def wandb_keys(records: list[Any]) -> tuple[set[str], set[str]]:
    history = [record.history for record in records if record.WhichOneof("record_type") == "history"]
    items = [item for step in history for item in step.item]
    logged = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
    kinds = {key.removesuffix("/_type"): kind for key, kind in logged.items() if key.endswith("/_type")}
    assert set(kinds.values()) == {"table-file"}
    inner = tuple(f"{name}/" for name in kinds)
    return {key for key in logged if not key.startswith(("_", *inner))}, set(kinds)


@pytest.mark.skipif(not all(map(find_spec, ("tensorboard", "wandb"))), reason="a tracker is not installed")
@pytest.mark.slow
def test_both_trackers_hold_the_same_keys_and_tables(train: Train, wandb_records: Callable[[Path], list[Any]]) -> None:
    keys_and_tables = tensorboard_keys(train("logging.tracker=tensorboard", *TRACKED, root="tensorboard"))
    folder = train("logging.tracker=wandb", *TRACKED, root="wandb")
    [log] = folder.glob("wandb/offline-run-*/run-*.wandb")
    assert wandb_keys(wandb_records(log)) == keys_and_tables
    assert keys_and_tables == ({key for row in rows(folder) for key in row} - {"step"}, TABLES)


def test_the_console_has_a_line_per_step() -> None:
    shown = StringIO()
    sink = ConsoleSink(Console(file=shown, width=160), total_steps=5)
    keys = ("reward/mean", "kl/reference", "policy/entropy", "optim/grad_norm", "optim/lr")
    for step in range(1, 6):
        sink.write(step, {key: 0.25 for key in (*keys, "throughput/completions_per_s")})
    lines = shown.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    assert "reward +0.250  kl 0.2500  entropy 0.250  grad 0.25  lr 2.5e-01" in lines[0]


def test_console_line_estimates_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 3.0, 100.0, 400.0])
    monkeypatch.setattr(sinks.time, "monotonic", lambda: next(clock))
    shown = StringIO()
    sink = ConsoleSink(Console(file=shown, width=160), total_steps=9)
    for step in (5, 6, 7, 9):
        sink.write(step, {"reward/mean": 0.25})
    # The estimate is 3 s for each of three remaining steps, then 50 s for each of two. The last line has no estimate.
    assert [line.partition("+0.250")[2].strip() for line in shown.getvalue().splitlines()] == [
        "", "0:09 left", "1:40 left", "",
    ]  # fmt: skip

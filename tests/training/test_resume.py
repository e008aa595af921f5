"""A run that was stopped and resumed is the run that was not."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.training.sinks import cut_lines

Train = Callable[..., Path]
SOURCE = Path(__file__).resolve().parents[2] / "src"
OF_THE_MACHINE = ("time/", "throughput/", "memory/")
PATIENCE_S = 120


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if not key.startswith(OF_THE_MACHINE)} for row in rows]


def state(folder: Path, step: int) -> dict[str, Any]:
    path = folder / f"checkpoints/step-{step}/trainer_state.pt"
    loaded: dict[str, Any] = torch.load(path, weights_only=False)
    return loaded


def assert_equal_bits(ours: Any, theirs: Any) -> None:
    """Of nested containers of tensors and plain values."""
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_equal_bits(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_equal_bits(one, other)
    else:
        assert ours == theirs


def stopped_at(train: Train, step: int, *overrides: str) -> Path:
    """A run of six steps whose machine went away: what is behind `step` is lost, but for metrics."""
    folder = train("steps=6", f"checkpoint_every={step}", "keep_checkpoints=9", *overrides, root="stopped")
    for later in range(step + 1, 7):
        checkpoint = folder / f"checkpoints/step-{later}"
        if checkpoint.exists():
            checkpoint.rename(folder / f"lost-{later}")
    return folder


@pytest.mark.parametrize(
    "overrides", [(), ("reference.refresh_every=2",), ("kl.warmup_steps=5", "rubric.warmup_steps=5")]
)
def test_three_steps_and_three_resumed_equal_six_bit_for_bit(train: Train, overrides: tuple[str, ...]) -> None:
    whole = train("steps=6", "checkpoint_every=6", *overrides, root="whole")
    folder = stopped_at(train, 3, *overrides)
    torch.manual_seed(1)
    assert main(["train", f"resume={folder}"]) == 0
    assert metrics(folder) == metrics(whole)
    assert len({row["optim/update_norm"] for row in metrics(whole)}) == 6
    assert_equal_bits(state(folder, 6), state(whole, 6))
    for name in ("model.safetensors", "config.json"):
        assert (folder / f"checkpoints/step-6/{name}").read_bytes() == (
            whole / f"checkpoints/step-6/{name}"
        ).read_bytes()
    ours, theirs = (json.loads((path / "summary.json").read_text()) for path in (folder, whole))
    for key in ("steps", "stopped", "before", "after", "gain"):
        assert ours[key] == theirs[key]


def test_a_refreshed_reference_is_the_policy_of_its_step_and_a_frozen_one_the_start(train: Train) -> None:
    given = ("steps=3", "checkpoint_every=1", "keep_checkpoints=9", "evaluation_rows=0")
    refreshed = train(*given, "reference.refresh_every=2", root="refreshed")
    assert_equal_bits(state(refreshed, 3)["reference"], state(refreshed, 2)["policy"])
    assert [row["kl/reference"] > 0 for row in metrics(refreshed)] == [False, True, False]
    frozen = train(*given, root="frozen")
    assert_equal_bits(state(frozen, 3)["reference"], state(frozen, 1)["reference"])
    assert [row["kl/reference"] > 0 for row in metrics(frozen)] == [False, True, True]


def test_what_is_given_with_resume_goes_over_the_config_the_run_was_begun_with(train: Train) -> None:
    folder = train("steps=2", "evaluation_rows=0", "kl.coef=0.5")
    assert main(["train", f"resume={folder}", "steps=4", "optim.lr=0.001", "optim.min_lr_fraction=1"]) == 0
    rows = metrics(folder)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["kl/coef"] for row in rows] == [0.5] * 4
    assert rows[3]["optim/lr"] == 0.001
    assert main(["train", f"resume={folder}", "steps=5", "kl=off"]) == 0
    assert [row["kl/coef"] for row in metrics(folder)] == [0.5] * 4 + [0.0]


def test_a_checkpoint_itself_can_be_resumed_and_later_metrics_are_cut(train: Train) -> None:
    folder = train("steps=4", "checkpoint_every=2", "evaluation_rows=0")
    before = metrics(folder)
    assert main(["train", f"resume={folder / 'checkpoints/step-2'}"]) == 0
    assert metrics(folder) == before


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["resume=/nope"], "resume: expected a run's folder with checkpoints"),
        (["resume={folder}", "debug=short"], "resume: expected overrides of single values, got debug=short"),
        (["resume={folder}", "seed=5"], "resume: expected a checkpoint of this model and data"),
        (["resume={folder}", "model.path=tiny"], "resume: expected a checkpoint of this model and data"),
        (["resume={folder}", "evaluation_rows=2"], "resume: expected 4 evaluated rows"),
    ],
)
def test_a_resume_that_cannot_go_on_says_so_in_one_line(
    train: Train, capfd: pytest.CaptureFixture[str], overrides: list[str], complaint: str
) -> None:
    folder = train("steps=1", "evaluation_rows=1")
    before = metrics(folder)
    capfd.readouterr()
    assert main(["train", *(override.format(folder=folder) for override in overrides)]) == 2
    error = capfd.readouterr().err
    assert complaint in error and error.count("\n") == 1
    assert metrics(folder) == before


def test_a_signal_finishes_the_step_and_the_run_goes_on_by_resume(small_overrides: list[str], tmp_path: Path) -> None:
    root = tmp_path / "outputs"
    command = [sys.executable, "-m", "rookworld_rlvr", "train", *small_overrides, f"output_root={root}", "steps=9999"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    log = root / "latest" / "metrics.jsonl"
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        deadline = time.monotonic() + PATIENCE_S
        while not (log.is_file() and log.read_text().count("\n") >= 3):
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=PATIENCE_S)
    assert (run.returncode, err) == (0, "")
    assert "SIGTERM: finishing the step, then saving" in out
    folder = (root / "latest").resolve()
    summary = json.loads((folder / "summary.json").read_text())
    done = summary["steps"]
    assert summary["stopped"] == "interrupted" and done >= 3 and summary["after"] == {}
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"step-{done}"]
    assert main(["train", f"resume={folder}", f"steps={done + 2}"]) == 0
    assert [row["step"] for row in metrics(folder)] == list(range(1, done + 3))
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["stopped"], summary["steps"]) == ("finished", done + 2) and summary["after"]


def test_cutting_metrics_drops_later_steps_and_a_half_written_line(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    cut_lines(file, 2)
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'
    cut_lines(tmp_path / "absent.jsonl", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]

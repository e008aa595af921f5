"""Runs that were copied without their links, runs on file systems without links, and damaged checkpoints of a run."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr import files
from rookworld_rlvr.app.cli import main
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.state import Event, Moment, StepContext
from rookworld_rlvr.training.trainer import train as train_run

Train = Callable[..., Path]
SHORT = ("evaluation.rows=0", "generator.max_new_tokens=8", "checkpoint_every=1")


@pytest.fixture(scope="module")
def finished(train_once: Train) -> Path:
    return train_once("steps=2", *SHORT)


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run", symlinks=True))


def steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_run_that_was_copied_without_its_links_resumes_and_has_links_again(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run", symlinks=False))
    assert (run / "checkpoints/last").is_dir() and not (run / "checkpoints/last").is_symlink()
    assert main(["train", f"resume={run}", "steps=3"]) == 0
    assert (run / "checkpoints/last").readlink() == Path("step-3") and steps(run) == [1, 2, 3]
    assert (run / "summary.json").is_file() and (run / "checkpoints/best").is_symlink()
    # The copies are gone, and nothing else is left.
    assert names(run / "checkpoints") == ["best", "last", "last_good", "step-0", "step-2", "step-3"]


def test_new_run_starts_in_copied_outputs(train: Train, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "outputs/latest")
    run = train("steps=1", *SHORT)
    assert (tmp_path / "outputs/latest").is_symlink() and steps(run) == [1]
    # It is a copy of no folder beside it, so it stays.
    assert steps(tmp_path / "outputs/latest.copied") == [1, 2]


def test_run_without_links_ends_and_its_newest_model_is_found(
    small_overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    files._say_no_links.cache_clear()
    monkeypatch.setattr(Path, "symlink_to", refuse)
    root = tmp_path / "outputs"
    assert main(["train", *small_overrides, *SHORT, f"output_root={root}", "steps=1"]) == 0
    assert capfd.readouterr().err.count("no links can be made here (Operation not supported): text files") == 1
    latest = root / "latest"
    run = root / latest.read_text().strip()
    assert (run / "checkpoints/last").read_text() == "step-1\n"
    assert main(["train", f"resume={latest}", "steps=2"]) == 0
    assert (run / "checkpoints/last").read_text() == "step-2\n" and steps(run) == [1, 2]
    for command in (["report"], ["rollouts"], ["rescore"]):
        assert main([*command, str(latest)]) == 0
    loaded, newest = (
        load_policy(ModelConfig(path=str(path)), torch.device("cpu"), Precision.fp32).model.state_dict()
        for path in (latest / "checkpoints/last", run / "checkpoints/step-2")
    )
    assert all(torch.equal(loaded[name], newest[name]) for name in newest)
    assert main(["export", str(latest), "--to", str(tmp_path / "exported"), "--checkpoint", "best"]) == 0


@pytest.mark.parametrize("damage", ["truncated", "empty", "missing", "of another shape", "without a part"])
def test_damaged_newest_checkpoint_is_passed_over_in_words(
    damage: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = run / "checkpoints/step-2/trainer_state.pt"
    state = torch.load(file, weights_only=True)
    if damage == "missing":
        file.unlink()
    elif damage in ("truncated", "empty"):
        file.write_bytes(file.read_bytes()[: 5000 if damage == "truncated" else 0])
    else:
        del state["policy"]
        torch.save([1] if damage == "of another shape" else state, file)
    # The newest two checkpoints are kept, and step 0 as the last good one.
    assert names(run / "checkpoints")[-3:] == ["step-0", "step-1", "step-2"]
    assert main(["train", f"resume={run}", "steps=3"]) == 0
    shown = capfd.readouterr().out
    assert "a checkpoint of this model and data in" in shown and "step-2: " in shown
    assert "; step-1 is used in its place" in shown
    assert steps(run) == [1, 2, 3] and (run / "checkpoints/last").readlink() == Path("step-3")


def test_damaged_newest_checkpoint_is_passed_over_by_resume_auto(
    train: Train, capfd: pytest.CaptureFixture[str]
) -> None:
    run = train("steps=2", *SHORT)
    (run / "summary.json").unlink()
    (run / "checkpoints/step-2/trainer_state.pt").write_bytes(b"")
    assert train("steps=2", *SHORT, "resume=auto") == run
    assert "; step-1 is used in its place" in capfd.readouterr().out and steps(run) == [1, 2]


def test_damaged_checkpoint_that_is_named_is_refused(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints/step-2/trainer_state.pt").write_bytes(b"")
    assert main(["train", f"resume={run}/checkpoints/step-2", "steps=3"]) == 2
    for step in (0, 1):
        (run / f"checkpoints/step-{step}/trainer_state.pt").write_bytes(b"")
    assert main(["train", f"resume={run}", "steps=3"]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 2 and error.count("step-2: ") == 2


def test_restore_passes_over_a_damaged_checkpoint(
    make_saved_run: Callable[..., Run], set_limits: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    set_limits(GOOD_STEPS=1, KEEP_CHECKPOINTS=9)
    run = make_saved_run("steps=4", *SHORT)

    def damage(moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.updated and event.step == 3:
            good = context.recovery.last_good_step
            (run.folder / f"checkpoints/step-{good}/trainer_state.pt").write_bytes(b"")
            next(context.policy.model.parameters()).data[0] = torch.nan

    run.context.hooks.append(damage)
    assert train_run(run)["stopped"] == "finished"
    shown = capfd.readouterr().out
    assert "step-2: " in shown and "; step-3 is used in its place\nrestored step-3, learning rate × 0.5" in shown

"""A sweep (`-m`) has a run folder for each member, one table at the end and one smoke test for all members."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from rookworld_rlvr.app import train as train_command
from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.smoke import _first_value
from rookworld_rlvr.training.run import Run


def run_folders(root: Path) -> list[Path]:
    return sorted(file.parent for file in root.glob("*/*/summary.json") if file.parents[1].name != "sweeps")


@pytest.fixture
def unsound_model(small_model: Path, tmp_path: Path) -> Path:
    """The small model with a weight that is not a number, which the preflight checks refuse."""
    folder = tmp_path / "unsound"
    shutil.copytree(small_model, folder)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.ln_f.weight"][0] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_sweep_runs_each_member_in_its_own_folder_and_prints_one_table(
    train: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train("-m", "kl.coef=0,0.01", "steps=1", "evaluation.rows=2", "name=two")
    folders = {folder for folder in run_folders(tmp_path / "outputs") if not folder.is_symlink()}
    coefs = [OmegaConf.load(folder / "config.yaml").kl.coef for folder in folders]
    assert sorted(coefs) == [0, 0.01]
    assert {folder.name.split("-", 3)[3] for folder in folders} == {"two-kl.coef-0", "two-kl.coef-0.01"}
    shown = capfd.readouterr().out
    assert "[1/2] kl.coef=0\n" in shown and "[2/2] kl.coef=0.01\n" in shown
    table = shown[shown.rindex("overrides") :]
    assert table.count("finished") == 2 and "policy/legal_best_move" in shown
    assert "kl.coef=0 " in table and "kl.coef=0.01" in table
    # Overrides that all members share are not repeated, and each line names its folder.
    assert "steps=1" not in table and all(str(folder) in table for folder in folders)
    assert "to compare them on one page: " in shown
    # Only the sweep's own table is printed, not one per member.
    assert "interval, over rows" not in shown and "No measured difference" not in shown


def test_sweep_returns_highest_exit_code_and_runs_all_members(
    small_overrides: list[str],
    small_model: Path,
    unsound_model: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    given = ["evaluation.rows=0", "steps=1", f"output_root={tmp_path / 'outputs'}"]
    assert main(["train", "-m", *small_overrides, *given, f"model.path={unsound_model},{small_model}"]) == 3
    shown = capfd.readouterr()
    assert "preflight refused" in shown.err and shown.out.count("finished after 1 steps") == 1


def test_a_signal_ends_the_whole_sweep(
    small_overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(run: Run) -> dict[str, Any]:
        run.stop_requested = True
        return real(run)

    real = train_command.train
    monkeypatch.setattr(train_command, "train", interrupted)
    given = ["evaluation.rows=0", "steps=1", f"output_root={tmp_path / 'outputs'}", "seed=0,1"]
    assert main(["train", "-m", *small_overrides, *given]) == 130
    shown = capfd.readouterr().out
    assert "[1/2] seed=0" in shown and "[2/2]" not in shown and len(run_folders(tmp_path / "outputs")) == 1


def test_smoke_of_a_sweep_checks_the_first_values_once(
    small_overrides: list[str],
    small_model: Path,
    unsound_model: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    given = [*small_overrides, f"output_root={tmp_path / 'outputs'}"]
    assert main(["smoke", "-m", *given, f"model.path={small_model},{unsound_model}"]) == 0
    assert capfd.readouterr().out.count("one step") == 1
    assert main(["smoke", "--multirun", *given, f"model.path={unsound_model},{small_model}"]) == 4
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("argument", "first"),
    [
        ("kl.coef=0,0.01", "kl.coef=0"),
        ("steps=5", "steps=5"),
        ("kl.coef=choice(0,0.01)", "kl.coef=0"),
        ("seed=range(3,9)", "seed=3"),
        ("model=*", "model=*"),
        ("--cfg", "--cfg"),
        ("a=[1,2],[3]", "a=[1,2]"),
        ("a={b:1,c:2},x", "a={b:1,c:2}"),
        ("name='x,y',z", "name='x,y'"),
        ('name="x,y",z', 'name="x,y"'),
    ],
)
def test_first_value_of_a_sweep_respects_brackets_and_quotes(argument: str, first: str) -> None:
    assert _first_value(argument) == first

"""A run: the files that it writes, and its actions after non-finite gradients and losses."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from rookworld_rlvr.app import build
from rookworld_rlvr.errors import TrainingGaveUpError
from rookworld_rlvr.evaluation.headline import headline_keys
from rookworld_rlvr.model.loading import load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.report.run_record import read_run, shared_row_gains
from rookworld_rlvr.training import loop
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.metrics import METRICS, declared
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.run_files import make_run_folder
from rookworld_rlvr.training.trainer import train as train_run

Train = Callable[..., Path]
SUMMARY_KEYS = {
    "steps",
    "stopped",
    "before",
    "after",
    "gain",
    "wall_s",
    "completions_per_s",
    "peak_rss_gib",
    "preflight",
}
TRANSCRIPT_KEYS = {"step", "task", "prompt", "completion", "expected", "reward", "components", "failure", "finished"}
CONSTANT_LR = "optim.min_lr_fraction=1"


def json_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def checkpoints(folder: Path) -> list[str]:
    """Return the names of the checkpoints in a run's folder, without the links `best` and `last_good`."""
    return sorted(path.name for path in (folder / "checkpoints").iterdir() if not path.is_symlink())


@pytest.fixture(scope="module")
def finished(small_overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four steps."""
    from rookworld_rlvr.app.cli import main

    root = tmp_path_factory.mktemp("run") / "outputs"
    given = ["steps=4", "evaluation.rows=2", "checkpoint_every=2", "name=four"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "TRANSCRIPTS_EVERY", 2)
        assert main(["train", *small_overrides, f"output_root={root}", *given]) == 0
    return (root / "latest").resolve()


def test_run_folder_is_named_by_date_and_latest_points_to_it(finished: Path) -> None:
    root = finished.parents[1]
    assert (root / "latest").is_symlink() and finished.parent.parent == root
    assert finished.name.endswith("-four") and len(finished.parent.name.split("-")) == 3
    contents = {"config.yaml", "metrics.jsonl", "rollouts.jsonl", "checkpoints", "summary.json", "before_rows.jsonl"}
    contents |= {"report.html", "after_rows.jsonl"}
    assert {path.name for path in finished.iterdir()} == contents


def test_runs_that_begin_in_the_same_instant_have_their_own_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, mkdir = datetime(2024, 5, 6), Path.mkdir

    def overtaken(folder: Path, *arguments: Any, **options: Any) -> None:
        """Make the folder, but if it is the first of its name, let another run make it before."""
        if folder.name == "00-00-00-run" and not folder.exists():
            mkdir(folder)
        mkdir(folder, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", overtaken)
    made = [make_run_folder(tmp_path, "run", now=now) for _ in range(2)]
    assert made == [tmp_path / "2024-05-06" / f"00-00-00-{name}" for name in ("run-2", "run-3")]


def test_metrics_have_one_object_per_step_and_every_key_is_declared(finished: Path) -> None:
    rows = json_lines(finished / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    families = {key for key in METRICS if key.endswith("/*")}
    # tests/training/test_engine_run.py has a run that is scored by an engine.
    of_engines = {key for key in METRICS if key.startswith("scorer/engine_")}
    assert len(of_engines) == 4
    # tests/training/test_validation.py has runs with a learning curve.
    of_curve = {key for key in METRICS if key.startswith("validation/")}
    # tests/training/test_all_moves.py has runs whose positions have evaluations.
    of_evaluations = {"reward/expected_value", "reward/expected_value_prompts", "policy/move_entropy"}
    for row in rows:
        keys = set(row) - {"step"}
        assert all(declared(key).meaning for key in keys)
        assert METRICS.keys() - families - of_engines - of_curve - of_evaluations == keys & METRICS.keys()
        assert all(isinstance(row[key], int | float) for key in keys)
    with pytest.raises(KeyError):
        declared("reward/nonsense")
    assert rows[0]["kl/reference"] == 0 and rows[1]["kl/reference"] > 0 and rows[0]["optim/update_norm"] > 0


def test_rollouts_hold_the_best_and_worst_of_each_group(finished: Path) -> None:
    rows = json_lines(finished / "rollouts.jsonl")
    assert [row["step"] for row in rows] == [1] * 4 + [2] * 4 + [4] * 4
    assert all(row.keys() == TRANSCRIPT_KEYS for row in rows)
    assert {row["task"] for row in rows} == {"policy", "environment"}
    for worst, best in zip(rows[::2], rows[1::2], strict=True):
        assert worst["prompt"] == best["prompt"] and worst["reward"] <= best["reward"]


def test_summary_has_required_keys_and_tables(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert summary.keys() >= SUMMARY_KEYS
    assert (summary["steps"], summary["stopped"]) == (4, "finished")
    assert {"policy/valid", "environment/next_state_accuracy"} <= summary["before"].keys() == summary["after"].keys()
    assert all(entry.keys() == {"value", "low", "high", "n"} for entry in summary["before"].values())
    assert all(entry.keys() == {"value", "low", "high"} for entry in summary["gain"].values())
    assert summary["before"]["policy/valid"]["n"] == 2 and len(summary["preflight"]) == 6
    assert summary["better"] == summary["worse"] == [], "two rows tell nothing apart"
    assert summary["software"]["torch"] and len(set(summary["hashes"].values())) == 4
    assert summary["peak_rss_gib"] > 0.1 and summary["completions_per_s"] > 0


def test_checkpoints_load_with_auto_classes_and_their_weights_differ(finished: Path, small_model: Path) -> None:
    folders = [finished / "checkpoints" / name for name in checkpoints(finished)]
    assert [folder.name for folder in folders] == ["step-0", "step-2", "step-4"]
    begun = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32)
    heads = [begun.lm_head.weight]
    for folder in folders:
        heads.append(AutoModelForCausalLM.from_pretrained(folder).lm_head.weight)
        assert AutoTokenizer.from_pretrained(folder)("P: ").input_ids == [3]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[1], heads[2]) and not torch.equal(heads[2], heads[3])


def test_saved_config_is_resolved_and_equals_the_run_config(finished: Path, make_config: Any) -> None:
    from omegaconf import OmegaConf

    saved = OmegaConf.load(finished / "config.yaml")
    assert saved.steps == 4 and saved.optim.lr == 0.003 and saved.kl.coef == 0.05
    merged = OmegaConf.merge(OmegaConf.structured(RunConfig), saved)
    assert OmegaConf.to_object(merged) == make_config(
        "steps=4",
        "evaluation.rows=2",
        "checkpoint_every=2",
        "name=four",
        f"output_root={finished.parents[1]}",
    )


def test_newest_last_good_and_final_checkpoints_are_kept(train: Train, set_limits: Callable[..., None]) -> None:
    folder = train("steps=5", "checkpoint_every=1", "evaluation.rows=0")
    assert checkpoints(folder) == ["step-0", "step-4", "step-5"]
    set_limits(KEEP_CHECKPOINTS=1)
    folder = train("steps=3", "checkpoint_every=2", "evaluation.rows=0", root="other")
    assert checkpoints(folder) == ["step-0", "step-3"]


def test_evaluation_before_training_does_not_change_trained_weights(train: Train) -> None:
    heads = []
    for rows in (0, 2):
        folder = train("steps=2", f"evaluation.rows={rows}", root=f"rows{rows}")
        heads.append(AutoModelForCausalLM.from_pretrained(folder / "checkpoints/step-2").lm_head.weight)
    assert torch.equal(*heads)


def poison(policy: Policy, backwards: set[int]) -> None:
    """Make one gradient NaN at these backward passes, counted from 0."""
    seen = iter(range(10**6))

    def hook(gradient: Tensor) -> Tensor:
        return gradient * torch.nan if next(seen) in backwards else gradient

    policy.model.transformer.ln_f.weight.register_hook(hook)


def test_non_finite_gradient_skips_only_its_own_update(
    make_saved_run: Callable[..., Run], set_limits: Callable[..., None]
) -> None:
    set_limits(KEEP_CHECKPOINTS=9)
    run = make_saved_run("steps=3", "checkpoint_every=1", "evaluation.rows=0", CONSTANT_LR)
    poison(run.context.policy, {1})
    train_run(run)
    rows = json_lines(run.folder / "metrics.jsonl")
    assert [row["recovery/skipped"] for row in rows] == [0, 1, 1]
    assert [row["recovery/restores"] for row in rows] == [0, 0, 0]
    assert [row["optim/lr"] for row in rows] == [0.003, 0.003, 0.003]
    assert [row["optim/update_norm"] > 0 for row in rows] == [True, False, True]
    weights = [
        AutoModelForCausalLM.from_pretrained(run.folder / f"checkpoints/step-{step}").state_dict() for step in (1, 2, 3)
    ]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[1]["lm_head.weight"], weights[2]["lm_head.weight"])
    assert all(value.isfinite().all() for value in weights[2].values())


def test_too_many_faults_in_a_row_exit_with_code_4_and_diagnosis(
    train: Train, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def poisoned(*arguments: Any) -> Policy:
        policy = load_policy(*arguments)
        poison(policy, {1, 2, 3})
        return policy

    monkeypatch.setattr(build, "load_policy", poisoned)
    given = ("steps=9", "recovery.max_consecutive_nans=2", "evaluation.rows=0")
    # These rows have similar lengths, so a step makes one backward pass.
    short = ("data.tasks=[policy,environment:0]", "generator.max_new_tokens=8")
    folder = train(*given, *short, exit_code=4)
    diagnosis = (folder / "diagnosis.txt").read_text()
    assert diagnosis.startswith("step 4: 3 faults in a row, 1 restores so far; the last was gradient")
    assert "first bad       gradient of transformer.ln_f.weight\n" in diagnosis
    error = capfd.readouterr().err
    assert "gradient of transformer.ln_f.weight" in error and str(folder) in error and error.count("\n") == 1
    assert {row["step"] for row in json_lines(folder / "rollouts.jsonl")} == {1, 4}
    assert not (folder / "summary.json").exists()


def test_non_finite_loss_is_a_fault(make_saved_run: Callable[..., Run]) -> None:
    # Before the first update KL is 0. After an update at this rate it is above 1 nat, so the loss overflows.
    given = ("steps=3", "kl.coef=3e38", "optim.lr=0.1", "evaluation.rows=0", "recovery.max_consecutive_nans=1")
    run = make_saved_run(*given)
    with pytest.raises(TrainingGaveUpError, match=r"2 faults in a row, .* the last was loss \(loss: "):
        train_run(run)
    assert [row["step"] for row in json_lines(run.folder / "metrics.jsonl")] == [1, 2, 3]


def test_rows_before_and_after_give_the_gains_of_the_summary(finished: Path) -> None:
    run = read_run(finished)
    assert run.measured and shared_row_gains([run, run]) == [run.row_gains] * 2
    found = {key: (fmean(gains.values()), len(gains)) for key, gains in run.row_gains.items() if gains}
    assert found.keys() == headline_keys_of(run.summary["gain"]) and len(found) > 5
    for key, (mean, rows) in found.items():
        assert (
            mean == pytest.approx(float(run.summary["gain"][key]["value"])) and rows == run.summary["after"][key]["n"]
        )
    assert shared_row_gains([run, replace(run, measured="another")]) == []
    assert shared_row_gains([replace(run, measured="")] * 2) == []


def headline_keys_of(gain: Mapping[str, Any]) -> set[str]:
    return gain.keys() & set(headline_keys())

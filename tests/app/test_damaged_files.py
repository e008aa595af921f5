"""Damaged or unsuitable files and arguments give one line and exit code 2, and destroy nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy, tiny_model_folder

BOARD = "7k/8/8/8/8/8/8/K7 w - - 0 1"
PGN = '[Event "?"]\n\n1. e4 e5 2. Nf3 Nc6 1/2-1/2\n'


def refused(argv: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    assert main(argv) == 2
    error = capfd.readouterr().err
    assert error.startswith(("rookworld: ", "rookworld data: ")) and error.count("\n") == 1 and len(error) < 1000, error
    return error


@pytest.fixture(scope="module")
def finished(train_once: Callable[..., Path]) -> Path:
    return train_once("steps=2", "evaluation.rows=2", "checkpoint_every=1")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run", symlinks=True))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"hidden_size": 100}),
        ("config.json", {"vocab_size": 10}),
        ("config.json", {"num_attention_heads": 0}),
        ("config.json", {"dtype": "nope"}),
        ("config.json", {"num_hidden_layers": 3}),
        ("config.json", []),
        ("tokenizer.json", []),
        ("tokenizer_config.json", []),
        ("generation_config.json", []),
    ],
    ids=str,
)
def test_unsuitable_model_folder_is_refused(file: str, change: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_model_folder(), tmp_path / "model"))
    content = json.loads((folder / file).read_text()) | change if change else change
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"^model\.path: expected ") as refusal:
        load_policy(ModelConfig(path=str(folder)), torch.device("cpu"), Precision.fp32)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("checkpoints/step-2/trainer_state.pt", "hello"),
        ("metrics.jsonl", "\0\0\0\n"),
        ("metrics.jsonl", '{"loss": 1}\n'),
        ("rollouts.jsonl", "[]\n"),
        ("before_rows.jsonl", "{bad\n"),
        ("before_rows.jsonl", "5\n"),
        ("config.yaml", ""),
    ],
    ids=str,
)
def test_resume_of_a_damaged_run_is_refused_and_removes_nothing(
    file: str, content: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (run / file).write_text(content)
    kept = sorted(run.rglob("*"))
    refused(["train", f"resume={run}/checkpoints/step-2", "steps=3"], capfd)
    assert sorted(run.rglob("*")) == kept and (run / "summary.json").is_file()


@pytest.mark.parametrize("saved", [[1], {"sampler": 5}], ids=str)
def test_state_of_another_shape_is_refused(saved: object, run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch.save(saved, run / "checkpoints/step-2/trainer_state.pt")
    assert "expected a checkpoint of this model" in refused(
        ["train", f"resume={run}/checkpoints/step-2", "steps=3"], capfd
    )


@pytest.mark.parametrize(
    ("file", "content", "commands"),
    [
        ("summary.json", "[]", ["report", "export"]),
        ("summary.json", '{"gain": 5}', ["report", "export"]),
        ("metrics.jsonl", "5\n", ["report"]),
        ("after_rows.jsonl", "5\n", ["report"]),
        ("metrics.jsonl", '{"step": 1, "loss": "a"}\n', ["report"]),
        ("rollouts.jsonl", "ROW with prompt 5", ["report", "rollouts", "rescore"]),
        ("rollouts.jsonl", "ROW with prompt P: x", ["report", "rollouts", "rescore"]),
    ],
    ids=str,
)
def test_malformed_file_of_a_run_is_refused(
    file: str, content: str, commands: list[str], run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if content.startswith("ROW"):
        row = json.loads((run / file).read_text().splitlines()[0])
        prompt = content.removeprefix("ROW with prompt ")
        content = json.dumps(row | {"prompt": int(prompt) if prompt.isdigit() else prompt}) + "\n"
    (run / file).write_text(content)
    arguments = {"export": ["export", str(run), "--to", str(tmp_path / "to")], "rescore": ["rescore", f"resume={run}"]}
    for command in commands:
        refused(arguments.get(command, [command, str(run)]), capfd)
    assert not (tmp_path / "to").exists() or not any((tmp_path / "to").iterdir())


def test_bytes_that_are_no_text_are_not_shown(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (run / "rollouts.jsonl").write_bytes(b"\xff" * 10**6)
    refused(["rollouts", str(run)], capfd)


def test_damaged_fault_file_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "step-1.pt").write_text("hello")
    assert "expected a batch that a run saved" in refused(["inspect", str(tmp_path / "step-1.pt")], capfd)


@pytest.mark.parametrize("header", [5, {}, {"config": {"seed": 0}, "facts": [], "software": {}, "model": {}}], ids=str)
def test_evaluation_with_a_malformed_header_is_refused(
    header: object, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text('{"suites": {}}')
    (tmp_path / "a.json.rows.jsonl").write_text(json.dumps({"evaluation": header}) + "\n")
    given = ["evaluate", "compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]
    assert "expected a header with" in refused(given, capfd)


@pytest.mark.parametrize(
    "row",
    ["[" * 10**5, '{"fen": "k7/8/1Q6/1R6/8/8/8/8 w - - 0 1", "best": "b5a5"}'],
    ids=["nested too deeply", "no white king"],
)
def test_file_of_mates_with_a_bad_row_is_refused(row: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mates.jsonl").write_text(row + "\n")
    given = ["evaluate", "suites=[mate_in_one]", f"evaluation.mates={tmp_path / 'mates.jsonl'}"]
    assert "mates.jsonl:1" in refused(given, capfd)


def test_bad_tag_of_a_bigbench_game_gives_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    example = {"input": '[Variant "zzz"]\n\n1. f3 e5 2. g4', "target": "Qh4#"}
    (tmp_path / "task.json").write_text(json.dumps({"examples": [example]}))
    given = ["evaluate", "suites=[mate_in_one]", f"evaluation.mates={tmp_path / 'task.json'}"]
    assert "example 1" in refused(given, capfd)


def test_corrected_copy_of_positions_is_written_as_json_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "games.pgn"
    source.write_text(PGN)
    assert ".jsonl file" in refused(["data", "audit", str(source), "--fix", str(tmp_path / "copy.pgn")], capfd)
    assert main(["data", "audit", str(source), "--fix", str(tmp_path / "copy.jsonl")]) == 0
    assert main(["data", "audit", str(tmp_path / "copy.jsonl")]) == 0


def test_rows_without_positions_give_no_evaluations(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.txt").write_text(f"A: {BOARD}+a1a2+a1a2+7k/8/8/8/8/8/K7/8 b - - 1 1+0.001+0+0\n")
    given = ["data", "evals", str(tmp_path / "rows.txt"), "--out", str(tmp_path / "evals.gz")]
    assert "expected P: prompts or positions" in refused(given, capfd)
    assert not (tmp_path / "evals.gz").exists()


@pytest.mark.parametrize(
    "argv",
    [
        ["uci", "--bogus"],
        ["uci", "--threads", "x"],
        ["rollouts", "run", "--most", "-1"],
        ["rollouts", "run", "--task", "foo"],
        ["train", "max_minutes=nan"],
        ["train", "steps=0"],
        ["sft", "corpus=[x]", "output="],
        ["data", "generate", "--held-out", "abc", "--rows", "1", "--out", "x"],
    ],
    ids=" ".join,
)
def test_bad_argument_gives_one_line(argv: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    refused(argv, capfd)


def test_interrupt_while_a_command_is_imported_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rookworld_rlvr.app.process.importlib.import_module", interrupted)
    assert main(["report", "x"]) == 130 and capfd.readouterr().err == "rookworld: interrupted\n"

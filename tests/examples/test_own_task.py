"""The example of a task of one's own: training, evaluation and report by its command, and the text of the tutorial."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rookworld_rlvr.app.cli import main

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "legal_captures.py"
TUTORIAL = ROOT / "docs" / "own-task.md"
LITTLE = (
    "objective.prompts_per_step=4",
    "objective.group_size=4",
    "generator.max_new_tokens=24",
    "evaluation.rows=8",
    "evaluation.sampled_rows=2",
    "evaluation.curve_rows=4",
    "evaluation.curve_every=2",
    "optim.warmup_steps=0",
    "threads=1",
)


def run(*arguments: str, cwd: Path) -> str:
    """Run the example's command; return what it prints."""
    command = [sys.executable, str(EXAMPLE), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, forked: Callable[[Callable[[], int]], int]) -> Path:
    """Folder of a run of three steps."""
    root = tmp_path_factory.mktemp("captures")

    def work() -> int:
        os.chdir(root)
        sys.argv = [str(EXAMPLE), "train", "data.tasks=[captures]", "steps=3", *LITTLE, f"output_root={root}"]
        runpy.run_path(str(EXAMPLE), run_name="__main__")
        return 0

    assert forked(work) == 0
    return root / "latest"


def test_three_steps_train_on_rewards_of_the_task(folder: Path) -> None:
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [step for step in steps if step["step"] > 0]
    assert len(trained) == 3 and all(step["optim/update_norm"] > 0 for step in trained)
    assert any(key.endswith("captures/correctness/captures") for key in trained[0])


def test_summary_and_report_have_the_keys_of_the_task(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    for key in ("captures/exact", "captures/precision", "sampled/captures/recall"):
        assert summary["before"][key]["n"] >= 2 and key in summary["gain"]
    assert "captures/recall" in (folder / "report.html").read_text()
    assert not any(key.startswith("match") for key in summary["gain"])


@pytest.mark.slow
def test_evaluation_and_rollouts_know_the_task(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    shown = run("evaluate", "data.tasks=[captures]", "evaluation.rows=6", f"output={out}", "threads=1", cwd=tmp_path)
    assert "examples/legal_captures.py rollouts " in shown, "what is printed to be typed must know the task"
    table = json.loads(out.read_text())["suites"]["captures"]["table"]
    assert table["captures/recall"]["n"] == 6
    assert "captures" in run("rollouts", str(folder), "--task", "captures", "--most", "1", cwd=tmp_path)


@pytest.mark.slow
def test_several_processes_all_know_the_task(tmp_path: Path) -> None:
    little = [one for one in LITTLE if not one.startswith("evaluation.rows")]
    shown = run("smoke", "data.tasks=[captures]", "processes=2", *little, cwd=tmp_path)
    assert "captures/" not in shown and "correctness/captures" in shown


def test_another_process_does_not_know_the_task(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "data.tasks=[captures]"]) == 2
    told = "data.tasks: expected a task among policy, environment, chat, got 'captures'"
    assert told in capfd.readouterr().err


def lines_of(code: str) -> list[str]:
    """Return the lines that are not blank, without their indentation."""
    return [line.strip() for line in code.splitlines() if line.strip()]


def test_every_part_that_the_tutorial_shows_is_in_the_example() -> None:
    shown = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    code = "\n".join(lines_of(EXAMPLE.read_text(encoding="utf-8")))
    assert shown and all("\n".join(lines_of(block)) in code for block in shown)


def test_example_is_short() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 80

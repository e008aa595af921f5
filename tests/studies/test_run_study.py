"""A whole study: it is interrupted and resumed, one arm fails, and its page and the verdict table are written."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow(minutes=3)

PROGRAM = Path(__file__).resolve().parents[2] / "studies/run.py"
DECLARATION = """\
question: Does a penalty change two steps?
source: this test
comparison: penalty
smallest_effect: 0.01
guards: [policy/valid, environment/valid]
seeds: 2
comparison_seeds: 2
overrides: [debug=short, steps=4, evaluation.rows=8, evaluation.sampled_rows=0, evaluation.match_pairs=0, device=cpu]
arms:
  none: [kl.coef=0]
  penalty: [kl.coef=0.1]
  missing: [model.path=/nowhere]
"""
# Time limit for several processes on a machine that is shared with others.
WAIT_S = 900


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Yield a function that starts the program in a folder with a study. Processes left at the end are interrupted."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/tiny.yaml").write_text(DECLARATION)
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(PROGRAM), "tiny", "--processes", "1", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        started.append(subprocess.Popen(command, cwd=tmp_path, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=WAIT_S)


def runs(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("outputs/studies/tiny/*/*/*/*/config.yaml"))


def wait_for_a_step(folder: Path) -> None:
    """Wait until a run has made a step."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if any((run / "metrics.jsonl").is_file() and (run / "metrics.jsonl").read_text() for run in runs(folder)):
            return
        time.sleep(0.05)
    raise AssertionError(f"no step within {WAIT_S} s")


def test_interrupted_study_resumes_and_lists_a_failed_arm(
    study: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    first = study()
    wait_for_a_step(tmp_path)
    first.send_signal(signal.SIGINT)
    shown, _ = first.communicate(timeout=WAIT_S)
    assert first.returncode == 130 and "none, seed 0: interrupted" in shown and "penalty" not in shown
    [interrupted] = runs(tmp_path)
    assert json.loads((interrupted / "summary.json").read_text())["stopped"] == "interrupted"
    assert not (tmp_path / "docs").exists()

    second = study()
    shown, _ = second.communicate(timeout=WAIT_S)
    assert second.returncode == 0 and "0 of 6 members are finished" in shown, shown
    # The interrupted run was resumed in its own folder, and no member was started twice.
    made = runs(tmp_path)
    assert interrupted in made and len(made) == 4
    assert all(json.loads((run / "summary.json").read_text())["steps"] == 4 for run in made)
    page = (tmp_path / "docs/studies/tiny.md").read_text()
    assert "Does a penalty change two steps? Source: this test." in page and "4 of 6 members" in page
    assert page.count(", failed: exit code 2: ") == 2 and "model.path: expected a folder" in page
    assert "| penalty | 2 |" in page and "| penalty | `kl.coef=0.1` | 2 of 2 |" in page
    assert "| missing | `model.path=/nowhere` | 0 of 2 |  |  |" in page
    assert (tmp_path / "docs/studies/tiny.svg").read_text().count("<circle") == 6
    index = (tmp_path / "docs/studies/index.md").read_text()
    assert "[tiny](tiny.md)" in index

    results = (tmp_path / "docs/studies/results.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["member"] for line in results) == [
        *("tiny/none/seed=0", "tiny/none/seed=1", "tiny/penalty/seed=0", "tiny/penalty/seed=1"),
    ]
    # As on another machine, some runs are missing, but their results are there.
    shutil.rmtree(tmp_path / "outputs/studies/tiny/penalty")
    (tmp_path / "docs/studies/index.md").write_text(f"{index}\nWritten by hand.\n")
    third = study("--limit", "0")
    shown, _ = third.communicate(timeout=WAIT_S)
    assert third.returncode == 0 and "4 of 6 members are finished" in shown and "started" not in shown
    # Nothing has changed, so the page is the same, and the text written by hand is kept.
    assert (tmp_path / "docs/studies/tiny.md").read_text() == page
    assert (tmp_path / "docs/studies/index.md").read_text() == f"{index}\nWritten by hand.\n"

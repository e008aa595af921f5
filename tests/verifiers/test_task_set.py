"""The task set in environments/ by verifiers itself: it validates, and pays what a run pays."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verifiers.v1", reason="verifiers is not installed: bash scripts/setup.sh verifiers")

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "environments/rookworld_chess"
sys.path.insert(0, str(FOLDER))


def test_vf_validate_accepts_the_task_set(tmp_path: Path) -> None:
    # Gold: a label earns what a right answer earns. Noop: an empty answer does not.
    command = [str(Path(sys.executable).with_name("vf-validate")), "rookworld-chess", "--rich", "false"]
    given = ["--runtime.type", "subprocess", "--taskset.num-tasks", "24", "-o", str(tmp_path)]
    paths = os.pathsep.join([str(ROOT / "src"), str(FOLDER)])
    done = subprocess.run(
        [*command, *given], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [summary] = tmp_path.glob("*/summary.json")
    result = json.loads(summary.read_text())
    assert result["total"] == 24 and result["valid_rate"] == 1.0


def test_two_hundred_transcripts_earn_what_a_run_pays() -> None:
    from rookworld_chess.taskset import RookworldChessConfig, RookworldChessTaskset

    from rookworld_rlvr.rewards.scorer import ScoreRequest, make_scorer

    tasks = list(RookworldChessTaskset(RookworldChessConfig(num_tasks=200)))
    assert len(tasks) == 200 and len({task.data.prompt_text[0] for task in tasks}) == 2
    # Right answers, those of another row, cut ones, and nothing.
    said = [
        ("", task.data.expected[: len(task.data.expected) // 2], tasks[i - 1].data.expected, task.data.expected)[i % 4]
        for i, task in enumerate(tasks)
    ]
    requests = [
        ScoreRequest(task.data.prompt_text, text.strip(), task.data.expected, step=None)
        for task, text in zip(tasks, said, strict=True)
    ]
    ours = [score.total for score in make_scorer().score_all(requests)]
    traces: list[Any] = [SimpleNamespace(last_reply=text.strip()) for text in said]
    theirs = [asyncio.run(task.reward(trace)) for task, trace in zip(tasks, traces, strict=True)]
    assert theirs == ours and len(set(ours)) > 20


def test_one_task_can_be_asked_alone() -> None:
    from rookworld_chess.taskset import RookworldChessConfig, RookworldChessTaskset

    tasks = list(RookworldChessTaskset(RookworldChessConfig(task="environment", num_tasks=5)))
    assert [task.data.prompt_text[:2] for task in tasks] == ["A:"] * 5

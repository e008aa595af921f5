"""The task set in environments/, run by verifiers itself: it validates and gives the rewards of a run."""

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
    # The command checks that a label earns the reward of a right answer (gold) and an empty answer does not (noop).
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


def test_verifiers_rewards_equal_those_of_a_run() -> None:
    from rookworld_chess.taskset import RookworldChessConfig, RookworldChessTaskset

    from rookworld_rlvr.rewards.score import ScoreRequest
    from rookworld_rlvr.rewards.scorer import make_scorer

    tasks = list(RookworldChessTaskset(RookworldChessConfig(num_tasks=200)))
    assert len(tasks) == 200 and len({task.data.prompt_text[0] for task in tasks}) == 2
    # Right answers, answers of another row, cut answers and empty ones.
    said = [
        ("", task.data.expected[: len(task.data.expected) // 2], tasks[i - 1].data.expected, task.data.expected)[i % 4]
        for i, task in enumerate(tasks)
    ]
    requests = [
        ScoreRequest(task.data.asked, text.strip(), task.data.expected) for task, text in zip(tasks, said, strict=True)
    ]
    ours = [score.total for score in make_scorer().score_all(requests)]
    traces: list[Any] = [SimpleNamespace(last_reply=text.strip()) for text in said]
    theirs = [asyncio.run(task.reward(trace)) for task, trace in zip(tasks, traces, strict=True)]
    assert theirs == ours and len(set(ours)) > 20


def test_task_set_can_be_limited_to_one_task() -> None:
    from rookworld_chess.taskset import RookworldChessConfig, RookworldChessTaskset

    tasks = list(RookworldChessTaskset(RookworldChessConfig(task="environment", num_tasks=5)))
    assert [task.data.prompt_text[:2] for task in tasks] == ["A:"] * 5


def test_chat_task_asks_in_one_message_and_scores_answers() -> None:
    from rookworld_chess.taskset import RookworldChessConfig, RookworldChessTaskset

    tasks = list(RookworldChessTaskset(RookworldChessConfig(task="chat", num_tasks=40)))
    assert len(tasks) == 40 and all("Legal moves:" in task.data.prompt_text for task in tasks)
    right, wrong = (
        [asyncio.run(task.reward(SimpleNamespace(last_reply=reply(task)))) for task in tasks]  # type: ignore[arg-type]
        for reply in (lambda task: task.data.expected, lambda task: "I do not know.")
    )
    assert min(right) >= 0.99 and set(wrong) == {-0.3}
    [from_0] = RookworldChessTaskset(RookworldChessConfig(task="chat", num_tasks=1, malformed_reward=0.0))
    assert from_0.reward_of("I do not know.") == 0.0


def test_any_number_of_tasks_is_spread_over_the_file() -> None:
    from rookworld_chess.taskset import RookworldChessConfig, RookworldChessTaskset

    def prompts(count: int) -> list[str]:
        return [task.data.prompt_text for task in RookworldChessTaskset(RookworldChessConfig(num_tasks=count))]

    every, most = prompts(10**6), prompts(6000)
    assert len(most) == len(set(most)) == 6000 and every.index(most[3000]) == len(every) // 2
    assert prompts(0) == [] and len(prompts(-1)) == len(every)

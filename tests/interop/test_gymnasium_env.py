"""The gymnasium environment passes gymnasium's own checker, and pays what a run pays."""

import warnings

import pytest

pytest.importorskip("gymnasium", reason="gymnasium is not installed")

import gymnasium
from gymnasium.utils.env_checker import check_env

from rookworld_rlvr.interop.examples import shipped_examples
from rookworld_rlvr.interop.gymnasium_env import ChessTextEnv
from rookworld_rlvr.rewards import RubricConfig, score
from rookworld_rlvr.rewards.rubric import MoveSource
from rookworld_rlvr.tasks import Task


def test_the_library_s_checker_finds_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = gymnasium.make("rookworld/ChessText-v0", render_mode="ansi")
        check_env(made.unwrapped, skip_render_check=False)


def test_an_episode_asks_a_prompt_pays_the_answer_and_ends() -> None:
    rows = [row for row in shipped_examples() if row.task is Task.environment][:3]
    env = ChessTextEnv(rows, RubricConfig(source=MoveSource.labels))
    prompt, info = env.reset(seed=4)
    row = next(row for row in rows if row.prompt == prompt)
    assert info == {"task": "environment", "expected": row.completion}
    _, reward, terminated, truncated, told = env.step(info["expected"])
    assert (reward, terminated, truncated) == (1.0, True, False) and told["components"]["parse/next_fen"] == 1
    _, reward, *_, told = env.step("nothing")
    assert reward == score(prompt, "nothing").total and told["failure"] == "missing_field"
    assert env.render() == prompt + "nothing"
    env.close()


def test_the_seed_decides_what_is_asked_and_prompts_fit_the_space() -> None:
    env = ChessTextEnv()
    asked = [env.reset(seed=7 if number == 0 else None)[0] for number in range(20)]
    assert asked == [env.reset(seed=7 if number == 0 else None)[0] for number in range(20)]
    assert len(set(asked)) > 10 and all(prompt in env.observation_space for prompt in asked)
    with pytest.raises(ValueError, match="got none"):
        ChessTextEnv([])

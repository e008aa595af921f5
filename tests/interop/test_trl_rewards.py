"""Reward functions with TRL's signature, called on plain lists. tests/peers trains with them."""

import json
import subprocess
import sys

import chess

from rookworld_rlvr.interop import shipped_examples
from rookworld_rlvr.interop.trl import MoveEnvironment, chat_rows, move_rows, reward_functions, trl_rows
from rookworld_rlvr.rewards import RubricConfig, score
from rookworld_rlvr.rewards.rubric import MoveSource
from rookworld_rlvr.rewards.score import ScoreRequest
from rookworld_rlvr.rewards.scorer import make_scorer


def test_reward_function_scores_its_own_task_and_returns_none_for_others() -> None:
    examples = [*shipped_examples()[:6], *shipped_examples()[-6:]]
    prompts, labels = [row.prompt for row in examples], [row.completion for row in examples]
    functions = reward_functions()
    assert [function.__name__ for function in functions] == ["policy_reward", "environment_reward", "chat_reward"]
    scorer = make_scorer()
    questions = zip(prompts, labels, labels, strict=True)
    scores = scorer.score_all([ScoreRequest(*question) for question in questions])
    for task, function in zip(("policy", "environment", "chat"), functions, strict=True):
        returned = function(prompts, labels, expected=labels, completion_ids=[[1]] * 12, trainer_state=None)
        own = [one.total if row.task == task else None for row, one in zip(examples, scores, strict=True)]
        assert returned == own and None in returned
        assert task == "chat" or max(filter(None, returned)) > 0.6


def test_trl_rewards_accept_chat_messages_and_missing_labels() -> None:
    row = next(row for row in shipped_examples() if row.task == "environment")
    text = row.completion or ""
    [_, environment, _] = reward_functions(RubricConfig(source=MoveSource.rules))
    prompt = [{"role": "system", "content": "Play chess."}, {"role": "user", "content": row.prompt}]
    answers = [{"role": "assistant", "content": content} for content in ("nothing", text)]
    assert environment([prompt], [answers]) == [1.0]
    assert environment([row.prompt], ["nothing"]) == [score(row.prompt, "nothing").total]
    blocks = [{"role": "user", "content": [{"type": "text", "text": row.prompt}]}]
    assert environment([blocks, "Write a poem."], [answers[1:], "Roses"]) == [1.0, None]


def test_chat_messages_are_scored_also_as_content_blocks() -> None:
    [_, _, chat] = reward_functions()
    row = chat_rows()[0]
    blocks = [{"role": one["role"], "content": [{"type": "text", "text": one["content"]}]} for one in row["prompt"]]
    right = [{"role": "assistant", "content": [{"type": "text", "text": row["expected"]}]}]
    wrong = [{"role": "assistant", "content": "I do not know."}]
    rewards = chat([row["prompt"], blocks, blocks, "Write a poem."], [right, right, wrong, "Roses"])
    assert rewards[0] == rewards[1] is not None and rewards[0] > 0.5
    assert rewards[2:] == [-0.3, None]


def test_metrics_of_format_and_legality_are_logged() -> None:
    logged = dict[str, float]()
    row = chat_rows()[0]
    answers = [row["expected"], "<answer>a1b8</answer>", "I resign", "?"]
    reward_functions()[2]([row["prompt"]] * 4, answers, log_metric=logged.__setitem__)
    assert logged["chat/valid"] == 0.5 and logged["chat/correctness/legal"] == 0.25
    logged.clear()
    reward_functions()[0]([row["prompt"]] * 4, answers, log_metric=logged.__setitem__)
    assert not logged


def test_move_of_a_tool_call_earns_what_the_answer_does() -> None:
    row, environment = move_rows()[0], MoveEnvironment()
    legal = [move.uci() for move in chess.Board(row["fen"]).legal_moves]
    rewards = []
    for move in (*legal, "a1b8", ""):
        environment.reset(**row)
        if move:
            assert move in environment.move(move) and "already" in environment.move("e2e4")
        rewards.append(environment.get_reward())
    assert max(rewards) == 1.0 and min(rewards[:-2]) > rewards[-2] > rewards[-1] == -0.3
    from_0 = MoveEnvironment(malformed_reward=0.0)
    from_0.reset(**row)
    assert from_0.get_reward() == 0.0


def test_trl_rows_have_columns_prompt_and_expected() -> None:
    rows = trl_rows()
    assert len(rows) == len(shipped_examples()) and all(row.keys() == {"prompt", "expected"} for row in rows)


def test_importing_trl_rewards_imports_no_torch_trl_or_verifiers() -> None:
    code = (
        "import json, sys; import rookworld_rlvr.rewards, rookworld_rlvr.interop.trl; "
        "print(json.dumps([name for name in ('torch', 'trl', 'verifiers') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []

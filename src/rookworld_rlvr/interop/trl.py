"""The rewards as reward functions for TRL's trainers, and a position as an environment with a tool.

    trainer = GRPOTrainer(model=…, reward_funcs=reward_functions(), train_dataset=Dataset.from_list(trl_rows()), …)
    trainer = GRPOTrainer(model=…, environment_factory=MoveEnvironment, train_dataset=Dataset.from_list(move_rows()), …)

A function returns None for prompts of other tasks, which TRL leaves out of its mean. This module does not import TRL.
Source: TRL 1.16, `reward_funcs` and `environment_factory` of GRPOTrainer.
"""

import json
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from ..rewards import RubricConfig
from ..rewards.score import Score, Scorer, ScoreRequest
from ..rewards.scorer import make_scorer
from ..tasks import Task, all_tasks, task_named, task_of
from ..tasks.chat.prompts import parse_chat_prompt, write_answer
from ..tasks.messages import messages_of
from ..tasks.types import PromptError
from . import MALFORMED_REWARD, chat_examples, shared_scorer, shipped_examples

Text = str | Sequence[dict[str, Any]]
"""A text, or a list of TRL's messages, whose contents are texts or lists of content blocks."""


class TaskReward:
    """The reward of one task's completions, from -0.3 to 1.0."""

    def __init__(self, task: Task, scorer: Scorer) -> None:
        self._task, self._scorer = task, scorer
        # TRL names its metrics after it.
        self.__name__ = f"{task.name}_reward"

    def __call__(
        self,
        prompts: Sequence[Text],
        completions: Sequence[Text],
        expected: Sequence[str | None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **_columns: Any,
    ) -> list[float | None]:
        """Return one reward per completion, None if the prompt belongs to another task or to none.

        `expected` is the column of labels, if the data have one. `log_metric`, which TRL passes, gets the share of
        valid completions and the mean of each component, such as `chat/correctness/legal`. Raises PromptError for a
        malformed prompt of this task.
        """
        labels = expected or [None] * len(prompts)
        requests = [
            ScoreRequest(_prompt(prompt), _text(completion), label)
            for prompt, completion, label in zip(prompts, completions, labels, strict=True)
        ]
        mine = [_task_of(request.prompt) is self._task for request in requests]
        scores = self._scorer.score_all([request for request, own in zip(requests, mine, strict=True) if own])
        if log_metric and scores:
            self._log(scores, log_metric)
        totals = iter(scores)
        return [next(totals).total if own else None for own in mine]

    def _log(self, scores: Sequence[Score], log_metric: Callable[[str, float], None]) -> None:
        log_metric(f"{self._task.name}/valid", fmean(score.failure is None for score in scores))
        for name in dict.fromkeys(name for score in scores for name in score.components):
            values = [score.components[name] for score in scores if name in score.components]
            log_metric(f"{self._task.name}/{name}", fmean(values))


def reward_functions(config: RubricConfig | None = None) -> list[TaskReward]:
    """Return a function for each task, for `reward_funcs=`. They share one scorer. Raises what `make_scorer` raises.

    With `RubricConfig(malformed_reward=0.0)` rewards are from 0 to 1.
    """
    scorer = make_scorer(config)
    return [TaskReward(task, scorer) for task in all_tasks()]


def trl_rows() -> list[dict[str, str | None]]:
    """Return the training rows that ship with the package, with the columns `prompt` and `expected`."""
    return [{"prompt": example.prompt, "expected": example.completion} for example in shipped_examples()]


def chat_rows() -> list[dict[str, Any]]:
    """Return the positions of these rows as chat messages, with the columns `prompt` and `expected`."""
    return [{"prompt": messages_of(row.prompt), "expected": row.completion} for row in chat_examples()]


class MoveEnvironment:
    """A position in which the model plays one move by a tool call, for `environment_factory=`.

    The reward is that of a chat answer with the same move; without a call it is that of no answer. For rewards from 0
    to 1 give `partial(MoveEnvironment, malformed_reward=0.0)`.
    """

    def __init__(self, malformed_reward: float = MALFORMED_REWARD) -> None:
        self._malformed_reward = malformed_reward
        self._fen, self._move = "", ""

    def reset(self, fen: str, **_columns: Any) -> None:
        """Begin a position, which is the column `fen` of the row."""
        self._fen, self._move = fen, ""

    def move(self, uci: str) -> str:
        """
        Play a move in the position.

        Args:
            uci: The move in UCI notation, such as e2e4 or e7e8q.

        Returns:
            Whether the move was played.
        """
        if self._move:
            return f"The move {self._move} has been played already."
        self._move = uci.strip()
        return f"You played {self._move}."

    def get_reward(self) -> float:
        """Return the reward of the move that was played."""
        prompt = task_named("chat").prompt(self._fen)
        answer = write_answer(parse_chat_prompt(prompt), self._move) if self._move else ""
        [score] = shared_scorer(self._malformed_reward).score_all([ScoreRequest(prompt, answer, None)])
        return score.total


def move_rows() -> list[dict[str, Any]]:
    """Return the positions that ship, with the columns `prompt` (messages that ask for a tool call) and `fen`."""
    text = "Play the best move in this chess position by the tool `move`. FEN: "
    fens = [parse_chat_prompt(example.prompt).fen for example in chat_examples()]
    return [{"prompt": [{"role": "user", "content": text + fen}], "fen": fen} for fen in fens]


def _task_of(prompt: str) -> Task | None:
    try:
        return task_of(prompt)
    except PromptError:
        return None


def _prompt(prompt: Text) -> str:
    """Return a prompt as the tasks know it: the text of the last message if it is one, else all messages as JSON."""
    if isinstance(prompt, str):
        return prompt
    last = _text(prompt)
    if _task_of(last) is not None:
        return last
    return json.dumps(
        [{"role": message["role"], "content": _content(message)} for message in prompt], ensure_ascii=False
    )


def _text(text: Text) -> str:
    return text if isinstance(text, str) else _content(text[-1])


def _content(message: dict[str, Any]) -> str:
    """Return the text of a message, also if its content is a list of content blocks."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(str(block.get("text", "")) for block in content or ())

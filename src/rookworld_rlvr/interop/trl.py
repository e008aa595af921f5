"""The rewards as reward functions for TRL's trainers.

    trainer = GRPOTrainer(model=…, reward_funcs=reward_functions(), train_dataset=Dataset.from_list(trl_rows()), …)

A function returns None for the other task's prompts, which TRL leaves out of its mean. This module does not import TRL.
Source: TRL 1.16, `reward_funcs` of GRPOTrainer.
"""

from collections.abc import Sequence
from typing import Any

from ..rewards import RubricConfig
from ..rewards.score import Scorer, ScoreRequest
from ..rewards.scorer import make_scorer
from ..tasks import Task, all_tasks, task_of
from . import shipped_examples

Text = str | Sequence[dict[str, Any]]
"""A text, or a list of TRL's messages, of which the last one is used."""


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
        **_columns: Any,
    ) -> list[float | None]:
        """Return one reward per completion, None if the prompt belongs to the other task.

        `expected` is the column of labels, if the data have one. Raises PromptError for a prompt of neither task.
        """
        labels = expected or [None] * len(prompts)
        requests = [
            ScoreRequest(_text(prompt), _text(completion), label)
            for prompt, completion, label in zip(prompts, completions, labels, strict=True)
        ]
        mine = [task_of(request.prompt) is self._task for request in requests]
        scores = iter(self._scorer.score_all([request for request, own in zip(requests, mine, strict=True) if own]))
        return [next(scores).total if own else None for own in mine]


def reward_functions(config: RubricConfig | None = None) -> list[TaskReward]:
    """Return a function for each task, for `reward_funcs=`. They share one scorer. Raises what `make_scorer` raises."""
    scorer = make_scorer(config)
    return [TaskReward(task, scorer) for task in all_tasks()]


def trl_rows() -> list[dict[str, str | None]]:
    """Return the training rows that ship with the package, with the columns `prompt` and `expected`."""
    return [{"prompt": example.prompt, "expected": example.completion} for example in shipped_examples()]


def _text(text: Text) -> str:
    return text if isinstance(text, str) else str(text[-1]["content"])

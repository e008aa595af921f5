"""Our rewards as reward functions of TRL's trainers.

    trainer = GRPOTrainer(model=…, reward_funcs=reward_functions(), train_dataset=Dataset.from_list(trl_rows()), …)

A function returns None for the other task's prompts, which TRL leaves out of its mean. It imports no TRL.
Source: TRL 1.16, `reward_funcs` of GRPOTrainer.
"""

from collections.abc import Sequence
from typing import Any

from ..rewards import RubricConfig
from ..rewards.scorer import Scorer, ScoreRequest, make_scorer
from ..tasks import Task, parse_prompt
from . import shipped_examples

Text = str | Sequence[dict[str, Any]]
"""A text, or TRL's messages, whose last one is meant."""


class TaskReward:
    """The reward of one task's completions, from -0.3 to 1.0."""

    def __init__(self, task: Task, scorer: Scorer) -> None:
        self._task, self._scorer = task, scorer
        # TRL calls its metrics by it.
        self.__name__ = f"{task}_reward"

    def __call__(
        self,
        prompts: Sequence[Text],
        completions: Sequence[Text],
        expected: Sequence[str | None] | None = None,
        **_columns: Any,
    ) -> list[float | None]:
        """A reward per completion; None where the prompt is the other task's.

        `expected` is a column of labels, where the data have one. Raises PromptError for a prompt of neither task.
        """
        labels = expected or [None] * len(prompts)
        requests = [
            ScoreRequest(_text(prompt), _text(completion), label, step=None)
            for prompt, completion, label in zip(prompts, completions, labels, strict=True)
        ]
        mine = [parse_prompt(request.prompt).task is self._task for request in requests]
        scores = iter(self._scorer.score_all([request for request, own in zip(requests, mine, strict=True) if own]))
        return [next(scores).total if own else None for own in mine]


def reward_functions(config: RubricConfig | None = None) -> list[TaskReward]:
    """A function for each task, for `reward_funcs=`; they share one scorer. Raises as `make_scorer` does."""
    scorer = make_scorer(config)
    return [TaskReward(task, scorer) for task in Task]


def trl_rows() -> list[dict[str, str | None]]:
    """The training rows that ship, with the columns `prompt` and `expected`."""
    return [{"prompt": example.prompt, "expected": example.completion} for example in shipped_examples()]


def _text(text: Text) -> str:
    return text if isinstance(text, str) else str(text[-1]["content"])

"""Stream of examples: a task mixture over shuffled epochs, seeded and resumable."""

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .types import Example, Task

# A task that is mastered is still drawn now and then, or nobody would see it forgotten.
LEAST_WRONG = 0.05
# A running mean over about fifty groups of a task.
MEMORY = 0.02


@dataclass(slots=True)
class MixtureConfig:
    """Weights of the tasks among the prompts; only their proportion matters.

    A quarter keeps the environment task in practice.
    """

    policy: float = 0.75
    """Weight of the policy task among the prompts."""
    environment: float = 0.25
    """Weight of the environment task."""
    adaptive: float = 0.0
    """Strength with which the weights follow the tasks' errors: 0 not at all, 1 in proportion to each task's
    share of wrong completions, a running mean over its groups."""

    def __post_init__(self) -> None:
        weights = (self.policy, self.environment)
        if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not sum(weights):
            raise ValueError(f"expected finite mixture weights from 0 up, one of them above 0, got {self}")
        if not 0 <= self.adaptive <= 1:
            raise ValueError(f"expected adaptive in [0, 1], got {self.adaptive}")

    def proportions(self, wrong: Mapping[Task, float] | None = None) -> dict[Task, float]:
        """Each task's share of the samples; they sum to 1. `wrong` is its share of wrong completions, 1 unknown.

        >>> MixtureConfig(1.0, 1.0, adaptive=1.0).proportions({Task.policy: 0.75, Task.environment: 0.25})
        {<Task.policy: 'policy'>: 0.75, <Task.environment: 'environment'>: 0.25}
        """
        weights = {Task.policy: self.policy, Task.environment: self.environment}
        for task, share in (wrong or {}).items():
            weights[task] *= 1 - self.adaptive + self.adaptive * max(share, LEAST_WRONG)
        return {task: weight / sum(weights.values()) for task, weight in weights.items()}


class PromptStream:
    """Samples examples without end: every example of a task once per epoch, in a new order each epoch.

    Tasks take turns by smooth weighted round robin: after any number of draws each task's count is
    within one of its share. Raises ValueError where a task with a weight has no examples.
    """

    def __init__(self, examples: Sequence[Example], config: MixtureConfig, seed: int) -> None:
        self._config = config
        self._proportions = config.proportions()
        self._wrong = dict.fromkeys(self._proportions, 1.0)
        self._credits = dict.fromkeys(self._proportions, 0.0)
        self._epochs = {
            task: _Epochs([example for example in examples if example.task is task], task, seed)
            for task in self._proportions
        }
        for task, proportion in self._proportions.items():
            if proportion and not self._epochs[task].examples:
                raise ValueError(f"expected examples of task {task} for its share {proportion:.2f}, got none")

    def draw(self, n: int) -> list[Example]:
        """The next `n` examples, tasks interleaved; none where `n` is 0. An epoch's end may fall within."""
        return [self._epochs[self._next_task()].next() for _ in range(n)]

    def observe(self, task: Task, right: float) -> None:
        """Take in the share of right completions in one group; moves the mixture where it is adaptive."""
        self._wrong[task] += MEMORY * (1 - right - self._wrong[task])
        if self._config.adaptive:
            self._proportions = self._config.proportions(self._wrong)

    def share(self, task: Task) -> float:
        """The task's share of the draws now, 0 to 1."""
        return self._proportions[task]

    def _next_task(self) -> Task:
        for task, proportion in self._proportions.items():
            self._credits[task] += proportion
        drawable = (task for task, proportion in self._proportions.items() if proportion)
        chosen = max(drawable, key=self._credits.__getitem__)
        self._credits[chosen] -= 1
        return chosen

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """State of the stream, in plain JSON values; it names its data by a hash."""
        return {
            task.value: {"credit": self._credits[task], "wrong": self._wrong[task], **epochs.state_dict()}
            for task, epochs in self._epochs.items()
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on where `state` was taken. Raises ValueError if it is of other examples or another seed.

        The mixture may differ: the turns begun under the old one are at most one draw.
        """
        for task, epochs in self._epochs.items():
            epochs.check_state(state[task.value])
        for task, epochs in self._epochs.items():
            epochs.load_state_dict(state[task.value])
            self._credits[task] = float(state[task.value]["credit"])
            self._wrong[task] = float(state[task.value]["wrong"])
        self._proportions = self._config.proportions(self._wrong if self._config.adaptive else None)


class _Epochs:
    """One task's examples in seeded orders, one after the other."""

    def __init__(self, examples: list[Example], task: Task, seed: int) -> None:
        self.examples = examples
        self._name = f"{seed}:{task.value}"
        self._data = _digest(self._name, examples)
        self._start(epoch=0, position=0)

    def _start(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._order = list(range(len(self.examples)))
        random.Random(f"{self._name}:{epoch}").shuffle(self._order)

    def next(self) -> Example:
        if self._position == len(self._order):
            self._start(self._epoch + 1, 0)
        self._position += 1
        return self.examples[self._order[self._position - 1]]

    def state_dict(self) -> dict[str, float | str]:
        return {"epoch": self._epoch, "position": self._position, "data": self._data}

    def check_state(self, state: Mapping[str, float | str]) -> None:
        if state["data"] != self._data:
            raise ValueError(f"expected prompt stream state of data and seed {self._data}, got {state['data']}")

    def load_state_dict(self, state: Mapping[str, float | str]) -> None:
        self._start(int(state["epoch"]), int(state["position"]))


def _digest(name: str, examples: Sequence[Example]) -> str:
    digest = hashlib.sha256(name.encode())
    for example in examples:
        digest.update(f"\n{example.prompt}\n{example.completion}".encode())
    return digest.hexdigest()[:16]

"""Stream of examples: a mixture of tasks over shuffled epochs, seeded and resumable."""

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from .numbers import parse_number
from .types import Example


def shares(tasks: Sequence[str]) -> dict[str, float]:
    """Return each task's share of the prompts from names with weights, such as `policy:3`; without one it is 1.

    Raises ValueError for a weight that is no number from 0, for a task named twice and if all weights are 0.

    >>> shares(["policy:3", "environment"])
    {'policy': 0.75, 'environment': 0.25}
    """
    weights: dict[str, float] = {}
    for text in tasks:
        name, colon, number = text.partition(":")
        weight = parse_number(number) if colon else 1.0
        if weight is None or weight < 0 or name in weights:
            raise ValueError(f"expected each task once, as NAME or NAME:WEIGHT with a weight from 0, got {text!r}")
        weights[name] = weight
    total = sum(weights.values())
    if not total:
        raise ValueError(f"expected a task with a weight above 0, got {list(tasks)}")
    return {name: weight / total for name, weight in weights.items()}


class PromptStream:
    """Endless stream of examples: every example of a task once per epoch, in a new order each epoch.

    Tasks are interleaved by smooth weighted round robin: after any number of draws each task's count is within one of
    its share. Raises ValueError if a task with a share above 0 has no examples.
    """

    def __init__(self, examples: Sequence[Example], shares: Mapping[str, float], seed: int) -> None:
        """`shares` are those of `shares`: the share of each task, by name."""
        self._shares = dict(shares)
        self._credits = dict.fromkeys(self._shares, 0.0)
        self._epochs = {
            task: _Epochs([example for example in examples if example.task == task], task, seed)
            for task in self._shares
        }
        for task, share in self._shares.items():
            if share and not self._epochs[task].examples:
                raise ValueError(f"expected examples of task {task} for its share {share:.2f}, got none")

    def draw(self, n: int) -> list[Example]:
        """Return the next `n` examples, tasks interleaved. They may extend into the next epoch."""
        return [self._epochs[self._next_task()].next() for _ in range(n)]

    def _next_task(self) -> str:
        for task, share in self._shares.items():
            self._credits[task] += share
        drawable = (task for task, share in self._shares.items() if share)
        chosen = max(drawable, key=self._credits.__getitem__)
        self._credits[chosen] -= 1
        return chosen

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return the state of the stream as plain JSON values. It identifies the data by a hash."""
        return {task: {"credit": self._credits[task], **epochs.state_dict()} for task, epochs in self._epochs.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Resume at `state`. Raises ValueError if it was taken with other examples or another seed.

        The shares may differ: what remains of the old ones shifts each task's count by at most one draw.
        """
        for task, epochs in self._epochs.items():
            epochs.check_state(state[task])
        for task, epochs in self._epochs.items():
            epochs.load_state_dict(state[task])
            self._credits[task] = float(state[task]["credit"])


class _Epochs:
    """Endless sequence of one task's examples, in a new seeded order each epoch."""

    def __init__(self, examples: list[Example], task: str, seed: int) -> None:
        self.examples = examples
        self._name = f"{seed}:{task}"
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

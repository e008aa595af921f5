"""What a suite of the evaluation is: things to ask, in an order that does not change, and how rows come of them."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .table import Row


class SuiteName(StrEnum):
    """The suites of `rookworld evaluate`; each one's keys begin with its name."""

    policy = "policy"
    """Held-out `P:` rows under the published names."""
    environment = "environment"
    """Held-out `A:` rows under the published names."""
    balanced = "balanced"
    """`A:` rows of our own, as many of each class of transition."""
    mate_in_one = "mate_in_one"
    """BIG-bench's checkmate in one."""
    puzzles = "puzzles"
    """Lichess puzzles."""
    selfplay = "selfplay"
    """Games of the model against itself."""
    closed_world = "closed_world"
    """The model plays in the environment that it writes itself."""
    engine_match = "engine_match"
    """Games against Stockfish at limited strength."""
    retention = "retention"
    """What a model still knows of what a starting checkpoint knew."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Things to ask, and how they are asked."""

    name: SuiteName
    items: Sequence[Hashable]
    """What is asked, in order: row i is of item i. A string, or a frozen dataclass that `repr` tells apart."""
    answer: Callable[[int, Sequence[Any]], list[Row]]
    """The rows of a chunk: the index of its first item, and its items. Chunks are asked one after the other, but an
    interrupted evaluation begins behind the last finished one: what a chunk gives must depend on nothing before it."""
    chunk: int
    """Items asked at once; what is finished is saved by chunks."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the result says of the items: how many were left out, seeds, files."""
    conclude: Callable[[Sequence[Row]], Mapping[str, Any]] = lambda rows: {}
    """What else it says of all rows together, as JSON: an Elo difference, a curve."""

    def chunks(self, start: int) -> Iterator[list[Row]]:
        """The rows from item `start` on, chunk by chunk."""
        for first in range(start, len(self.items), self.chunk):
            yield self.answer(first, self.items[first : first + self.chunk])

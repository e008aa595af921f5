"""What a suite of the evaluation is: things to ask, in an order that does not change, and how rows come of them."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .table import Measure, Row, summarise


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
    world_model = "world_model"
    """The model plays in the environment that it writes itself."""
    engine_match = "engine_match"
    """Games against Stockfish at limited strength."""
    match = "match"
    """Games against another model, or against a rule of thumb."""
    retention = "retention"
    """What a model still knows of what a starting checkpoint knew."""


Measures = Callable[[Sequence[Row]], Mapping[str, Measure]]
"""Keys that are no means over rows, of any rows of a suite; fewer of them where the rows do not tell."""


def no_measures(rows: Sequence[Row]) -> Mapping[str, Measure]:
    """For a suite whose keys are all means over its rows: no other measures."""
    return {}


@dataclass(frozen=True, slots=True)
class Suite:
    """Things to ask, and how they are asked."""

    name: SuiteName
    items: Sequence[Hashable]
    """What is asked, in order: row i is of item i. `str` tells them apart."""
    rows: Callable[[int], Iterator[list[Row]]]
    """The rows behind the first so many, chunk by chunk. An interrupted evaluation goes on behind the chunks that are
    finished, so what a chunk holds must depend on nothing before it."""
    chunk: int
    """Items asked at once; what is finished is saved by chunks."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the result says of the items: how many were left out, seeds, files."""
    measures: Measures = no_measures
    """Keys of the table that are no mean over rows: a rate, an Elo difference. Of `measures.MEASURES`."""
    conclude: Callable[[Sequence[Row]], Mapping[str, Any]] = lambda rows: {}
    """What else it says of all rows together, as JSON: a curve."""


def by_chunks(
    items: Sequence[Any], chunk: int, answer: Callable[[int, Sequence[Any]], list[Row]]
) -> Callable[[int], Iterator[list[Row]]]:
    """`Suite.rows` of what answers a chunk: the index of its first item, and its items."""

    def rows(done: int) -> Iterator[list[Row]]:
        for first in range(done, len(items), chunk):
            yield answer(first, items[first : first + chunk])

    return rows


def suite_table(suite: Suite, rows: Sequence[Row]) -> dict[str, Measure]:
    """The suite's table of these rows, keys in alphabetical order."""
    return dict(sorted((summarise(rows) | dict(suite.measures(rows))).items()))

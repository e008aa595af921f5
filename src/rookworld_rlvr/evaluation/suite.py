"""Suites of the evaluation: items in a fixed order and the function that turns them into rows."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .table import Measure, Row, summarise


class SuiteName(StrEnum):
    """The suites of `rookworld evaluate` that belong to no task. The keys of a suite begin with its name.

    Every task is a suite, too, under its own name: its held-out examples.
    """

    mate_in_one = "mate_in_one"
    """BIG-bench's checkmate in one."""
    selfplay = "selfplay"
    """Games of the model against itself."""
    match = "match"
    """Games against another model, a rule of thumb or Stockfish."""
    label_loss = "label_loss"
    """Cross-entropy of the held-out labels of both tasks."""
    conversion = "conversion"
    """Won positions in which the model has to mate."""
    puzzles = "puzzles"
    """Lichess's puzzles."""
    llm_chess = "llm_chess"
    """Games with Black against a random player, by the rules of the LLM Chess leaderboard."""
    acpl = "acpl"
    """Average centipawn loss in games against Stockfish at Skill Level 0, by the rules of AIcrowd's challenge."""


Measures = Callable[[Sequence[Row]], Mapping[str, Measure]]
"""Function that computes the keys that are not means over rows from a suite's rows. It leaves out keys that have too
few rows."""


def no_measures(rows: Sequence[Row]) -> Mapping[str, Measure]:
    """Return no keys: the measures of a suite whose keys are all means over its rows."""
    return {}


@dataclass(frozen=True, slots=True)
class Suite:
    """Items of an evaluation and the function that turns them into rows."""

    name: str
    """A `SuiteName` or the name of a task."""
    items: Sequence[Hashable]
    """The items in order: row i belongs to item i. The `str` of an item is its identity."""
    rows: Callable[[int], Iterator[list[Row]]]
    """Function that yields the rows after a given number of finished rows, chunk by chunk. An interrupted evaluation
    continues after the last finished chunk, so a chunk must not depend on earlier ones."""
    chunk: int
    """Number of items in a chunk. Finished chunks are saved."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts for the result, such as seeds, files and the number of items that were left out."""
    measures: Measures = no_measures
    """Function that computes the keys that are not means over rows, such as a rate or an Elo difference."""
    conclude: Callable[[Sequence[Row]], Mapping[str, Any]] = lambda rows: {}
    """Function that computes further results from all rows together, such as counts, as a JSON object."""


def by_chunks(
    items: Sequence[Any], chunk: int, answer: Callable[[int, Sequence[Any]], list[Row]]
) -> Callable[[int], Iterator[list[Row]]]:
    """Return a function for `Suite.rows` that calls `answer` with the index of a chunk's first item and its items."""

    def rows(done: int) -> Iterator[list[Row]]:
        for first in range(done, len(items), chunk):
            yield answer(first, items[first : first + chunk])

    return rows


def suite_table(suite: Suite, rows: Sequence[Row]) -> dict[str, Measure]:
    """Return the suite's table of these rows, with keys in alphabetical order."""
    return dict(sorted((summarise(rows) | dict(suite.measures(rows))).items()))

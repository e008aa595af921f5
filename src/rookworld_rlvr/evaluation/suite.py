"""Suites of the evaluation: items in a fixed order, and the function that makes rows of them."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .table import Measure, Row, summarise


class SuiteName(StrEnum):
    """The suites of `rookworld evaluate`. Names begin the keys."""

    policy = "policy"
    """Held-out `P:` examples under the published names."""
    environment = "environment"
    """Held-out `A:` examples under the published names."""
    mate_in_one = "mate_in_one"
    """BIG-bench's checkmate in one."""
    selfplay = "selfplay"
    """Games of the model against itself."""
    engine_match = "engine_match"
    """Games against Stockfish at limited strength."""
    match = "match"
    """Games against another model, or against a rule of thumb."""
    label_loss = "label_loss"
    """Cross-entropy of the held-out labels of both tasks."""
    conversion = "conversion"
    """Won positions that have to be won."""


Measures = Callable[[Sequence[Row]], Mapping[str, Measure]]
"""Computes the keys that are not means over rows from rows of a suite; keys without enough rows are left out."""


def no_measures(rows: Sequence[Row]) -> Mapping[str, Measure]:
    """No keys: the measures of a suite whose keys are all means over its rows."""
    return {}


@dataclass(frozen=True, slots=True)
class Suite:
    """Items, and the function that makes rows of them."""

    name: SuiteName
    items: Sequence[Hashable]
    """The items in order: row i belongs to item i. Their `str` is their identity."""
    rows: Callable[[int], Iterator[list[Row]]]
    """The rows after the given number of finished ones, chunk by chunk. An interrupted evaluation continues after the
    last finished chunk, so a chunk must not depend on earlier ones."""
    chunk: int
    """Items per chunk; finished chunks are saved."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts about the items for the result: how many were left out, seeds, files."""
    measures: Measures = no_measures
    """Keys of the table that are not means over rows: a rate, an Elo difference."""
    conclude: Callable[[Sequence[Row]], Mapping[str, Any]] = lambda rows: {}
    """Further results of all rows together, as JSON: a curve."""


def by_chunks(
    items: Sequence[Any], chunk: int, answer: Callable[[int, Sequence[Any]], list[Row]]
) -> Callable[[int], Iterator[list[Row]]]:
    """`Suite.rows` from a function of a chunk: the index of its first item, and its items."""

    def rows(done: int) -> Iterator[list[Row]]:
        for first in range(done, len(items), chunk):
            yield answer(first, items[first : first + chunk])

    return rows


def suite_table(suite: Suite, rows: Sequence[Row]) -> dict[str, Measure]:
    """The suite's table of these rows, keys in alphabetical order."""
    return dict(sorted((summarise(rows) | dict(suite.measures(rows))).items()))

"""Evaluation tables from scored rows, and paired gains from two tables of the same rows.

Keys begin with their suite's name, such as `policy/…` or `environment/…`. Policy keys also exist with `/white` and
`/black` by the side to move. `keys` declares the meaning of their values.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite

from ..stockfish.analysis import Analysis
from ..tasks import task_named
from ..tasks.types import Completion, Example
from .intervals import mean_interval, wilson_interval
from .keys import scale_of


@dataclass(frozen=True, slots=True)
class Row:
    """One item of a suite (an example, a position or a game) and its values."""

    index: int
    """Index of the item in its suite, from 0."""
    item: Hashable
    """Identity of the item. Two rows are paired only if their items are equal."""
    values: Mapping[str, float]
    """Values by full key, `<suite>/<name>`, on the key's scale. The set of keys depends only on the item, except for
    games, for which it may depend on the moves."""
    record: str = ""
    """Full record of the item if the values do not contain it, such as the PGN of a game; otherwise empty."""
    written: "PromptAndCompletion | None" = None
    """Prompt and completion. None for games and other rows without a single prompt and completion."""


@dataclass(frozen=True, slots=True)
class PromptAndCompletion:
    """A prompt, the label, and the model's completion."""

    prompt: str
    expected: str | None
    completion: str
    """Text of the completion. For a player it is only the move."""


@dataclass(frozen=True, slots=True)
class Measure:
    """The mean of a key over the rows that have it."""

    value: float
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""
    n: int
    """Number of rows, at least 1."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The mean over rows of after − before. For errors and losses, such as `reward_mae`, below 0 is better."""

    value: float
    low: float
    """Lower end of the 95 % interval of the paired differences."""
    high: float
    """Upper end of the 95 % interval of the paired differences."""


def score_examples(
    examples: Sequence[Example], completions: Sequence[str | Completion], analyses: Mapping[str, Analysis] | None = None
) -> list[Row]:
    """Score every completion against its example, in order. `analyses` by FEN add the values of move evaluations.

    A text stands for a completion that ended by itself. Raises ValueError unless there is one completion for each
    example, and PromptError or LabelError for a malformed example.
    """
    pairs = enumerate(zip(examples, completions, strict=True))
    return [
        Row(index, example, _values(example, Completion.of(written), analyses or {}))
        for index, (example, written) in pairs
    ]


def _values(example: Example, completion: Completion, analyses: Mapping[str, Analysis]) -> dict[str, float]:
    task = task_named(example.task)
    analysis = analyses.get(task.query(example.prompt).fen) if task.names_move else None
    return task.values(example, completion, analysis)


def summarise(rows: Iterable[Row]) -> dict[str, Measure]:
    """Return the mean of each key with its 95 % interval (see `keys`), in alphabetical order.

    A key without rows is left out. The order of rows does not matter. Raises ValueError if two rows have the same
    index.
    """
    columns: defaultdict[str, list[float]] = defaultdict(list)
    for row in _by_index(rows).values():
        for key, value in row.values.items():
            columns[key].append(value)
    return {key: _measure(key, columns[key]) for key in sorted(columns)}


def _measure(key: str, values: Sequence[float]) -> Measure:
    scale = scale_of(key)
    if scale is not None:
        return Measure(*mean_interval(values, scale.lowest, scale.highest), len(values))
    right = values.count(1.0)
    return Measure(right / len(values), *wilson_interval(right, len(values)), len(values))


def paired_gain(before: Iterable[Row], after: Iterable[Row]) -> dict[str, Gain]:
    """Return the mean of after − before, row by row, for each key that both have, in alphabetical order.

    Its 95 % interval is that of the mean difference (see `mean_interval`). Pairing removes the examples' differences in
    difficulty. Without rows the result is empty. Raises as `paired_values` does.
    """
    return {key: gain_of(key, pairs) for key, pairs in paired_values(before, after).items()}


def gain_of(key: str, pairs: Iterable[tuple[float, float]]) -> Gain:
    """Return the mean of second − first over the pairs of one key, with its interval (see `paired_gain`)."""
    scale = scale_of(key)
    width = scale.width if scale else 1.0
    return Gain(*mean_interval([difference(*pair) for pair in pairs], -width, width))


def difference(first: float, second: float) -> float:
    """Return second − first; 0 for two equal infinite values."""
    return second - first if second != first else 0.0


def paired_values(before: Iterable[Row], after: Iterable[Row]) -> dict[str, list[tuple[float, float]]]:
    """Return for each key, in alphabetical order, the values of both sides, for the rows in which both have the key.

    Pairs are in the order of the rows' indices. Raises ValueError if the two are not of the same examples, or if two
    rows of one side have the same index.
    """
    first, second = _by_index(before), _by_index(after)
    _require_same_items(first, second)
    pairs: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for index in sorted(first):
        earlier, later = first[index].values, second[index].values
        for key in earlier.keys() & later.keys():
            pairs[key].append((earlier[key], later[key]))
    return {key: pairs[key] for key in sorted(pairs)}


def _by_index(rows: Iterable[Row]) -> dict[int, Row]:
    by_index: dict[int, Row] = {}
    for row in rows:
        if row.index in by_index:
            raise ValueError(f"expected one row for each example, got a second one of index {row.index}")
        by_index[row.index] = row
    return by_index


def _require_same_items(before: Mapping[int, Row], after: Mapping[int, Row]) -> None:
    if before.keys() != after.keys():
        index = min(before.keys() ^ after.keys())
        raise ValueError(
            f"expected rows of the same examples, got {len(before)} and {len(after)}: {index} is in one only"
        )
    for index, row in before.items():
        if row.item != after[index].item:
            raise ValueError(
                f"expected rows of the same examples, got for index {index} {row.item!r} and {after[index].item!r}"
            )


def to_json(table: Mapping[str, Measure | Gain]) -> dict[str, dict[str, float | str]]:
    """Return a table as plain dictionaries, `{key: {"value", "low", "high"}}`, and `"n"` for measures.

    JSON has no infinite numbers. Infinite ends of scales, and Elo if every game was lost or won, become the strings
    "inf" and "-inf", which `float` reads.
    """
    return {key: {name: json_number(number) for name, number in asdict(entry).items()} for key, entry in table.items()}


def json_number(number: float) -> float | str:
    """Return the number, or its name if it is not finite."""
    return number if isfinite(number) else str(number)

"""Training, validation and held-out rows, split by position before anything else."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ..board.fen import parse_fen, position_key
from ..board.positions import GAMES_FILE, count_games
from ..errors import UserError, prefixed
from ..evaluation.mate_in_one import MateInOne, read_mates
from ..files import asset, file_type
from ..shell import command
from ..tasks import Task, all_tasks
from ..tasks.corpus import Corpus, example_key, exclude_positions, read_corpus, read_positions, split_by_position
from ..tasks.prompt_stream import shares
from ..tasks.types import Example
from .config import DEFAULT, DataConfig

# Fraction of the positions that is held out if no source of held-out examples is given.
HELD_OUT_FRACTION = 0.1
TRAIN_FILE, HELD_OUT_FILE = "train.txt", "held_out.jsonl"


@dataclass(frozen=True, slots=True)
class Data:
    """Rows of a run. No position of `excluded` or `validation` is in `train`."""

    train: tuple[Example, ...]
    held_out: tuple[Example, ...]
    excluded: frozenset[str]
    """All positions, by identity (`example_key`), that are held out or excluded, regardless of `limit`."""
    notes: tuple[str, ...] = ()
    """Lines to print: the numbers of rows, then any rows that were left out and any PGN games without a result."""
    validation: tuple[Example, ...] = ()
    """Rows held back from the training rows, for the learning curve."""
    mates: tuple[MateInOne, ...] = ()
    """Mates in one from a file, without those of training positions; empty if no file is configured."""


def load_data(config: DataConfig, *, seed: int, evaluation_rows_per_task: int | None = None) -> Data:
    """Read training and held-out rows, with no position in both. Raises UserError if one of them has no valid row.

    Only the first `evaluation_rows_per_task` held-out rows of each task are kept; None keeps all.
    """
    tasks = config.task_objects()
    corpus = _corpus(config.train, TRAIN_FILE, config, tasks)
    rows, notes = corpus.examples, [_left_out(config.train, corpus), *_cut_off(config.train)]
    if config.held_out:
        other = _corpus(config.held_out, HELD_OUT_FILE, config, tasks)
        held_out = other.examples
        notes.append(_left_out(config.held_out, other))
        all_held_out = _shipped(HELD_OUT_FILE, None).examples
        if config.held_out != DEFAULT:
            all_held_out = _whole(held_out, config.held_out, HELD_OUT_FILE, config, tasks)
    else:
        _, held_out = split_by_position(rows, HELD_OUT_FRACTION, seed)
        whole = _whole(rows, config.train, TRAIN_FILE, config, tasks)
        _, all_held_out = split_by_position(whole, HELD_OUT_FRACTION, seed)
    excluded = held_out_positions() | _excluded(config)
    if all_held_out is not _shipped(HELD_OUT_FILE, None).examples:
        excluded |= _keys(all_held_out)
    train = exclude_positions(rows, excluded)
    if not train or not held_out:
        raise UserError(f"data: expected training and held-out rows, got {len(train)} and {len(held_out)}")
    _require_tasks(config, train)
    if len(train) < len(rows) and config.held_out:
        held = f"{len(rows) - len(train)} of {len(rows)} rows have positions that are held out or excluded"
        notes.append(f"{config.train}: {held}, and are not trained on")
    kept = held_out if evaluation_rows_per_task is None else evaluation_rows(held_out, evaluation_rows_per_task)
    counts = ", ".join(f"{sum(row.task == task.name for row in train):,} of {task.name}" for task in tasks)
    lines = [f"data: {counts} from {config.train}; {len(kept):,} held-out rows from {config.held_out or config.train}"]
    return Data(train, kept, excluded, (*lines, *filter(None, notes)))


def hold_back(data: Data, rows_per_task: int) -> Data:
    """Move the last rows of each task, at most a tenth of them, to `validation`. No position stays in both."""
    held_back = tuple(
        row for rows in by_task(data.train) for row in rows[len(rows) - min(rows_per_task, len(rows) // 10) :]
    )
    train = exclude_positions(data.train, {example_key(row) for row in held_back})
    return replace(data, train=train, validation=held_back)


def _left_out(source: str, corpus: Corpus) -> str:
    """Return a line about the malformed rows of a source; empty if there are none."""
    if not corpus.rejects:
        return ""
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(corpus.rejects.items()))
    bad = corpus.rejects.total()
    rows = f"{bad} of {bad + len(corpus.examples)} rows are malformed and were left out ({reasons})"
    return f"{source}: {rows}; the first: {corpus.first_reject}; {command('data', 'audit', source)} shows them"


def _cut_off(source: str) -> list[str]:
    """Return lines about the games of a PGN file that stop without a result."""
    games = count_games(source).warnings() if file_type(source) == GAMES_FILE else []
    return [f"{source}: {line}" for line in games]


def _require_tasks(config: DataConfig, train: tuple[Example, ...]) -> None:
    weights = shares(config.tasks)
    for task, share in weights.items():
        if share and not any(example.task == task for example in train):
            others = ",".join(other for other in weights if other != task)
            hint = f"; data.tasks=[{others}] needs none" if others else ""
            raise UserError(
                f"data.train: expected rows of task {task}, as data.tasks=[{','.join(config.tasks)}] needs, "
                f"got none in {config.train}{hint}"
            )


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """Held-out rows for an evaluation, and the positions that must not be evaluated on."""

    held_out: tuple[Example, ...]
    trained: frozenset[str]
    """Positions of the training source and of `data.exclude`, by identity (`example_key`)."""


def load_evaluation_data(config: DataConfig, *, seed: int) -> EvaluationData:
    """Return the held-out rows of the tasks, unfiltered, and every position that must not be evaluated on.

    These are the positions of `data.exclude` and of the training rows in `data.train`, regardless of `limit`. Raises
    UserError if a source has no valid row, or if no row is held out.
    """
    tasks = config.task_objects()
    if config.held_out:
        held_out = _corpus(config.held_out, HELD_OUT_FILE, config, tasks).examples
        train = _corpus(config.train, TRAIN_FILE, replace(config, limit=None), ()).examples
    else:
        rows = _corpus(config.train, TRAIN_FILE, config, tasks).examples
        _, held_out = split_by_position(rows, HELD_OUT_FRACTION, seed)
        whole = _whole(rows, config.train, TRAIN_FILE, config, tasks)
        train, _ = split_by_position(whole, HELD_OUT_FRACTION, seed)
    if not held_out:
        raise UserError("data: expected held-out rows, got none")
    return EvaluationData(held_out, _keys(train) | _excluded(config))


def unseen_mates(path: str, trained: Collection[str]) -> tuple[list[MateInOne], int]:
    """Return the mates of a file whose position is not in `trained`, and how many are in it. Raises UserError."""
    with prefixed("evaluation.mates", ValueError, OSError):
        try:
            mates = read_mates(path)
        except UnicodeDecodeError as error:
            raise ValueError(f"expected text, got {path}: {error}") from error
    kept = [mate for mate in mates if position_key(parse_fen(mate.fen)) not in trained]
    return kept, len(mates) - len(kept)


def positions_of(sources: Iterable[str]) -> frozenset[str]:
    """Return the positions (`example_key`) of whole sources; `default`: our training rows. Raises UserError."""
    paths = (default_file(TRAIN_FILE) if source == DEFAULT else source for source in sources)
    return frozenset().union(*map(read_positions, paths))


@cache
def held_out_positions() -> frozenset[str]:
    """Return the positions of the held-out rows that ship with the package. No run may train on them."""
    return _keys(_shipped(HELD_OUT_FILE, None).examples)


def evaluation_rows(held_out: tuple[Example, ...], rows_per_task: int) -> tuple[Example, ...]:
    """Return the first rows of each task, at most rows_per_task per task."""
    return tuple(row for rows in by_task(held_out) for row in rows[:rows_per_task])


def by_task(rows: Iterable[Example]) -> list[list[Example]]:
    """Return the rows of each task that has rows, in the order in which the tasks were registered."""
    grouped: dict[str, list[Example]] = {task.name: [] for task in all_tasks()}
    for row in rows:
        grouped[row.task].append(row)
    return [found for found in grouped.values() if found]


def default_file(name: str) -> Path:
    """Return the path of a data file that ships with the package."""
    return asset(f"data/{name}")


def _keys(examples: Iterable[Example]) -> frozenset[str]:
    return frozenset(map(example_key, examples))


def _excluded(config: DataConfig) -> frozenset[str]:
    with prefixed("data.exclude", UserError):
        return positions_of(config.exclude)


@cache
def _shipped(name: str, limit: int | None) -> Corpus:
    return read_corpus(default_file(name), limit=limit)


def _whole(
    rows: tuple[Example, ...], source: str, default_name: str, config: DataConfig, tasks: Sequence[Task]
) -> tuple[Example, ...]:
    """Return all rows of a source, regardless of `limit`; `rows` are those within the limit."""
    return rows if config.limit is None else _corpus(source, default_name, replace(config, limit=None), tasks).examples


def _corpus(source: str, default_name: str, config: DataConfig, tasks: Sequence[Task]) -> Corpus:
    """Read the examples of the tasks in a source's rows up to the limit; without tasks all rows. Raises UserError."""
    if source == DEFAULT:
        shipped = _shipped(default_name, config.limit)
        return shipped.only(tasks) if tasks else shipped
    with prefixed("data", UserError):
        return read_corpus(source, limit=config.limit, tasks=tasks)

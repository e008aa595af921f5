"""Readers that turn rows of data into examples of the tasks: text lines, JSON lines and Hugging Face datasets.

A malformed row is counted by its reason and left out. A source without a valid row is an error of the user and raises
UserError.
"""

import functools
import hashlib
import importlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from ..board.fen import is_valid_fen, parse_fen, position_key, read_fen
from ..board.positions import GAMES_FILE, positions_from_file, positions_from_pgn
from ..errors import UserError, first_line
from ..files import file_type, open_text
from .registry import task_named, task_of
from .task import Task
from .types import Completion, Example, FailureReason, ParseFailure, Position, PromptError

END_OF_TEXT = "<|endoftext|>"
HASH_BYTES = 8
# A run needs the key of each of its rows several times, and parsing the FENs takes most of its start-up time.
KEYS_KEPT = 1 << 16
POSITION_FILES = (".fen", ".epd", GAMES_FILE, ".csv")
FILE_TYPES = (".txt", ".jsonl", *POSITION_FILES)
TRAIN_SPLIT = "train"
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")

FENS = "the line is a FEN alone: name a file of FENs .fen"
SOURCE_NAME = re.compile(r"[a-z][a-z0-9_]*")

# The task whose examples the rows of positions become if no other task is asked for.
OF_POSITIONS = "policy"

# Key of a row that stands for a line without a JSON object.
UNREADABLE = "no JSON object"
# Reasons whose detail is a sentence; that of the others is a word or a count.
SHOWN_IN_FULL = frozenset({FailureReason.bad_prompt, FailureReason.bad_row})
# Number of characters shown of the offending text of a row.
MOST_CHARACTERS = 100

RawRow = str | Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Contents of a source of rows."""

    examples: tuple[Example, ...]
    """Valid rows, in order; at least one."""
    rejects: Counter[str]
    """Number of malformed rows by the name of their `FailureReason`."""
    first_reject: str = ""
    """What is wrong with the first malformed row; empty if there is none."""

    def only(self, tasks: Sequence[Task]) -> "Corpus":
        """Return the examples of these tasks, in the order of the rows; see `examples_of`. It may have none."""
        examples = tuple(example for row in self.examples for example in examples_of(row, tasks))
        return self if examples == self.examples else replace(self, examples=examples)


@dataclass(slots=True)
class Rejects:
    """Malformed rows of a source."""

    counts: Counter[str] = field(default_factory=Counter)
    """Number of rows by the name of their `FailureReason`."""
    first: str = ""
    """Number of the first of them, among the rows from 1, with its reason and the offending text."""

    def add(self, number: int, failure: ParseFailure) -> None:
        """Count a row."""
        self.counts[failure.reason.value] += 1
        reason = shown(failure.detail) if failure.reason in SHOWN_IN_FULL else shown_failure(failure)
        self.first = self.first or f"row {number}: {reason}"


def shown_failure(failure: ParseFailure) -> str:
    """Return why a row is malformed on one line: the reason and the offending text."""
    detail = shown(failure.detail)
    return f"{failure.reason.value}: {detail}" if detail else failure.reason.value


def shown(text: str) -> str:
    """Return a text on one line, without the characters beyond MOST_CHARACTERS."""
    text = " ".join(text.split())
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"


def read_corpus(source: str | Path, *, limit: int | None = None, tasks: Sequence[Task] = ()) -> Corpus:
    """Read the examples of `source`: a `.txt` or `.jsonl` file, a dataset's folder, or a dataset's name on the hub.

    A `.fen`, `.epd` or `.pgn` file, and a `.csv` file of Lichess's puzzles, give policy prompts without labels.
    `NAME:SPLIT` is a split of a dataset other than `train`.

    With `tasks` only their examples are returned, and a task that a row does not belong to makes an example of the
    row's position if it can; see `examples_of`. `limit` is the maximum number of rows to read; blank lines do not
    count. Raises UserError if the source does not exist, cannot be read or holds no valid row.
    """
    rejects = Rejects()
    rows = tuple(_valid_rows(source, map(parse_row, islice(raw_rows(source), limit)), rejects))
    corpus = Corpus(rows, rejects.counts, rejects.first)
    return corpus.only(tasks) if tasks else corpus


def examples_of(row: Example, tasks: Sequence[Task]) -> Iterator[Example]:
    """Yield each task's example of a row: the row itself if it is the task's own, or one made from its position."""
    for task in tasks:
        if row.task == task.name:
            yield row
        elif task.from_positions and (position := task_named(row.task).position(row)):
            example = task.from_position(position)
            if example is not None:
                yield example


def _valid_rows(source: str | Path, rows: Iterable[Example | ParseFailure], rejects: Rejects) -> Iterator[Example]:
    """Yield the valid rows and count the others in `rejects`. Raises UserError at the end if no row is valid."""
    valid = 0
    for number, row in enumerate(rows, start=1):
        if isinstance(row, ParseFailure):
            rejects.add(number, row)
        else:
            valid += 1
            yield row
    require_valid(source, valid, rejects)


def require_valid(source: str | Path, valid: int, rejects: Rejects) -> None:
    """Raise UserError unless there is a valid row."""
    if valid:
        return
    if not rejects.counts:
        raise UserError(f"expected at least one row of 'P:' or 'A:' data in {source}, got no row at all")
    reasons = ", ".join(f"{name} {count}" for name, count in sorted(rejects.counts.items()))
    wanted = f"expected at least one valid row of 'P:' or 'A:' data in {source}"
    raise UserError(f"{wanted}, got {reasons}; the first: {rejects.first}")


def raw_rows(source: str | Path) -> Iterator[RawRow]:
    """Yield the rows of `source` unparsed and without blank lines. Raises UserError during iteration."""
    source, split = _name_and_split(source)
    path = Path(source)
    if path.is_file() and split:
        raise UserError(f"expected a split of a dataset, got {split!r} of the file {source}")
    if path.is_file() and file_type(path) not in FILE_TYPES:
        raise UserError(f"expected a .txt, .jsonl, .fen, .epd, .pgn or .csv file, got {source}")
    if not path.exists() and not _may_be_hub_name(source):
        wanted = "a .txt, .jsonl, .fen, .epd, .pgn or .csv file, a dataset folder or name"
        raise UserError(f"expected {wanted}, got {source}: no file")
    try:
        yield from _file_rows(path) if path.is_file() else _dataset_rows(source, split or TRAIN_SPLIT)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(first_line(error)) from error
    except OSError as error:
        raise UserError(f"expected rows in {source}, got {first_line(error)}") from error


def _name_and_split(source: str | Path) -> tuple[str | Path, str]:
    """Divide `NAME:SPLIT` into the name of a dataset and its split; empty if `source` names no split.

    >>> _name_and_split("owner/name:validation"), _name_and_split("owner/name")
    (('owner/name', 'validation'), ('owner/name', ''))
    """
    name, colon, split = str(source).rpartition(":")
    return (name, split) if colon and split and not Path(source).exists() else (source, "")


def _may_be_hub_name(source: str | Path) -> bool:
    """Return True for a name that the hub may have, but no local path: the hub takes half a minute to refuse one."""
    path = Path(source)
    in_local_folder = len(path.parts) > 1 and path.parent.exists()
    return bool(HUB_NAME.fullmatch(str(source))) and file_type(path) not in FILE_TYPES and not in_local_folder


def _file_rows(path: Path) -> Iterator[RawRow]:
    if file_type(path) in POSITION_FILES:
        read = positions_from_pgn if file_type(path) == GAMES_FILE else positions_from_file
        yield from ({"fen": fen} for fen in read(path))
        return
    with open_text(path) as lines:
        for line in lines:
            if line.strip():
                yield _json_row(line) if file_type(path) == ".jsonl" else line


def _json_row(line: str) -> RawRow:
    """Return the object of a JSON line; any other line under UNREADABLE, for which `parse_row` refuses it."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    return row if isinstance(row, dict) else {UNREADABLE: shown(line)}


def _dataset_rows(source: str | Path, split: str) -> Iterator[RawRow]:
    # Imported only here: it is slow to import and untyped, and no other reader needs it.
    datasets = importlib.import_module("datasets")
    try:
        if any((Path(source) / name).exists() for name in ("state.json", "dataset_dict.json")):
            saved = datasets.load_from_disk(str(source))
            yield from saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        else:
            # Streaming reads no more of a large dataset than a limit requires.
            yield from datasets.load_dataset(str(source), split=split, streaming=True)
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        wanted = f"a dataset with a split {split!r} in {source}"
        raise UserError(f"expected {wanted}, got {type(error).__name__}: {first_line(error)}") from error


def parse_row(raw: RawRow) -> Example | ParseFailure:
    """Parse a row: a text line, or an object with `prompt` (and `completion`), with `text`, or with `fen` alone.

    An object with `fen` alone gives a policy prompt without a label. An object's `source`, if it is a plain name such
    as `engine`, becomes the example's source.

    >>> parse_row({"fen": "8/8/8/8/8/8/8/K1k5 w - - 0 1"}).prompt
    'P: 8/8/8/8/8/8/8/K1k5 w - - 0 1'
    """
    parts = _parts(raw)
    example = parts if isinstance(parts, ParseFailure) else _example(*parts)
    source = None if isinstance(raw, str) else raw.get("source")
    if isinstance(example, Example) and isinstance(source, str) and SOURCE_NAME.fullmatch(source):
        return replace(example, source=source)
    return example


def read_positions(source: str | Path) -> frozenset[str]:
    """Return the positions (`example_key`) of all rows whose prompt parses, whatever their completion.

    Raises UserError as `read_corpus` does, and if no prompt parses.
    """
    split = map(_parts, raw_rows(source))
    prompts = (parts if isinstance(parts, ParseFailure) else _example(parts[0], None) for parts in split)
    return frozenset(map(example_key, _valid_rows(source, prompts, Rejects())))


def _parts(raw: RawRow) -> tuple[str, str | None] | ParseFailure:
    """Return the prompt and the completion of a row, unparsed."""
    if isinstance(raw, str):
        return _split(raw)
    prompt, completion = raw.get("prompt"), raw.get("completion")
    if isinstance(prompt, list):
        # Chat messages, as other libraries' datasets have them.
        prompt = json.dumps(prompt, ensure_ascii=False)
    if isinstance(prompt, str) and isinstance(completion, str | None):
        return prompt, completion
    if isinstance(text := raw.get("text"), str):
        return _split(text)
    if isinstance(fen := raw.get("fen"), str):
        return _prompt_of(fen)
    if UNREADABLE in raw:
        return ParseFailure(FailureReason.bad_row, UNREADABLE)
    return ParseFailure(FailureReason.bad_row, f"columns {', '.join(raw) or 'none'}")


def _prompt_of(fen: str) -> tuple[str, None] | ParseFailure:
    """Return the prompt of a position, whose FEN may lack its counters."""
    try:
        example = task_named(OF_POSITIONS).from_position(Position(read_fen(fen).fen()))
    except ValueError as error:
        return ParseFailure(FailureReason.bad_prompt, str(error))
    return (example.prompt, None) if example else ParseFailure(FailureReason.bad_prompt, fen)


def split_line(line: str) -> Example | ParseFailure:
    """Split a line of any task into prompt and completion, which together are the line without surrounding blanks and
    `<|endoftext|>`.

    >>> split_line("P: 8/8/8/8/8/8/8/K1k5 w - - 0 1   M: a1a2 E: 0.5 B: a1a2").completion
    '   M: a1a2 E: 0.5 B: a1a2'
    """
    parts = _split(line)
    return parts if isinstance(parts, ParseFailure) else _example(*parts)


def _split(line: str) -> tuple[str, str | None] | ParseFailure:
    text = line.strip().removeprefix(END_OF_TEXT).removesuffix(END_OF_TEXT).strip()
    try:
        return task_of(text).split(text)
    except PromptError as error:
        return _bad_prompt(text, error)


def _bad_prompt(text: str, error: PromptError) -> ParseFailure:
    """Return the failure of a prompt: what is wrong inside it, if the error has a cause, else the error itself."""
    return ParseFailure(FailureReason.bad_prompt, FENS if is_valid_fen(text) else str(error.__cause__ or error))


def _example(prompt: str, completion: str | None) -> Example | ParseFailure:
    """Build an example. Blanks at the end of the prompt are moved to the completion."""
    prompt = prompt.removeprefix(END_OF_TEXT)
    padding = prompt[len(prompt.rstrip()) :]
    try:
        prompt.encode()  # JSON can contain half of a surrogate pair, which no tokenizer accepts
        task = task_of(prompt)
        query = task.query(prompt.rstrip())
    except PromptError as error:
        return _bad_prompt(prompt.strip(), error)
    except UnicodeEncodeError as error:
        return ParseFailure(FailureReason.bad_prompt, str(error))
    if completion is None:
        return Example(task.name, prompt.rstrip(), None)
    label = task.parse(Completion(completion), query)
    if isinstance(label, ParseFailure):
        return label
    return Example(task.name, prompt.rstrip(), padding + completion)


def example_key(example: Example) -> str:
    """Return the key of the position in which an example's prompt begins (see `position_key`). Raises PromptError."""
    return _prompt_key(example.task, example.prompt)


@functools.lru_cache(maxsize=KEYS_KEPT)
def _prompt_key(task: str, prompt: str) -> str:
    return position_key(parse_fen(task_named(task).query(prompt).fen))


def split_by_position(
    examples: Iterable[Example], held_out_fraction: float, seed: int
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Split the examples into (training, held out), each in order. All rows of one position are on the same side.

    The side of a position depends only on the position and `seed`, so it is the same in all files and tasks. The
    fraction, in [0, 1], is the expected fraction of held-out positions.
    """
    sides: tuple[list[Example], list[Example]] = ([], [])
    for example in examples:
        sides[is_held_out(example_key(example), held_out_fraction, seed)].append(example)
    return tuple(sides[0]), tuple(sides[1])


def is_held_out(key: str, fraction: float, seed: int) -> bool:
    """Return True if the position with this key is held out, as in `split_by_position`."""
    digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
    return int.from_bytes(digest[:HASH_BYTES], "big") / (1 << 8 * HASH_BYTES) < fraction


def exclude_positions(examples: Iterable[Example], keys: Collection[str]) -> tuple[Example, ...]:
    """Return the examples whose position's key is not in `keys` (see `example_key`; a set is fast)."""
    return tuple(example for example in examples if example_key(example) not in keys)

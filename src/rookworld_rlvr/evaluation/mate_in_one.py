"""The suite `mate_in_one`: positions of BIG-bench's `checkmate_in_one` as policy prompts.

Source: github.com/google/BIG-bench, bigbench/benchmark_tasks/checkmate_in_one. Its score is exact match with the single
target. Here any mating move counts, and exact match is a second key.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chess

from ..board.fen import parse_fen, read_fen, require_possible
from ..board.moves import is_legal_uci, is_mate
from ..board.pgn import read_pgn
from ..files import file_type, open_text
from ..tasks.policy.text import render_policy_prompt
from .completions import CHUNK_ROWS
from .keys import with_slices
from .players import Player
from .suite import Suite, SuiteName, by_chunks
from .table import PromptAndCompletion, Row


@dataclass(frozen=True, slots=True)
class MateInOne:
    """A position in which the side to move mates."""

    fen: str
    best: str
    """The mating move that the file gives, in UCI notation."""

    def __str__(self) -> str:
        return f"{self.fen} {self.best}"


def read_mates(path: Path | str) -> list[MateInOne]:
    """Return the positions of a file, in order, without duplicates.

    Raises ValueError, naming file and row, if a row is not a position with a mating move, or if there are no rows.
    Raises OSError if the file cannot be read.
    """
    path = Path(path)
    with open_text(path) as file:
        text = file.read()
    rows = _bigbench_rows(text, path) if file_type(path) == ".json" else _json_rows(text, path)
    mates = dict.fromkeys(_mate(row, where) for where, row in rows)
    if not mates:
        raise ValueError(f"expected positions with a mate in one in {path}, got none")
    return list(mates)


def _mate(row: object, where: str) -> MateInOne:
    try:
        if not isinstance(row, dict):
            raise ValueError("no object")
        board, best = require_possible(read_fen(str(row["fen"]))), str(row["best"])
    except (ValueError, KeyError) as error:
        raise ValueError(f"expected an object with fen and best at {where}, got {row!r}: {error}") from error
    if not is_mate(board, best):
        raise ValueError(f"expected a move that mates at {where}, got {best!r} in {board.fen()!r}")
    return MateInOne(board.fen(), best)


def _json_rows(text: str, path: Path) -> Iterator[tuple[str, object]]:
    """Yield the place in the file and the decoded content of each line that is not blank."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield f"{path}:{number}", _decoded(line, f"{path}:{number}")


def _decoded(text: str, where: Path | str) -> Any:
    try:
        return json.loads(text)
    # A number of thousands of digits raises a plain ValueError.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON at {where}, got {error}") from error


def _bigbench_rows(text: str, path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place and the position of each example of the task.

    An example has the moves of a game so far, in SAN, and the mating move as its target.
    """
    task = _decoded(text, path)
    if not isinstance(task, dict) or not isinstance(task.get("examples"), list):
        raise ValueError(f"expected BIG-bench's task.json with a list of examples, got none in {path}")
    for number, example in enumerate(task["examples"], start=1):
        where = f"{path}, example {number}"
        try:
            board = _board_after(example["input"])
            yield where, {"fen": board.fen(), "best": board.parse_san(example["target"]).uci()}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"expected moves as input and a move as target at {where}: {error!r}") from error


def _board_after(moves: str) -> chess.Board:
    """Return the board after the moves of a game. Raises ValueError for the moves of several."""
    games = list(read_pgn([f"{moves}\n"], "input"))
    if len(games) > 1:
        raise ValueError(f"expected the moves of one game, got {len(games)} games")
    *_, board = games[0].boards() if games else [chess.Board()]
    return board


def mate_in_one_suite(
    player: Player,
    mates: Sequence[MateInOne],
    *,
    prompt: Callable[[str], str] = render_policy_prompt,
    facts: Mapping[str, Any] | None = None,
) -> Suite:
    """Return the suite, with a row per position. `prompt` makes a row's prompt from its FEN.

    Values, also by the position's slices: `mate_in_one/accuracy`, for which any mating move counts; `/exact`, for which
    only the file's move counts; `/legal`.
    """

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        boards = [parse_fen(mate.fen) for mate in chunk]
        texts = player.choose(boards, range(first, first + len(chunk)))
        answered = enumerate(zip(chunk, boards, texts, strict=True), start=first)
        return [_row(index, mate, board, text, prompt) for index, (mate, board, text) in answered]

    rows = by_chunks(mates, CHUNK_ROWS, answer)
    return Suite(SuiteName.mate_in_one, mates, rows, CHUNK_ROWS, facts or {})


def _row(index: int, mate: MateInOne, board: chess.Board, text: str, prompt: Callable[[str], str]) -> Row:
    values = {
        "mate_in_one/accuracy": float(is_mate(board, text)),
        "mate_in_one/exact": float(text == mate.best),
        "mate_in_one/legal": float(is_legal_uci(board, text)),
    }
    written = PromptAndCompletion(prompt(mate.fen), mate.best, text)
    return Row(index, mate, with_slices(values, board), written=written)

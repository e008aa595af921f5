"""The suite `puzzles`, by Lichess's rule: every move of the solver must be right, and any mate counts.

Source: database.lichess.org/#puzzles: the position is the one before the opponent's move; each of the solver's moves
is the only good one, except for mates in one, of which there may be several.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chess

from ..board.fen import parse_fen
from ..board.moves import is_legal_uci, is_mate
from .completions import CHUNK_ROWS
from .keys import with_slices
from .players import Player
from .suite import Suite, SuiteName, by_chunks
from .table import Row, move_written

BAND = 400
LICHESS_COLUMNS = ("PuzzleId", "FEN", "Moves", "Rating", "Themes")


@dataclass(slots=True)
class PuzzlesConfig:
    """Source, number and themes of puzzles."""

    path: str = ""
    """Lichess's CSV, or JSON lines with `fen` and `best`; the suite needs it."""
    limit: int | None = None
    """Largest number of puzzles; null: all."""
    themes: list[str] = field(default_factory=lambda: ["mateIn1", "mateIn2", "middlegame", "endgame"])
    """Themes with an accuracy of their own."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"puzzles.limit: expected 1 or more, or null, got {self.limit}")


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A line that the solver has to find."""

    name: str
    steps: tuple[tuple[str, str], ...]
    """FEN and right move of each of the solver's turns, at least one."""
    rating: int | None
    themes: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(f"{fen} {best}" for fen, best in self.steps)


def read_puzzles(path: Path | str) -> list[Puzzle]:
    """The puzzles of a file, in order: a `.csv` with Lichess's columns, else JSON lines.

    A JSON line holds `fen` and `best`, and may hold `rating`, `themes`, and `id` with `ply`: the lines of one id are
    the turns of one puzzle. Raises ValueError, naming file and row, if a move is illegal or a turn is missing, or if
    there is no puzzle; OSError if the file cannot be read.
    """
    path = Path(path)
    puzzles = list((_csv_puzzles if path.suffix == ".csv" else _json_puzzles)(path))
    if not puzzles:
        raise ValueError(f"expected puzzles in {path}, got none")
    return puzzles


def _csv_puzzles(path: Path) -> Iterator[Puzzle]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        # A truncated row gets empty fields at its end.
        reader = csv.DictReader(file, restval="")
        try:
            if not set(LICHESS_COLUMNS) <= set(reader.fieldnames or ()):
                raise ValueError(f"columns {reader.fieldnames}, without all of {', '.join(LICHESS_COLUMNS)}")
            for row in reader:
                steps = tuple(_solver_steps(row["FEN"], row["Moves"].split()))
                yield Puzzle(row["PuzzleId"], steps, int(row["Rating"]), tuple(row["Themes"].split()))
        except (ValueError, csv.Error) as error:
            raise ValueError(f"expected Lichess's puzzles at {path}:{reader.line_num}, got {error}") from error


def _solver_steps(fen: str, moves: Sequence[str]) -> Iterator[tuple[str, str]]:
    """FEN and move of each turn of the solver, who has every second move; the opponent has the first."""
    if len(moves) < 2:
        raise ValueError(f"{len(moves)} moves")
    board = parse_fen(fen)
    for turn, uci in enumerate(moves):
        if not is_legal_uci(board, uci):
            raise ValueError(f"the illegal move {uci!r} in {board.fen()!r}")
        if turn % 2:
            yield board.fen(), uci
        board.push_uci(uci)


def _json_puzzles(path: Path) -> Iterator[Puzzle]:
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    turns: dict[str, list[tuple[str, Mapping[str, object]]]] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where, row = f"{path}:{number}", _json_row(line, f"{path}:{number}")
            turns.setdefault(str(row.get("id", where)), []).append((where, row))
    return (_joined(name, rows) for name, rows in turns.items())


def _json_row(line: str, where: str) -> Mapping[str, object]:
    try:
        row = json.loads(line)
        board = parse_fen(row["fen"])
        if not is_legal_uci(board, row["best"]):
            raise ValueError(f"the illegal move {row['best']!r}")
        if not isinstance(row.get("rating"), int | None) or not isinstance(row.get("themes", []), list):
            raise ValueError("a rating that is not a number, or themes that are not a list")
        if not isinstance(row.get("ply", 0), int):
            raise ValueError(f"the ply {row['ply']!r}, which is not a number")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"expected an object with fen and a legal best at {where}, got {line!r}: {error}") from error
    return {**row, "fen": board.fen()}


def _joined(name: str, rows: list[tuple[str, Mapping[str, object]]]) -> Puzzle:
    """The puzzle of these turns; one reply of the opponent lies between two of them."""
    if len(rows) > 1:
        rows = sorted(rows, key=lambda row: int(str(row[1].get("ply", 0))))
    steps = tuple((str(row["fen"]), str(row["best"])) for _, row in rows)
    for (fen, best), (after, _), (where, _) in zip(steps, steps[1:], rows[1:], strict=False):
        if not _one_reply_apart(fen, best, after):
            raise ValueError(f"expected the turn that follows {best} in {fen!r} at {where}, got {after!r}")
    first = rows[0][1]
    rating, themes = first.get("rating"), first.get("themes") or []
    assert isinstance(rating, int | None) and isinstance(themes, list)
    return Puzzle(name, steps, rating, tuple(map(str, themes)))


def _one_reply_apart(fen: str, uci: str, after: str) -> bool:
    board = parse_fen(fen)
    board.push_uci(uci)
    return any(_after(board, reply) == after for reply in board.legal_moves)


def _after(board: chess.Board, move: chess.Move) -> str:
    board.push(move)
    fen = board.fen()
    board.pop()
    return fen


def puzzles_suite(
    player: Player, items: Sequence[Puzzle], *, themes: Sequence[str] = (), facts: Mapping[str, Any] | None = None
) -> Suite:
    """A row per puzzle; the puzzles of a chunk are solved side by side.

    Values: `puzzles/accuracy`, the whole line; the same by band of rating and, as `theme_<name>`, by theme;
    `puzzles/first_move`, right at the first turn; `puzzles/legal`, legal there. These three also by the slices of the
    first turn's position.
    """

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        solved, texts = _solve(player, chunk, first)
        return [
            Row(
                first + i,
                puzzle,
                _values(puzzle, texts[i], i in solved, themes),
                written=move_written(puzzle.steps[0][0], puzzle.steps[0][1], texts[i]),
            )
            for i, puzzle in enumerate(chunk)
        ]

    return Suite(SuiteName.puzzles, items, by_chunks(items, CHUNK_ROWS, answer), CHUNK_ROWS, facts or {})


def _solve(player: Player, chunk: Sequence[Puzzle], start: int) -> tuple[set[int], list[str]]:
    """The places of the solved puzzles in the chunk, and the text at the first turn of each puzzle."""
    going, solved, first = list(range(len(chunk))), set[int](), list[str]()
    turn = 0
    while going:
        boards = [parse_fen(chunk[i].steps[turn][0]) for i in going]
        texts = player.choose(boards, [start + i for i in going])
        first = first or texts
        mated = {i for i, board, text in zip(going, boards, texts, strict=True) if is_mate(board, text)}
        right = {i for i, text in zip(going, texts, strict=True) if text == chunk[i].steps[turn][1]}
        turn += 1
        solved |= mated | {i for i in right if len(chunk[i].steps) == turn}
        going = [i for i in going if i in right and i not in solved]
    return solved, first


def _values(puzzle: Puzzle, first: str, solved: bool, themes: Iterable[str]) -> dict[str, float]:
    fen, best = puzzle.steps[0]
    board = parse_fen(fen)
    values = {
        "puzzles/accuracy": float(solved),
        "puzzles/first_move": float(first == best or is_mate(board, first)),
        "puzzles/legal": float(is_legal_uci(board, first)),
    }
    values = with_slices(values, board)
    if puzzle.rating is not None:
        values[f"puzzles/accuracy/{band(puzzle.rating)}"] = float(solved)
    return values | {f"puzzles/accuracy/theme_{theme}": float(solved) for theme in themes if theme in puzzle.themes}


def band(rating: int) -> str:
    """The band of a rating; its name has both ends.

    >>> band(1599)
    'rated_1200_1599'
    """
    low = rating // BAND * BAND
    return f"rated_{low:04d}_{low + BAND - 1:04d}"

"""Reader of Lichess's puzzles: the CSV file of database.lichess.org, decompressed.

In a line of the file the opponent moves first, and the solver moves last. Source: https://database.lichess.org/#puzzles.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..files import open_text
from .fen import read_fen, require_possible
from .moves import is_legal_uci

COLUMNS = ("PuzzleId", "FEN", "Moves", "Rating")
# Moves of the shortest line: one of the opponent and one of the solver.
SHORTEST = 2


@dataclass(frozen=True, slots=True)
class Puzzle:
    """A position and its solution. Its `str` is its identity."""

    name: str
    """The puzzle's id on lichess.org."""
    fen: str
    """Position in which the solver begins: the file's after the opponent's first move."""
    moves: tuple[str, ...]
    """Moves from this position on as UCI, by solver and opponent in turn. The first and the last are the solver's."""
    rating: int
    """Glicko-2 rating of the puzzle."""

    def __str__(self) -> str:
        return f"{self.name} {self.fen} {' '.join(self.moves)}"


def read_puzzles(path: Path | str) -> Iterator[Puzzle]:
    """Yield the puzzles of a file in order. The columns of COLUMNS are needed; others are ignored.

    A file without rows yields nothing. Raises ValueError, naming the file and, unless a column is missing, the line;
    OSError if the file cannot be read.
    """
    path = Path(path)
    with open_text(path, wanted="a CSV file, not compressed,", newline="") as text:
        rows = csv.DictReader(text)
        try:
            if not set(COLUMNS) <= set(rows.fieldnames or ()):
                wanted = f"a CSV file, not compressed, with the columns {', '.join(COLUMNS)}"
                raise ValueError(f"expected {wanted}, got {str(rows.fieldnames)[:80]} in {path}")
            for row in rows:
                yield _puzzle(row, f"{path}:{rows.line_num}")
        except csv.Error as error:
            raise ValueError(f"expected a row of CSV at {path}:{rows.line_num}, got {error}") from error


def _puzzle(row: Mapping[str, str | None], where: str) -> Puzzle:
    name, fen, line, rating = (row[column] or "" for column in COLUMNS)
    try:
        board, moves = require_possible(read_fen(fen)), line.split()
        if len(moves) < SHORTEST or len(moves) % 2:
            raise ValueError(f"expected a line of 2, 4, … moves, got {line!r}")
        start = ""
        for move in moves:
            if not is_legal_uci(board, move):
                raise ValueError(f"expected a line of legal moves, got {move!r} in {board.fen()!r}")
            board.push_uci(move)
            start = start or board.fen()
        return Puzzle(name, start, tuple(moves[1:]), int(rating))
    except ValueError as error:
        raise ValueError(f"{error}, {where}") from error

"""Move evaluations as lines of text: an engine's eval of every legal move of a position."""

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import chess

from ..files import GZIP, HEAD_BYTES, foreign_content

Analyse = Callable[[chess.Board], Mapping[str, float]]
"""Function that returns the evals of all legal moves of a position, in pawns, from the side to move's view. The
position must have a legal move."""


@dataclass(frozen=True, slots=True)
class MoveEvals:
    """Position with the eval of each of its legal moves."""

    fen: str
    """The FEN as python-chess prints it."""
    source: str
    """Source of the position, as the data card names it."""
    evals_pawns: Mapping[str, float]
    """Evals by move, from the side to move's view, mates as in `board.evals`; at least one move."""


def render_move_evals(evals: MoveEvals) -> str:
    """Render one line: source, FEN and moves with their evals in centipawns, separated by tabs.

    >>> render_move_evals(MoveEvals("8/8/8/8/8/7k/5q2/7K b - - 0 1", "endgame", {"f2f1": 999.99, "f2g2": -0.5}))
    'endgame\\t8/8/8/8/8/7k/5q2/7K b - - 0 1\\tf2f1:99999 f2g2:-50'
    """
    moves = " ".join(f"{move}:{round(100 * pawns)}" for move, pawns in evals.evals_pawns.items())
    return f"{evals.source}\t{evals.fen}\t{moves}"


def parse_move_evals(line: str) -> MoveEvals:
    """Parse a line written by `render_move_evals`. Raises ValueError for any other line."""
    try:
        source, fen, moves = line.rstrip("\n").split("\t")
        pairs = (move.split(":") for move in moves.split(" "))
        return MoveEvals(fen, source, {move: int(centipawns) / 100 for move, centipawns in pairs})
    except ValueError as error:
        raise ValueError(f"expected source, FEN and moves with centipawns, parted by tabs, got {line!r}") from error


def move_evals_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file of move evaluations, unpacked if it is compressed by gzip.

    Raises OSError, and ValueError for a damaged file.
    """
    try:
        raw = path.read_bytes()
        if not (packed := raw.startswith(GZIP)) and (foreign := foreign_content(raw[:HEAD_BYTES])):
            raise ValueError(f"expected a file of move evaluations, got {path}: {foreign}")
        text = (gzip.decompress(raw) if packed else raw).decode("utf-8")
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"expected a file of move evaluations, got {path}: {error}") from error
    yield from text.splitlines()

"""Drawings of what a completion says: positions with arrows and marked squares, and a list of moves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import chess

from .moves import is_legal_uci


@dataclass(frozen=True, slots=True)
class Candidate:
    """A move in a completion."""

    text: str
    eval: str
    """Text of the move's eval; empty if there is none."""
    legal: bool
    best: bool
    repeated: bool
    """True if the same move stands earlier in the list."""


class Kind(StrEnum):
    """Meaning of an arrow: the best move, another legal move or an illegal move."""

    best = "best"
    legal = "legal"
    illegal = "illegal"


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow that shows a move on a board."""

    tail: chess.Square
    head: chess.Square
    kind: Kind
    eval: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """A position to be drawn."""

    title: str
    pieces: chess.BaseBoard
    turn: chess.Color
    """Side from which the board is seen."""
    arrows: Sequence[Arrow] = ()
    wrong: Sequence[chess.Square] = ()
    """Squares to mark as wrong."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A completion as boards and a list of moves."""

    boards: list[Board]
    candidates: list[Candidate] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Squares on which the predicted board differs from the true one, and errors in the fields after the board."""
    problem: str = ""
    """Kind of mistake; empty if there is none."""


def candidate(
    board: chess.Board, text: str, *, eval: str = "", best: bool = False, repeated: bool = False
) -> Candidate:
    """Return a move that a completion names in a position, whatever its text."""
    return Candidate(text, eval, is_legal_uci(board, text), best, repeated)


def position(board: chess.Board, moves: Sequence[Candidate]) -> Board:
    """Return the position with arrows for the moves. The best move's arrow is on top."""
    shown = sorted((move for move in moves if not move.repeated), key=lambda move: move.best)
    side = "White" if board.turn else "Black"
    return Board(f"{side} to move", board, board.turn, [arrow for move in shown for arrow in arrows(move)])


def arrows(move: Candidate) -> list[Arrow]:
    """Return the arrow of a move as a list; empty if the move's text does not name two squares."""
    tail, head = move.text[:2], move.text[2:4]
    if tail not in chess.SQUARE_NAMES or head not in chess.SQUARE_NAMES:
        return []
    kind = Kind.illegal if not move.legal else Kind.best if move.best else Kind.legal
    return [Arrow(chess.parse_square(tail), chess.parse_square(head), kind, move.eval)]

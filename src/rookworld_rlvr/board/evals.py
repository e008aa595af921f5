"""Evals in the format of the published data: in pawns, from the side to move's view. Also the material balance.

The types are python-chess's: `Cp` and `Mate` are scores that do not state from whose view they are.
A mate in n is written as ±(1000 - n/100) pawns, so that mate in 1 is `999.99`.
"""

import math

import chess
from chess.engine import Cp, Mate, Score

PIECE_PAWNS = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9, chess.KING: 0}
MATE_PAWNS = 1000.0
# From this many pawns on, a written eval is a mate; no engine reports a centipawn score near it.
MATE_THRESHOLD_PAWNS = 900.0


def to_pawns(score: Score) -> float:
    """Convert a score to pawns, mates included. Raises ValueError for Mate(0): a mated side has no move to evaluate.

    >>> to_pawns(Cp(-267)), to_pawns(Mate(1)), to_pawns(Mate(-2))
    (-2.67, 999.99, -999.98)
    """
    moves = score.mate()
    if moves is None:
        return round((score.score() or 0) / 100, 2)
    if moves == 0:
        raise ValueError("expected a mate in one or more moves, got mate in 0")
    return math.copysign(round(MATE_PAWNS - abs(moves) / 100, 2), moves)


def from_pawns(pawns: float) -> Score:
    """Return the score that is written as `pawns`: from 900 pawns on the nearest mate, at least one in one.

    Raises ValueError for NaN and for absolute values of 1000 or more.

    >>> from_pawns(999.97), from_pawns(-2.67), from_pawns(999.999)
    (Mate(+3), Cp(-267), Mate(+1))
    """
    if not math.isfinite(pawns) or abs(pawns) >= MATE_PAWNS:
        raise ValueError(f"expected an eval between -1000 and 1000 pawns, got {pawns}")
    if abs(pawns) < MATE_THRESHOLD_PAWNS:
        return Cp(round(pawns * 100))
    moves = max(1, round((MATE_PAWNS - abs(pawns)) * 100))
    return Mate(moves if pawns > 0 else -moves)


def win_probability(pawns: float) -> float:
    """Return the expected game result in [0, 1] for an eval, from the same view, by lichess's logistic of centipawns.

    The result is a multiple of 0.001. It is constant beyond ten pawns, at 0.975, while mates are
    0.999 if near and 0.983 if far.
    Source: python-chess's `Score.wdl(model="lichess")`, lichess.org/page/accuracy.

    >>> win_probability(0.0)
    0.5
    """
    return from_pawns(pawns).wdl(model="lichess").expectation()


def material_balance(board: chess.Board, color: chess.Color) -> int:
    """Return the material of `color` minus that of the other side, in pawns by the usual values.

    >>> material_balance(chess.Board("4k3/8/8/8/8/8/4P3/R3K3 w - - 0 1"), chess.BLACK)
    -6
    """
    pieces = board.piece_map().values()
    return sum(PIECE_PAWNS[piece.piece_type] * (1 if piece.color == color else -1) for piece in pieces)


def captured_pawns(board: chess.Board, move: chess.Move) -> int:
    """Return the value in pawns of the piece that a move captures; 0 if it captures none."""
    if board.is_en_passant(move):
        return PIECE_PAWNS[chess.PAWN]
    kind = board.piece_type_at(move.to_square)
    return PIECE_PAWNS[kind] if kind and board.is_capture(move) else 0

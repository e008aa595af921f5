"""Distances to mate of king and queen, or king and rook, against a king, by retrograde analysis.

A short search does not see a mate in sixteen moves, and then gives nearly all moves the same eval.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import chess
import numpy as np
from chess.engine import Mate
from numpy.typing import NDArray

from .evals import to_pawns

Array = NDArray[Any]

NEVER = 255
DRAW_PAWNS = 0.0
STRAIGHT, DIAGONAL = ((1, 0), (-1, 0), (0, 1), (0, -1)), ((1, 1), (1, -1), (-1, 1), (-1, -1))
DIRECTIONS = {chess.ROOK: STRAIGHT, chess.QUEEN: STRAIGHT + DIAGONAL}
"""Steps in files and ranks of each piece that mates; the queen's are also the king's."""


@dataclass(frozen=True, slots=True)
class Distances:
    """Distances to mate by the squares of the stronger side's king, its piece, and the other king; NEVER without one.

    A distance counts the stronger side's moves. Impossible positions have NEVER.
    """

    to_move: Array
    """(64, 64, 64), uint8: distance with the stronger side to move, from 1."""
    moved: Array
    """(64, 64, 64), uint8: distance with the other side to move; 0 is mate."""


def exact_evals(board: chess.Board) -> dict[str, float] | None:
    """Return the evals of all legal moves by distance to mate, in pawns, from the side to move's view, as UCI.

    Mates are written as in `evals`, stalemate and the loss of the piece as 0. None for a board with other pieces.

    >>> evals = exact_evals(chess.Board("k7/2K5/8/8/8/8/8/1R6 w - - 0 1"))
    >>> evals["b1a1"], evals["b1b8"]
    (999.99, 999.97)
    """
    placed = board.piece_map()
    pieces = [(square, piece) for square, piece in placed.items() if piece.piece_type != chess.KING]
    if len(placed) != 3 or len(pieces) != 1 or pieces[0][1].piece_type not in DIRECTIONS or board.castling_rights:
        return None
    [(_, piece)] = pieces
    distances, evals = distances_of(piece.piece_type), {}
    for move in board.legal_moves:
        after = board.copy(stack=False)
        after.push(move)
        evals[move.uci()] = 0.0 - _eval(after, piece, distances)
    return evals


def _eval(board: chess.Board, piece: chess.Piece, distances: Distances) -> float:
    """Return the eval of a position from the view of the side to move, which may have been mated."""
    square = next(iter(board.pieces(piece.piece_type, piece.color)), None)
    ours, theirs = board.king(piece.color), board.king(not piece.color)
    if square is None or ours is None or theirs is None:
        return DRAW_PAWNS
    ahead = board.turn == piece.color
    distance = int((distances.to_move if ahead else distances.moved)[ours, square, theirs])
    if distance == NEVER:
        return DRAW_PAWNS
    # Who has just been mated has no eval; the move that mated was a mate in one.
    return to_pawns(Mate(distance)) if ahead else -to_pawns(Mate(distance + 1))


@cache
def distances_of(piece: chess.PieceType) -> Distances:
    """Return the distances for a queen or a rook. The first call takes half a second.

    Each round finds the mates that are one move longer: first where the stronger side has a move to a shorter one, then
    where all moves of the other side lead to one.
    """
    king_steps = [_steps(step, 1) for step in DIRECTIONS[chess.QUEEN]]
    near = np.zeros((64, 64), bool)
    for to in king_steps:
        near[np.arange(64)[to >= 0], to[to >= 0]] = True
    same = np.eye(64, dtype=bool)
    possible = ~(same[:, :, None] | same[:, None, :] | same[None, :, :] | near[:, None, :] | same[:, None, :])
    reach = _reach(piece)
    # The other king may go where neither the king nor the piece attacks. It does not hide squares behind it.
    safe = ~(near[:, None, :] | reach | same[:, None, :])
    escapes = [(np.maximum(to, 0), (to >= 0) & safe[:, :, np.maximum(to, 0)]) for to in king_steps]
    stuck = ~np.any([legal for _, legal in escapes], axis=0)
    moved = np.where(possible & stuck & reach, 0, NEVER).astype(np.uint8)
    to_move = np.full_like(moved, NEVER)
    for distance in range(1, NEVER):
        reaches = np.zeros_like(possible)
        for to in king_steps:
            reaches |= (to >= 0)[:, None, None] & (moved[np.maximum(to, 0)] == distance - 1)
        for to, clear in _piece_moves(piece):
            reaches |= clear & (moved[:, np.maximum(to, 0)] == distance - 1)
        new = reaches & possible & ~reach & (to_move == NEVER)
        if not new.any():
            break
        to_move[new] = distance
        held = np.any([legal & (to_move[:, :, to] == NEVER) for to, legal in escapes], axis=0)
        moved[possible & ~held & ~stuck & (moved == NEVER)] = distance
    return Distances(to_move, moved)


def _steps(direction: tuple[int, int], length: int) -> Array:
    """Return (64,): the square that many steps away in a direction of files and ranks; -1 off the board."""
    files, ranks = np.arange(64) % 8 + direction[0] * length, np.arange(64) // 8 + direction[1] * length
    inside = (files >= 0) & (files < 8) & (ranks >= 0) & (ranks < 8)
    return np.where(inside, ranks * 8 + files, -1)


def _piece_moves(piece: chess.PieceType) -> list[tuple[Array, Array]]:
    """Return for each direction and length the target by square, and (64, 64, 64): no king is on the way or there."""
    moves = []
    for direction in DIRECTIONS[piece]:
        on_the_way = np.zeros((64, 64), bool)
        for length in range(1, 8):
            to = _steps(direction, length)
            on_the_way[np.arange(64)[to >= 0], to[to >= 0]] = True
            clear = (to >= 0)[None, :, None] & ~(on_the_way.T[:, :, None] | on_the_way[None, :, :])
            moves.append((to, clear))
    return moves


def _reach(piece: chess.PieceType) -> Array:
    """Return (64, 64, 64): the piece, on the second square, attacks the third one if only a king, on the first, hides
    squares behind it."""
    reach = np.zeros((64, 64, 64), bool)
    for direction in DIRECTIONS[piece]:
        for square in range(64):
            hidden = np.zeros(64, bool)
            for length in range(1, 8):
                to = int(_steps(direction, length)[square])
                if to < 0:
                    break
                reach[~hidden, square, to] = True
                hidden[to] = True
    return reach

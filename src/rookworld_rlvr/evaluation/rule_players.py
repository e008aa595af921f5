"""Players that follow a rule of thumb: what a model must beat before it can be said to play.

Both break ties at random, by the position and the number that comes with it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import chess

from ..board.material import PIECE_PAWNS

MATE_PAWNS = 1000


@dataclass(frozen=True, slots=True)
class CapturePlayer:
    """Takes the most valuable man there is to take; any legal move where there is none."""

    seed: int = 0

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`."""
        return [_likeliest(self, board, number) for board, number in zip(boards, numbers, strict=True)]

    def worth(self, board: chess.Board, move: chess.Move) -> int:
        """Pawns."""
        return captured_pawns(board, move)


@dataclass(frozen=True, slots=True)
class ExchangePlayer:
    """Mates if it can; else it takes the most, less what the opponent's best capture then wins.

    That capture wins the man taken, less the man that takes where it can be taken back. A promotion counts as what it
    adds.
    """

    seed: int = 0

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`."""
        return [_likeliest(self, board, number) for board, number in zip(boards, numbers, strict=True)]

    def worth(self, board: chess.Board, move: chess.Move) -> int:
        """Pawns; MATE_PAWNS for a mate."""
        won = captured_pawns(board, move) + promotion_pawns(move)
        after = board.copy(stack=False)
        after.push(move)
        if after.is_checkmate():
            return MATE_PAWNS
        replies = [_reply_pawns(after, reply) for reply in after.generate_legal_captures()]
        return won - max([0, *replies])


def captured_pawns(board: chess.Board, move: chess.Move) -> int:
    """The value of the man that a move takes, 0 if none."""
    if board.is_en_passant(move):
        return PIECE_PAWNS[chess.PAWN]
    kind = board.piece_type_at(move.to_square)
    return PIECE_PAWNS[kind] if kind and board.is_capture(move) else 0


def promotion_pawns(move: chess.Move) -> int:
    """What a promotion adds."""
    return PIECE_PAWNS[move.promotion] - PIECE_PAWNS[chess.PAWN] if move.promotion else 0


def _reply_pawns(board: chess.Board, capture: chess.Move) -> int:
    taken = captured_pawns(board, capture)
    taker = board.piece_type_at(capture.from_square)
    assert taker is not None
    after = board.copy(stack=False)
    after.push(capture)
    taken_back = any(after.generate_legal_moves(to_mask=chess.BB_SQUARES[capture.to_square]))
    return taken - PIECE_PAWNS[taker] if taken_back else taken


def _likeliest(player: CapturePlayer | ExchangePlayer, board: chess.Board, number: int) -> str:
    worth = {move.uci(): player.worth(board, move) for move in board.legal_moves}
    best = sorted(move for move in worth if worth[move] == max(worth.values()))
    return random.Random(f"{player.seed}:{number}:{board.fen()}").choice(best) if best else ""

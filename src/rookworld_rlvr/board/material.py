"""What the men on the board count for, by the usual values."""

import chess

PIECE_PAWNS = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9, chess.KING: 0}


def lead_pawns(board: chess.Board, color: chess.Color) -> int:
    """The material of a side less that of the other, in pawns.

    >>> lead_pawns(chess.Board("4k3/8/8/8/8/8/4P3/R3K3 w - - 0 1"), chess.BLACK)
    -6
    """
    return sum(PIECE_PAWNS[man.piece_type] * (1 if man.color == color else -1) for man in board.piece_map().values())

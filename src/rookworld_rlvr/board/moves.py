"""UCI strings: the form of a move, its legality in a position, and mate."""

import re
from functools import lru_cache

import chess

from .fen import parse_fen

UCI_PATTERN = re.compile(r"([a-h][1-8])([a-h][1-8])([qrbn]?)")


def is_uci(text: str) -> bool:
    """Return True if `text` has the form of a UCI move, which the null move `0000` does not have.

    >>> is_uci("e7e8q"), is_uci("0000"), is_uci("e2e2"), is_uci("E2E4")
    (True, False, False, False)
    """
    match = UCI_PATTERN.fullmatch(text)
    return match is not None and match[1] != match[2]


def is_legal_uci(board: chess.Board, uci: str) -> bool:
    """Return True if `uci` equals `m.uci()` for some legal move `m`, so that each move has exactly one spelling.

    `Move.from_uci("e1h1") in board.legal_moves` is True for castling, but the string `e1h1` is not legal here.

    >>> board = chess.Board("4k3/8/8/8/8/8/8/4K2R w K - 0 1")
    >>> is_legal_uci(board, "e1g1"), is_legal_uci(board, "e1h1")
    (True, False)
    """
    if not is_uci(uci):
        return False
    move = chess.Move.from_uci(uci)
    return board.is_legal(move) and board.uci(move) == uci


def lenient_move(board: chess.Board, text: str) -> chess.Move:
    """Return the legal move that another program or a person wrote; a model's own text gets `is_legal_uci`.

    Capitals, `=` before the promotion, and castling as the king's move onto its rook do not matter. A null move is
    refused. Raises ValueError.

    >>> board = chess.Board("4k3/P7/8/8/8/8/8/4K2R w K - 0 1")
    >>> lenient_move(board, "a7a8=Q").uci(), lenient_move(board, "e1h1").uci()
    ('a7a8q', 'e1g1')
    """
    uci = text.lower().replace("=", "")
    try:
        # `is_uci` refuses what python-chess also reads: null moves and drops.
        move = board.parse_uci(uci) if is_uci(uci) else None
    except ValueError:
        move = None
    if move is None:
        raise ValueError(f"expected a legal move in {board.fen()}, got {text[:10]!r}")
    return move


def is_mate(board: chess.Board, uci: str) -> bool:
    """Return True if a move is legal and mates.

    >>> is_mate(chess.Board("7k/5Q2/6K1/8/8/8/8/8 w - - 0 1"), "f7g7")
    True
    """
    if not is_legal_uci(board, uci):
        return False
    after = board.copy(stack=False)
    after.push_uci(uci)
    return after.is_checkmate()


@lru_cache(maxsize=8192)
def mating_moves(fen: str) -> frozenset[str]:
    """Return the moves, UCI, that mate in a position.

    >>> mating_moves("7k/5Q2/6K1/8/8/8/8/8 w - - 0 1") == {"f7g7", "f7h7", "f7e8", "f7f8"}
    True
    """
    board = parse_fen(fen)
    return frozenset(move.uci() for move in board.legal_moves if is_mate(board, move.uci()))

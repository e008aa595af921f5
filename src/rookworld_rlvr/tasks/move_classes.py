"""Class of a move, and the reason why an illegal move is illegal."""

from enum import StrEnum

import chess

from ..board.moves import is_legal_uci


class TransitionClass(StrEnum):
    """Class of a move: the first of these to which it belongs."""

    illegal = "illegal"
    mate = "mate"
    stalemate = "stalemate"
    insufficient_material = "insufficient_material"
    seventy_five_moves = "seventy_five_moves"
    """A move after which the 75-move rule ends the game."""
    castling = "castling"
    en_passant = "en_passant"
    promotion = "promotion"
    """With or without a capture."""
    capture = "capture"
    quiet = "quiet"


class IllegalKind(StrEnum):
    """Reason why a move is illegal: the first of these that applies."""

    no_piece = "no_piece"
    other_side = "other_side"
    castling = "castling"
    """A castling move of the king without the right to it, or through a piece or an attacked square."""
    promotion = "promotion"
    """A pawn move to the last rank without a promotion, or any other move with one."""
    geometry = "geometry"
    """A move to a square that the piece could not reach on an empty board."""
    blocked = "blocked"
    """A move within the piece's reach: another piece is in the way or on the target, or a pawn captures nothing."""
    check = "check"
    """A pseudo-legal move that leaves the king attacked."""


def transition_class(board: chess.Board, uci: str) -> TransitionClass:
    """Return the class of the move `uci` from the position of `board`.

    >>> transition_class(chess.Board(), "e2e4"), transition_class(chess.Board(), "e2e5")
    (<TransitionClass.quiet: 'quiet'>, <TransitionClass.illegal: 'illegal'>)
    """
    if not is_legal_uci(board, uci):
        return TransitionClass.illegal
    move, after = chess.Move.from_uci(uci), board.copy(stack=False)
    after.push(move)
    classes = (
        (TransitionClass.mate, after.is_checkmate()),
        (TransitionClass.stalemate, after.is_stalemate()),
        (TransitionClass.insufficient_material, after.is_insufficient_material()),
        (TransitionClass.seventy_five_moves, after.is_seventyfive_moves()),
        (TransitionClass.castling, board.is_castling(move)),
        (TransitionClass.en_passant, board.is_en_passant(move)),
        (TransitionClass.promotion, move.promotion is not None),
        (TransitionClass.capture, board.is_capture(move)),
    )
    return next((name for name, holds in classes if holds), TransitionClass.quiet)


def illegal_kind(board: chess.Board, uci: str) -> IllegalKind:
    """Return the kind of an illegal move between two different squares.

    >>> [str(illegal_kind(chess.Board(), uci)) for uci in ("e4e5", "e7e5", "e1g1", "e2e5", "a1a3")]
    ['no_piece', 'other_side', 'castling', 'geometry', 'blocked']
    """
    move = chess.Move.from_uci(uci)
    piece = board.piece_at(move.from_square)
    if piece is None:
        return IllegalKind.no_piece
    if piece.color != board.turn:
        return IllegalKind.other_side
    if board.is_pseudo_legal(move):
        return IllegalKind.check if not board.is_castling(move) else IllegalKind.castling
    home = chess.E1 if board.turn else chess.E8
    if piece.piece_type == chess.KING and move.from_square == home and move.to_square in (home - 2, home + 2):
        return IllegalKind.castling
    last = chess.square_rank(move.to_square) == (7 if board.turn else 0)
    if (move.promotion is not None) != (piece.piece_type == chess.PAWN and last):
        return IllegalKind.promotion
    return IllegalKind.blocked if _reaches(piece, move) else IllegalKind.geometry


def _reaches(piece: chess.Piece, move: chess.Move) -> bool:
    """Return True if the piece reaches the target on an empty board, a pawn's captures included."""
    empty = chess.Board(None)
    empty.set_piece_at(move.from_square, piece)
    if move.to_square in empty.attacks(move.from_square):
        return True
    if piece.piece_type != chess.PAWN:
        return False
    empty.turn = piece.color
    return move in empty.pseudo_legal_moves

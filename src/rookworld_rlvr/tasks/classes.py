"""Classes of moves, by the kinds of transition that the environment task must predict."""

from enum import StrEnum

import chess

from ..board.moves import is_legal_uci

SEVENTY_FIVE_PLIES = 150


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
        (TransitionClass.seventy_five_moves, after.halfmove_clock >= SEVENTY_FIVE_PLIES),
        (TransitionClass.castling, board.is_castling(move)),
        (TransitionClass.en_passant, board.is_en_passant(move)),
        (TransitionClass.promotion, move.promotion is not None),
        (TransitionClass.capture, board.is_capture(move)),
    )
    return next((name for name, holds in classes if holds), TransitionClass.quiet)

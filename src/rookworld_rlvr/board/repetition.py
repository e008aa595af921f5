"""Number of provable occurrences of a position, from the moves that led to it.

A game's last moves do not determine its past positions, because captured pieces are not recorded. But a position can
repeat only by reversible moves, and these can be taken back one by one. A position found in this way does not show
castling rights that were lost since, nor a possible en-passant capture. If there may have been any, the position does
not count as an occurrence. Sixteen plies of history are needed for a fifth occurrence.
"""

from collections.abc import Sequence

import chess

from .moves import is_legal_uci, is_uci


def occurrences(board: chess.Board, history: Sequence[str]) -> int:
    """Return the number of provable occurrences of the position of `board`, including the present one.

    `history` (UCI) ends with the move that led to `board`. If it replays from the standard starting position to
    `board`, it is the whole game and the number is exact. Otherwise its moves are taken back.
    """
    game = _replay_from_start(history)
    if game is not None and game.fen() == board.fen():
        return _occurrences_in(game)
    placement, turn = board.board_fen(), board.turn
    return 1 + sum(past.board_fen() == placement and past.turn == turn for past in _take_back(board, history))


def _replay_from_start(history: Sequence[str]) -> chess.Board | None:
    game = chess.Board()
    for uci in history:
        if not is_legal_uci(game, uci):
            return None
        game.push_uci(uci)
    return game


def _occurrences_in(game: chess.Board) -> int:
    count = 1
    while game.is_repetition(count + 1):
        count += 1
    return count


def _take_back(board: chess.Board, history: Sequence[str]) -> list[chess.Board]:
    """Return the past boards whose castling and en-passant rights are known to equal the present ones, latest first."""
    past, boards, unsure_ranks = board.copy(stack=False), [], chess.BB_EMPTY
    for taken, uci in enumerate(list(reversed(history))[: board.halfmove_clock], start=1):
        if not _take_back_one(past, uci):
            break
        # A move of a king or rook may have lost rights of its side, which the present board no longer shows.
        if past.piece_type_at(chess.parse_square(uci[:2])) in (chess.KING, chess.ROOK):
            unsure_ranks |= chess.BB_RANK_1 if past.turn else chess.BB_RANK_8
        lost_rights = _possible_rights(past) & unsure_ranks & ~board.castling_rights
        after_irreversible_move = taken == board.halfmove_clock
        if not lost_rights and not (after_irreversible_move and _may_allow_en_passant(past)):
            boards.append(past.copy(stack=False))
    return boards


def _take_back_one(past: chess.Board, uci: str) -> bool:
    """Undo a reversible move in place. Returns False if `uci` cannot have been a reversible move here."""
    if not is_uci(uci) or len(uci) > 4:
        return False
    origin, target = chess.parse_square(uci[:2]), chess.parse_square(uci[2:4])
    piece = past.piece_at(target)
    if piece is None or piece.color == past.turn or piece.piece_type == chess.PAWN or past.piece_at(origin):
        return False
    past.remove_piece_at(target)
    past.set_piece_at(origin, piece)
    past.turn = not past.turn
    return target in past.attacks(origin)


def _may_allow_en_passant(past: chess.Board) -> bool:
    """Return whether an en-passant capture is legal if the move that led to `past` was a double pawn push."""
    back = -8 if past.turn is chess.BLACK else 8
    for square in past.pieces(chess.PAWN, not past.turn):
        passed, origin = square + back, square + 2 * back
        if chess.square_rank(origin) in (1, 6) and not past.piece_at(passed) and not past.piece_at(origin):
            pushed = past.copy(stack=False)
            pushed.ep_square = passed
            if pushed.has_legal_en_passant():
                return True
    return False


def _possible_rights(past: chess.Board) -> chess.Bitboard:
    """Return all castling rights that the placement allows."""
    full = past.copy(stack=False)
    full.castling_rights = chess.BB_CORNERS
    return full.clean_castling_rights()

"""A UCI string, judged: legal, illegal in this position, or not a move at all."""

import re
from dataclasses import dataclass
from enum import StrEnum

import chess

UCI_PATTERN = re.compile(r"([a-h][1-8])([a-h][1-8])([qrbn]?)")


class Legality(StrEnum):
    """python-chess's distinction: illegal is a move this position does not allow; invalid is no move."""

    legal = "legal"
    illegal = "illegal"
    invalid = "invalid"


class MoveFault(StrEnum):
    """Why a string is not a legal move."""

    none = "none"
    malformed = "malformed"
    null_move = "null_move"
    same_square = "same_square"
    empty_origin = "empty_origin"
    opponents_piece = "opponents_piece"
    missing_promotion = "missing_promotion"
    castling_spelling = "castling_spelling"
    leaves_king_in_check = "leaves_king_in_check"
    piece_does_not_move_so = "piece_does_not_move_so"


@dataclass(frozen=True, slots=True)
class MoveVerdict:
    """What a UCI string is in a position."""

    legality: Legality
    fault: MoveFault

    @property
    def is_legal(self) -> bool:
        return self.legality is Legality.legal


LEGAL = MoveVerdict(Legality.legal, MoveFault.none)


def is_uci(text: str) -> bool:
    """Whether `text` has the form of a UCI move; the null move `0000` has not.

    >>> is_uci("e7e8q"), is_uci("0000"), is_uci("e2e2"), is_uci("E2E4")
    (True, False, False, False)
    """
    return uci_fault(text) is MoveFault.none


def uci_fault(text: str) -> MoveFault:
    """What keeps `text` from being a move in any position (`MoveFault.none` if nothing does)."""
    if text == "0000":
        return MoveFault.null_move
    match = UCI_PATTERN.fullmatch(text)
    if match is None:
        return MoveFault.malformed
    return MoveFault.same_square if match[1] == match[2] else MoveFault.none


def is_legal_uci(board: chess.Board, uci: str) -> bool:
    """Whether `uci` equals `m.uci()` of some legal move: one move, one spelling.

    `Move("e1h1") in board.legal_moves` is True for castling; as a string it is not legal here.

    >>> board = chess.Board("4k3/8/8/8/8/8/8/4K2R w K - 0 1")
    >>> is_legal_uci(board, "e1g1"), is_legal_uci(board, "e1h1")
    (True, False)
    """
    if not is_uci(uci):
        return False
    move = chess.Move.from_uci(uci)
    return board.is_legal(move) and board.uci(move) == uci


def is_mate(board: chess.Board, uci: str) -> bool:
    """Whether a legal move's spelling mates.

    >>> is_mate(chess.Board("7k/5Q2/6K1/8/8/8/8/8 w - - 0 1"), "f7g7")
    True
    """
    if not is_legal_uci(board, uci):
        return False
    after = board.copy(stack=False)
    after.push_uci(uci)
    return after.is_checkmate()


def judge_move(board: chess.Board, uci: str) -> MoveVerdict:
    """Legal, illegal or invalid, with the reason. The string is taken as it is, blanks and case included.

    >>> judge_move(chess.Board(), "e2e5").fault
    <MoveFault.piece_does_not_move_so: 'piece_does_not_move_so'>
    """
    if is_legal_uci(board, uci):
        return LEGAL
    fault = uci_fault(uci)
    if fault is not MoveFault.none:
        return MoveVerdict(Legality.invalid, fault)
    return MoveVerdict(Legality.illegal, _illegal_fault(board, chess.Move.from_uci(uci)))


def _illegal_fault(board: chess.Board, move: chess.Move) -> MoveFault:
    color = board.color_at(move.from_square)
    if color is None:
        return MoveFault.empty_origin
    if color != board.turn:
        return MoveFault.opponents_piece
    if board.is_legal(move):
        return MoveFault.castling_spelling
    if board.is_pseudo_legal(move):
        return MoveFault.leaves_king_in_check
    if board.is_pseudo_legal(chess.Move(move.from_square, move.to_square, chess.QUEEN)):
        return MoveFault.missing_promotion
    return MoveFault.piece_does_not_move_so

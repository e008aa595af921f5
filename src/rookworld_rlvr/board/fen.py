"""FEN strings: parsing, normalisation, and the identity of a position."""

import re
from functools import lru_cache

import chess

FEN_FIELDS = ("placement", "turn", "castling", "en_passant", "halfmove_clock", "fullmove_number")
# Number of fields of a FEN without its counters, and the counters that it then gets.
WITHOUT_COUNTERS, FIRST_COUNTERS = 4, ("0", "1")
# At most six digits: Python parses some integers that are so long that it refuses to print the next larger one.
COUNTER = re.compile(r"[0-9]{1,6}")
LARGEST_COUNTER = 999_999


def parse_fen(fen: str) -> chess.Board:
    """Parse a FEN with all six fields.

    Counters must be plain decimal digits, six at most. The position need not be possible (see `rule_violations`).
    Raises ValueError for anything else. The most recent boards are cached, because a row is checked in several places
    one after another, and a copy costs a thirtieth of a parse.

    >>> parse_fen(chess.STARTING_FEN).turn
    True
    """
    return _parsed(fen).copy(stack=False)


@lru_cache(maxsize=64)
def _parsed(fen: str) -> chess.Board:
    fields = fen.split(" ")
    # python-chess would also split at other white space, and read another placement.
    if len(fields) != len(FEN_FIELDS) or fields != fen.split():
        raise ValueError(f"expected a FEN of six fields with one blank between, got {fen!r}")
    if not all(COUNTER.fullmatch(field) for field in fields[4:]):
        raise ValueError(f"expected two counters of one to six digits at the end of the FEN, got {fen!r}")
    return chess.Board(fen)


def read_fen(text: str) -> chess.Board:
    """Parse a FEN of a person or a public data set, which may lack its counters: they are then 0 and 1.

    A counter that is missing or `-`, and more than one blank between fields, have only one meaning. A model's text is
    read by `parse_fen`. Raises ValueError as it does.

    >>> read_fen("8/8/8/8/8/8/8/K1k5  w - -").fen()
    '8/8/8/8/8/8/8/K1k5 w - - 0 1'
    """
    fields = text.split()
    if not WITHOUT_COUNTERS <= len(fields) <= len(FEN_FIELDS):
        raise ValueError(f"expected a FEN of six fields, or of four without the counters, got {text!r}")
    given = [*fields[WITHOUT_COUNTERS:], "-", "-"]
    counters = [first if field == "-" else field for field, first in zip(given, FIRST_COUNTERS, strict=False)]
    return parse_fen(" ".join([*fields[:WITHOUT_COUNTERS], *counters]))


def is_valid_fen(fen: str) -> bool:
    """Return True if `fen` parses and python-chess considers the position valid.

    >>> is_valid_fen("8/8/8/8/8/8/8/8 w - - 0 1")
    False
    """
    try:
        require_valid_fen(fen)
    except ValueError:
        return False
    return True


def require_valid_fen(fen: str) -> chess.Board:
    """Parse the FEN of a valid position. Raises a ValueError that names what is impossible about any other position.

    >>> require_valid_fen("4k3/8/8/8/8/8/8/3KK3 w - - 0 1")
    Traceback (most recent call last):
    ValueError: impossible position: too many kings in '4k3/8/8/8/8/8/8/3KK3 w - - 0 1'
    """
    return require_possible(parse_fen(fen))


def require_possible(board: chess.Board) -> chess.Board:
    """Return the board. Raises a ValueError that names what is impossible about it, if anything is."""
    if fault := rule_violations(board):
        raise ValueError(f"{fault} in {board.fen(en_passant='fen')!r}")
    return board


def lenient_fen(text: str) -> chess.Board:
    """Parse the FEN of a valid position as other programs and people write it; a model's own text gets `parse_fen`.

    Any white space parts the fields. Missing counters, and counters written `-`, are `0 1`. Castling letters may be in
    any order. Castling rights and en-passant squares that cannot be are dropped, since they change no legal move.
    Raises a ValueError that names what is wrong about any other text.

    >>> lenient_fen("4k3/8/8/8/8/8/4P3/4K3  w KQ e3 ").fen()
    '4k3/8/8/8/8/8/4P3/4K3 w - - 0 1'
    """
    fields = text.split()
    if not WITHOUT_COUNTERS <= len(fields) <= len(FEN_FIELDS):
        raise ValueError(f"expected a FEN of four to six fields, got {text!r}")
    placement, turn, castling, en_passant, *counters = fields
    board = read_fen(" ".join([placement, turn.lower(), "-", "-", *counters]))
    board.castling_rights = _possible_castling(board, castling)
    if en_passant != "-":
        if en_passant.lower() not in chess.SQUARE_NAMES:
            raise ValueError(f"expected an en-passant square or - in the FEN, got {en_passant!r} in {text!r}")
        board.ep_square = chess.parse_square(en_passant.lower())
        # A square that cannot be may also make the check impossible.
        board.ep_square = board.ep_square if board.is_valid() else None
    if fault := rule_violations(board):
        raise ValueError(f"{fault} in {text!r}")
    return board


def _possible_castling(board: chess.Board, letters: str) -> chess.Bitboard:
    """Return the rights of a FEN's castling field whose king and rook are at home. Raises ValueError."""
    asked, tried = chess.BB_EMPTY, board.copy(stack=False)
    for letter in letters:
        # Letter by letter, because python-chess wants White's letters first and no letter twice.
        tried.set_castling_fen(letter)
        asked |= tried.castling_rights
    tried.castling_rights = asked
    return tried.clean_castling_rights()


def rule_violations(board: chess.Board) -> str:
    """Name the rules of chess that a position breaks: `impossible position: too many kings`; empty if it is valid."""
    status = board.status()
    reasons = [str(flag.name).lower().replace("_", " ") for flag in chess.Status if flag & status]
    return f"impossible position: {', '.join(reasons)}" if reasons else ""


def position_key(board: chess.Board) -> str:
    """Return the identity of a position: placement, turn, castling and legal en-passant square, without counters.

    Splits, duplicate counts and the exclusion of held-out positions all use it.

    >>> position_key(chess.Board())
    'rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -'
    """
    return board.epd()

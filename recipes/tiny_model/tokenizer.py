"""Tokenizer of the project's small models: rows have few tokens, and the token of a piece also names its square.

A board has one token per piece on its square, from a8 to h1. Empty squares have no token, except a8, whose
token always begins the board. In a prompt the tokens also name the side to move. A move is two square tokens, a number
is cut into pairs of digits, and a run of spaces is one token. Everything is in plain tokenizer files (normaliser,
pre-tokeniser, word list, decoder), so `AutoTokenizer` alone reads and writes the published text. The normaliser turns
a board's digits into blank squares, gives every square a mark, and removes the marked blank squares; the decoder
restores them. Other text falls back to single characters.
"""

import re
import string
from itertools import pairwise

import chess
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"
UNKNOWN = "<|unknown|>"
# Private-use characters, which published text cannot contain: a blank square, then one mark per square.
BLANK = "\ue100"
FIRST_MARK = 0xE000
LAST_MARK = FIRST_MARK + 63
PIECES = "PNBRQKpnbrqk" + BLANK
# On the board of a prompt a mark also names the side to move, which a FEN names only after the board. Without it, a
# model that reads from left to right would read all pieces before it knows whose they are.
FIRST_PROMPT_MARK = {chess.WHITE: 0xE200, chess.BLACK: 0xE240}
# After the board of a `P:` prompt all pieces are repeated with marks of another kind: first the opponent's pieces, then
# the own pieces (those of the side to move). Only there has a model that reads from left to right seen all pieces.
FIRST_OWN_MARK = {chess.WHITE: 0xE280, chess.BLACK: 0xE2C0}
FIRST_OPPONENT_MARK = {chess.WHITE: 0xE300, chess.BLACK: 0xE340}
LAST_PROMPT_MARK, LAST_REPEATED_MARK = 0xE27F, 0xE37F
# Placeholder for a piece until the piece is copied to its place.
PLACE = "\ue101"
# Number of characters of a board whose digits have become blank squares: 64 squares with marks and seven slashes.
MARKED_LENGTH = 2 * 64 + 7
LONGEST_BLANKS = 64
POSITIONS = 256

# The squares in the order of a FEN, from a8 on.
BOARD_ORDER = [chess.square(file, rank) for rank in range(7, -1, -1) for file in range(8)]

_PIECE = f"[{PIECES}]"
_PROMPT_MARKS = f"{chr(FIRST_PROMPT_MARK[chess.WHITE])}-{chr(LAST_PROMPT_MARK)}"
_REPEATED_MARKS = f"{chr(FIRST_OWN_MARK[chess.WHITE])}-{chr(LAST_REPEATED_MARK)}"
_MARK = f"[{chr(FIRST_MARK)}-{chr(LAST_MARK)}{_PROMPT_MARKS}{_REPEATED_MARKS}]"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return the tokenizer; `save_pretrained` writes files that do not need this code."""
    tokenizer = Tokenizer(models.WordLevel(_vocabulary(), unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [*_expand_digits(), *_mark_squares(), *_mark_side_to_move(), *_drop_blanks()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_word_pattern()), behavior="isolated")
    repeated = decoders.Replace(Regex(f"{_PIECE}[{_REPEATED_MARKS}]"), "")
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), repeated, *_restore_blanks(), *_fold_board()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=PAD,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def square_mark(square: int) -> str:
    """Return the private-use character that names a square (0 = a1, as in python-chess)."""
    return chr(FIRST_MARK + square)


def prompt_mark(square: int, turn: chess.Color) -> str:
    """Return the private-use character of a square in a prompt with that side to move."""
    return chr(FIRST_PROMPT_MARK[turn] + square)


def own_mark(square: int, turn: chess.Color) -> str:
    """Return the private-use character of a square among the repeated pieces of the side to move."""
    return chr(FIRST_OWN_MARK[turn] + square)


def opponent_mark(square: int, turn: chess.Color) -> str:
    """Return the private-use character of a square among the opponent's repeated pieces; `turn` is the side to move."""
    return chr(FIRST_OPPONENT_MARK[turn] + square)


def piece_token(piece: str, square: int) -> str:
    """Return the token of a piece symbol (on a8 also BLANK) on a square of a board in a completion."""
    return piece + square_mark(square)


def prompt_token(piece: str, square: int, turn: chess.Color) -> str:
    """Return the token of a piece symbol (on a8 also BLANK) on a square of a prompt's board with that side to move."""
    return piece + prompt_mark(square, turn)


def own_token(piece: str, square: int, turn: chess.Color) -> str:
    """Return the token of a piece symbol on a square among the repeated pieces of the side to move."""
    return piece + own_mark(square, turn)


def opponent_token(piece: str, square: int, turn: chess.Color) -> str:
    """Return the token of a piece symbol on a square among the opponent's repeated pieces; `turn`: the side to move."""
    return piece + opponent_mark(square, turn)


def board_pieces(square: int) -> str:
    """Return the symbols that have a token on a square."""
    return PIECES if square == BOARD_ORDER[0] else PIECES.replace(BLANK, "")


def piece_symbols(turn: chess.Color) -> str:
    """Return the symbols of a side's pieces."""
    return "PNBRQK" if turn else "pnbrqk"


def placed_pieces(placement: str) -> list[tuple[int, str]]:
    """Return squares and symbols of the tokens of a board that is written as in a FEN: all pieces, and a8 if BLANK.

    >>> placed_pieces("8/8/8/8/8/8/8/K6k") == [(chess.A8, BLANK), (chess.A1, "K"), (chess.H1, "k")]
    True
    """
    squares = re.sub("[1-8]", lambda digit: BLANK * int(digit[0]), placement).replace("/", "")
    placed = zip(BOARD_ORDER, squares, strict=True)
    return [(square, piece) for square, piece in placed if piece in board_pieces(square)]


def _expand_digits() -> list[normalizers.Normalizer]:
    """Turn a board's digits, which the rest of a rank and `/` or the side to move follow, into blank squares."""
    rest = f"(?=[1-8{PIECES}]*(?:/| [wb] ))"
    return [normalizers.Replace(Regex(f"{count}{rest}"), BLANK * count) for count in range(8, 0, -1)]


def _mark_squares() -> list[normalizers.Normalizer]:
    """Put a mark after each of 64 squares, from a8 on; the unmarked squares after a square identify it."""
    marks: list[normalizers.Normalizer] = []
    for rank in range(7, -1, -1):
        for file in range(8):
            behind = f"{_PIECE}{{{7 - file}}}(?:/{_PIECE}{{8}}){{{rank}}} [wb] "
            here = Regex(f"(?<={_PIECE})(?={behind})")
            marks.append(normalizers.Replace(here, square_mark(chess.square(file, rank))))
    return marks


def _mark_side_to_move() -> list[normalizers.Normalizer]:
    """Rewrite a prompt's board with other marks; in a `P:` prompt repeat the opponent's and then the own pieces.

    64 marked placeholders are put after the board, each is replaced by the piece at the same distance before it, and
    the first board is removed.
    """
    replaced: list[normalizers.Normalizer] = []
    for turn, letter in ((chess.WHITE, "w"), (chess.BLACK, "b")):
        prompt, opponent, own = (
            "".join(_slash(square) + PLACE + mark(square, turn) for square in BOARD_ORDER)
            for mark in (prompt_mark, opponent_mark, own_mark)
        )
        for task, places in (("P", prompt + opponent + own), ("A", prompt)):
            behind_board = Regex(f"(?<={task}: .{{{MARKED_LENGTH}}})(?= {letter} )")
            replaced.append(normalizers.Replace(behind_board, places))
    for piece in PIECES:
        copied = "|".join(f"{piece}.{{{times * MARKED_LENGTH - 1}}}" for times in (1, 2, 3))
        replaced.append(normalizers.Replace(Regex(f"(?<={copied}){PLACE}"), piece))
    old_board = Regex(f"(?<=[PA]: ).{{{MARKED_LENGTH}}}(?={_PIECE}[{_PROMPT_MARKS}])")
    return [*replaced, normalizers.Replace(old_board, "")]


def _slash(square: int) -> str:
    """Return a slash if the square is the first of its rank but not of the board, else an empty text."""
    return "/" if chess.square_file(square) == 0 and chess.square_rank(square) < 7 else ""


def _drop_blanks() -> list[normalizers.Normalizer]:
    """Drop the blank squares except a8, the slashes between ranks, and repeated pieces of the wrong side."""
    kept = "".join([square_mark(chess.A8), *(prompt_mark(chess.A8, turn) for turn in chess.COLORS)])
    slashes = normalizers.Replace(Regex(f"/(?={_PIECE}{_MARK})"), "")
    dropped: list[normalizers.Normalizer] = [slashes, normalizers.Replace(Regex(f"{BLANK}(?![{kept}]){_MARK}"), "")]
    for turn, others in ((chess.WHITE, "pnbrqk"), (chess.BLACK, "PNBRQK")):
        for mark, wrong in ((own_mark, others), (opponent_mark, others.swapcase())):
            marks = f"[{mark(chess.A1, turn)}-{mark(chess.H8, turn)}]"
            dropped.append(normalizers.Replace(Regex(f"[{wrong}]{marks}"), ""))
    return dropped


def _restore_blanks() -> list[decoders.Decoder]:
    """Restore blank squares one by one, each after the square before it, and then the slashes."""
    restored: list[decoders.Decoder] = []
    for before, square in pairwise(BOARD_ORDER):
        missing = Regex(f"(?<=[{_marks_of(before)}])(?!{_PIECE}[{_marks_of(square)}])")
        restored.append(decoders.Replace(missing, BLANK + square_mark(square)))
    firsts = "".join(_marks_of(square) for square in BOARD_ORDER[8::8])
    return [*restored, decoders.Replace(Regex(f"(?={_PIECE}[{firsts}])"), "/")]


def _marks_of(square: int) -> str:
    return square_mark(square) + prompt_mark(square, chess.WHITE) + prompt_mark(square, chess.BLACK)


def _word_pattern() -> str:
    """Return the pattern of one token; the first alternative that matches is taken."""
    number = r"(?: |\+)?[0-9]{1,2}(?=(?:[0-9]{2})*(?![0-9]))"
    castling = " (?:KQ?k?q?|Qk?q?|kq?|q)(?= )"
    runs = " {2,64}(?=\\S|$)"
    return "|".join(
        [
            _PIECE + _MARK,
            "[PA]: |[MEB]:",
            " [wb](?= )",
            castling,
            " ?[a-h][1-8]",
            r"\.[0-9]{1,3}(?![0-9])",
            number,
            r"(?: |\+)-",
            runs,
            r"[\s\S]",
        ]
    )


def _fold_board() -> list[decoders.Decoder]:
    return [
        decoders.Replace(Regex(_MARK), ""),
        *(decoders.Replace(BLANK * count, str(count)) for count in range(8, 0, -1)),
    ]


def _vocabulary() -> dict[str, int]:
    words = [END_OF_TEXT, PAD, UNKNOWN, "P: ", "A: ", "M:", "E:", "B:"]
    words += [piece_token(piece, square) for square in chess.SQUARES for piece in board_pieces(square)]
    words += [lead + name for lead in ("", " ") for name in chess.SQUARE_NAMES]
    words += [" w", " b", *_castling_words()]
    numbers = [str(n) for n in range(10)] + [f"{n:02d}" for n in range(100)]
    words += [lead + number for lead in ("", " ", "+") for number in numbers]
    words += [" -", "+-", ".001", *(f".{n}" for n in range(10)), *(f".{n:02d}" for n in range(100))]
    words += [" " * count for count in range(2, LONGEST_BLANKS + 1)]
    words += [character for character in string.printable if character not in words] + [BLANK]
    for turn in chess.COLORS:
        words += [prompt_token(piece, square, turn) for square in chess.SQUARES for piece in board_pieces(square)]
    for turn in chess.COLORS:
        words += [own_token(piece, square, turn) for square in chess.SQUARES for piece in piece_symbols(turn)]
    for turn in chess.COLORS:
        words += [opponent_token(piece, square, turn) for square in chess.SQUARES for piece in piece_symbols(not turn)]
    return {word: index for index, word in enumerate(dict.fromkeys(words))}


def _castling_words() -> list[str]:
    subsets = ("".join(c for i, c in enumerate("KQkq") if bits >> i & 1) for bits in range(1, 16))
    return [" " + rights for rights in subsets]

"""The tiny model's tokenizer: published chess text in, few tokens that each know their square.

A board is 64 tokens, each a piece (or blank) *on a square*, so that copying or changing a square is a
look-up by content instead of counting through digits and slashes; moves are two square tokens; numbers
go by pairs of digits; a run of blanks is one token. All of it stands in plain tokenizer files
(normaliser, pre-tokeniser, word list, decoder), so `AutoTokenizer` alone reads and writes the published
text: inside the normaliser a board's digits become blanks and every square gets a mark; the decoder
takes marks away and folds blanks back. Text that is no board falls back to single characters.
"""

import string

import chess
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"
UNKNOWN = "<|unknown|>"
# Private-use characters, which published text cannot hold: a blank square, then one mark a square.
BLANK = "\ue100"
FIRST_MARK = 0xE000
LAST_MARK = FIRST_MARK + 63
PIECES = "PNBRQKpnbrqk" + BLANK
# Behind the board of a `P:` prompt stands a second copy of it, which no text shows: its tokens can attend to the whole
# board, and each knows the side to move. First a place for each piece, then the piece, a mark for white or for black.
PLACE = "\ue101"
FIRST_ECHO_MARK = {chess.WHITE: 0xE200, chess.BLACK: 0xE240}
LAST_ECHO_MARK = 0xE27F
# Characters of a board whose digits are blanks and whose squares are marked, with seven slashes.
MARKED_LENGTH = 2 * 64 + 7
LONGEST_BLANKS = 64
POSITIONS = 256

# From a8 on, as a FEN is written.
BOARD_ORDER = [chess.square(file, rank) for rank in range(7, -1, -1) for file in range(8)]

_PIECE = f"[{PIECES}]"
_ECHO_MARK = f"[{chr(FIRST_ECHO_MARK[chess.WHITE])}-{chr(LAST_ECHO_MARK)}]"
_BOARD_END = "(?= [wb] )"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer; `save_pretrained` writes files that need none of this code."""
    tokenizer = Tokenizer(models.WordLevel(_vocabulary(), unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([*_expand_digits(), *_mark_squares(), *_echo_board()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_word_pattern()), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), *_fold_board()])
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
    """The private-use character that names a square (0 = a1, as in python-chess)."""
    return chr(FIRST_MARK + square)


def piece_token(piece: str, square: int) -> str:
    """The token of a piece symbol (or BLANK) on a square; a rank's first square carries the slash."""
    return _slash(square) + piece + square_mark(square)


def echo_token(piece: str, square: int, turn: chess.Color) -> str:
    """The token of a piece symbol (or BLANK) on a square in the board's second copy."""
    return _slash(square) + piece + chr(FIRST_ECHO_MARK[turn] + square)


def _slash(square: int) -> str:
    """Before a rank's first square, but for the board's first."""
    return "/" if chess.square_file(square) == 0 and chess.square_rank(square) < 7 else ""


def _expand_digits() -> list[normalizers.Normalizer]:
    """A board's digit is one followed by the rest of its rank and then `/` or the side to move."""
    rest = f"(?=[1-8{PIECES}]*(?:/| [wb] ))"
    return [normalizers.Replace(Regex(f"{count}{rest}"), BLANK * count) for count in range(8, 0, -1)]


def _mark_squares() -> list[normalizers.Normalizer]:
    """A mark behind each of 64 squares, from a8 on, each told by what is still unmarked behind it."""
    marks: list[normalizers.Normalizer] = []
    for rank in range(7, -1, -1):
        for file in range(8):
            behind = f"{_PIECE}{{{7 - file}}}(?:/{_PIECE}{{8}}){{{rank}}} [wb] "
            here = Regex(f"(?<={_PIECE})(?={behind})")
            marks.append(normalizers.Replace(here, square_mark(chess.square(file, rank))))
    return marks


def _echo_board() -> list[normalizers.Normalizer]:
    """The second copy of a prompt's board: 64 empty places, each then filled with what stands as far before it."""
    echoes: list[normalizers.Normalizer] = []
    for turn, letter in ((chess.WHITE, "w"), (chess.BLACK, "b")):
        places = "".join(echo_token(PLACE, square, turn) for square in BOARD_ORDER)
        behind_board = Regex(f"(?<=P: .{{{MARKED_LENGTH}}})(?= {letter} )")
        echoes.append(normalizers.Replace(behind_board, places))
    for piece in PIECES:
        echoes.append(normalizers.Replace(Regex(f"(?<={piece}.{{{MARKED_LENGTH - 1}}}){PLACE}"), piece))
    return echoes


def _word_pattern() -> str:
    """One word a token; the order of the alternatives decides."""
    marked = f"/?{_PIECE}[{chr(FIRST_MARK)}-{chr(LAST_MARK)}{_ECHO_MARK[1:]}"
    number = r"(?: |\+)?[0-9]{1,2}(?=(?:[0-9]{2})*(?![0-9]))"
    castling = " (?:KQ?k?q?|Qk?q?|kq?|q)(?= )"
    runs = " {2,64}(?=\\S|$)"
    return "|".join(
        [
            marked,
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
    unmark = decoders.Replace(Regex(f"[{chr(FIRST_MARK)}-{chr(LAST_MARK)}]"), "")
    unecho = decoders.Replace(Regex(f"/?{_PIECE}{_ECHO_MARK}"), "")
    return [unecho, unmark, *(decoders.Replace(BLANK * count, str(count)) for count in range(8, 0, -1))]


def _vocabulary() -> dict[str, int]:
    words = [END_OF_TEXT, PAD, UNKNOWN, "P: ", "A: ", "M:", "E:", "B:"]
    words += [piece_token(piece, square) for square in chess.SQUARES for piece in PIECES]
    words += [lead + name for lead in ("", " ") for name in chess.SQUARE_NAMES]
    words += [" w", " b", *_castling_words()]
    numbers = [str(n) for n in range(10)] + [f"{n:02d}" for n in range(100)]
    words += [lead + number for lead in ("", " ", "+") for number in numbers]
    words += [" -", "+-", ".001", *(f".{n}" for n in range(10)), *(f".{n:02d}" for n in range(100))]
    words += [" " * count for count in range(2, LONGEST_BLANKS + 1)]
    words += [character for character in string.printable if character not in words] + [BLANK]
    words += [echo_token(piece, square, turn) for turn in chess.COLORS for square in chess.SQUARES for piece in PIECES]
    return {word: index for index, word in enumerate(dict.fromkeys(words))}


def _castling_words() -> list[str]:
    subsets = ("".join(c for i, c in enumerate("KQkq") if bits >> i & 1) for bits in range(1, 16))
    return [" " + rights for rights in subsets]

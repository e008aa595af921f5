"""The tokenizer of the small models that we train: published chess text in, few tokens that each know their square.

A board has one token for each man, a piece *on a square*, from a8 to h1. Empty squares have no token, except a8, whose
token always begins the board. In a prompt the tokens also tell the side to move. A move is two square tokens, a number
is cut into pairs of digits, and a run of blanks is one token. Everything is in plain tokenizer files (normaliser,
pre-tokeniser, word list, decoder), so `AutoTokenizer` alone reads and writes the published text. The normaliser turns
a board's digits into blanks, gives every square a mark, and removes the marked blanks; the decoder puts them back.
Other text falls back to single characters.
"""

import re
import string
from itertools import pairwise

import chess
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"
UNKNOWN = "<|unknown|>"
# Private-use characters, which published text cannot hold: a blank square, then one mark a square.
BLANK = "\ue100"
FIRST_MARK = 0xE000
LAST_MARK = FIRST_MARK + 63
PIECES = "PNBRQKpnbrqk" + BLANK
# On the board of a prompt a mark also tells the side to move, which a FEN names only behind the board: a model that
# reads from left to right would else read all pieces before it knows whose they are.
FIRST_SEEN_MARK = {chess.WHITE: 0xE200, chess.BLACK: 0xE240}
# Behind the board of a `P:` prompt all men stand once more, with marks of their own: first the rivals, the men of the
# side that waits, then the movers. A model that reads from left to right knows all men only there.
FIRST_MOVER_MARK = {chess.WHITE: 0xE280, chess.BLACK: 0xE2C0}
FIRST_RIVAL_MARK = {chess.WHITE: 0xE300, chess.BLACK: 0xE340}
LAST_SEEN_MARK, LAST_MARK_AGAIN = 0xE27F, 0xE37F
# Stands for a piece until it is known which.
PLACE = "\ue101"
# Characters of a board whose digits are blanks and whose squares are marked, with seven slashes.
MARKED_LENGTH = 2 * 64 + 7
LONGEST_BLANKS = 64
POSITIONS = 256

# From a8 on, as a FEN is written.
BOARD_ORDER = [chess.square(file, rank) for rank in range(7, -1, -1) for file in range(8)]

_PIECE = f"[{PIECES}]"
_SEEN_MARKS = f"{chr(FIRST_SEEN_MARK[chess.WHITE])}-{chr(LAST_SEEN_MARK)}"
_MARKS_AGAIN = f"{chr(FIRST_MOVER_MARK[chess.WHITE])}-{chr(LAST_MARK_AGAIN)}"
_MARK = f"[{chr(FIRST_MARK)}-{chr(LAST_MARK)}{_SEEN_MARKS}{_MARKS_AGAIN}]"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer; `save_pretrained` writes files that need none of this code."""
    tokenizer = Tokenizer(models.WordLevel(_vocabulary(), unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [*_expand_digits(), *_mark_squares(), *_tell_side_to_move(), *_leave_out_blanks()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_word_pattern()), behavior="isolated")
    again = decoders.Replace(Regex(f"{_PIECE}[{_MARKS_AGAIN}]"), "")
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), again, *_put_blanks_back(), *_fold_board()])
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


def seen_mark(square: int, turn: chess.Color) -> str:
    """The private-use character of a square in a prompt with that side to move."""
    return chr(FIRST_SEEN_MARK[turn] + square)


def mover_mark(square: int, turn: chess.Color) -> str:
    """The private-use character of a square in the list of men of the side to move."""
    return chr(FIRST_MOVER_MARK[turn] + square)


def rival_mark(square: int, turn: chess.Color) -> str:
    """The private-use character of a square in the list of men of the side that waits; `turn` is the side to move."""
    return chr(FIRST_RIVAL_MARK[turn] + square)


def piece_token(piece: str, square: int) -> str:
    """The token of a piece symbol, or on a8 of BLANK, on a square of a board in a completion."""
    return piece + square_mark(square)


def seen_token(piece: str, square: int, turn: chess.Color) -> str:
    """The token of a piece symbol, or on a8 of BLANK, on a square of a prompt's board with that side to move."""
    return piece + seen_mark(square, turn)


def mover_token(piece: str, square: int, turn: chess.Color) -> str:
    """The token of a piece symbol on a square in the list of men of the side to move."""
    return piece + mover_mark(square, turn)


def rival_token(piece: str, square: int, turn: chess.Color) -> str:
    """The token of a piece symbol on a square in the list of men of the side that waits; `turn` is the side to move."""
    return piece + rival_mark(square, turn)


def board_pieces(square: int) -> str:
    """The pieces that a token names on a square."""
    return PIECES if square == BOARD_ORDER[0] else PIECES.replace(BLANK, "")


def men_symbols(turn: chess.Color) -> str:
    """The symbols of a side's men."""
    return "PNBRQK" if turn else "pnbrqk"


def men_of(placement: str) -> list[tuple[int, str]]:
    """Squares and symbols of the tokens of a board, which is written as in a FEN: all men, and a8 if it is BLANK.

    >>> men_of("8/8/8/8/8/8/8/K6k") == [(chess.A8, BLANK), (chess.A1, "K"), (chess.H1, "k")]
    True
    """
    squares = re.sub("[1-8]", lambda digit: BLANK * int(digit[0]), placement).replace("/", "")
    placed = zip(BOARD_ORDER, squares, strict=True)
    return [(square, piece) for square, piece in placed if piece in board_pieces(square)]


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


def _tell_side_to_move() -> list[normalizers.Normalizer]:
    """Rewrite the board of a prompt with other marks, and in a `P:` prompt twice more: for rivals, then for movers.

    64 marked places are put after the board, each is filled with the piece at the same distance before it, and the old
    board is removed.
    """
    anew: list[normalizers.Normalizer] = []
    for turn, letter in ((chess.WHITE, "w"), (chess.BLACK, "b")):
        seen, rivals, movers = (
            "".join(_slash(square) + PLACE + mark(square, turn) for square in BOARD_ORDER)
            for mark in (seen_mark, rival_mark, mover_mark)
        )
        for task, places in (("P", seen + rivals + movers), ("A", seen)):
            behind_board = Regex(f"(?<={task}: .{{{MARKED_LENGTH}}})(?= {letter} )")
            anew.append(normalizers.Replace(behind_board, places))
    for piece in PIECES:
        copied = "|".join(f"{piece}.{{{times * MARKED_LENGTH - 1}}}" for times in (1, 2, 3))
        anew.append(normalizers.Replace(Regex(f"(?<={copied}){PLACE}"), piece))
    old_board = Regex(f"(?<=[PA]: ).{{{MARKED_LENGTH}}}(?={_PIECE}[{_SEEN_MARKS}])")
    return [*anew, normalizers.Replace(old_board, "")]


def _slash(square: int) -> str:
    """Before a rank's first square, but for the board's first."""
    return "/" if chess.square_file(square) == 0 and chess.square_rank(square) < 7 else ""


def _leave_out_blanks() -> list[normalizers.Normalizer]:
    """Drop the blank squares except a8, the slashes between ranks, and movers and rivals of the wrong side."""
    kept = "".join([square_mark(chess.A8), *(seen_mark(chess.A8, turn) for turn in chess.COLORS)])
    slashes = normalizers.Replace(Regex(f"/(?={_PIECE}{_MARK})"), "")
    gone: list[normalizers.Normalizer] = [slashes, normalizers.Replace(Regex(f"{BLANK}(?![{kept}]){_MARK}"), "")]
    for turn, others in ((chess.WHITE, "pnbrqk"), (chess.BLACK, "PNBRQK")):
        for mark, wrong in ((mover_mark, others), (rival_mark, others.swapcase())):
            marks = f"[{mark(chess.A1, turn)}-{mark(chess.H8, turn)}]"
            gone.append(normalizers.Replace(Regex(f"[{wrong}]{marks}"), ""))
    return gone


def _put_blanks_back() -> list[decoders.Decoder]:
    """Square by square, behind the one before it, then the slashes."""
    put: list[decoders.Decoder] = []
    for before, square in pairwise(BOARD_ORDER):
        missing = Regex(f"(?<=[{_marks_of(before)}])(?!{_PIECE}[{_marks_of(square)}])")
        put.append(decoders.Replace(missing, BLANK + square_mark(square)))
    firsts = "".join(_marks_of(square) for square in BOARD_ORDER[8::8])
    return [*put, decoders.Replace(Regex(f"(?={_PIECE}[{firsts}])"), "/")]


def _marks_of(square: int) -> str:
    return square_mark(square) + seen_mark(square, chess.WHITE) + seen_mark(square, chess.BLACK)


def _word_pattern() -> str:
    """One word a token; the order of the alternatives decides."""
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
        words += [seen_token(piece, square, turn) for square in chess.SQUARES for piece in board_pieces(square)]
    for turn in chess.COLORS:
        words += [mover_token(piece, square, turn) for square in chess.SQUARES for piece in men_symbols(turn)]
    for turn in chess.COLORS:
        words += [rival_token(piece, square, turn) for square in chess.SQUARES for piece in men_symbols(not turn)]
    return {word: index for index, word in enumerate(dict.fromkeys(words))}


def _castling_words() -> list[str]:
    subsets = ("".join(c for i, c in enumerate("KQkq") if bits >> i & 1) for bits in range(1, 16))
    return [" " + rights for rights in subsets]


def echo_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """By token id: the token by which an answer repeats it.

    A man on the board of a prompt is another token on the board of an answer. All other tokens, and all tokens of other
    tokenizers, repeat themselves.
    """
    ids = tokenizer.get_vocab()
    echoes = list(range(max(ids.values()) + 1))
    for square in chess.SQUARES:
        for piece in board_pieces(square):
            for turn in chess.COLORS:
                seen = ids.get(seen_token(piece, square, turn))
                if seen is not None:
                    echoes[seen] = ids[piece_token(piece, square)]
    return echoes


class Encoder:
    """The ids that the tokenizer gives rows, many times faster: boards by a table, the rest as it is.

    For trainings that see each row once. Text between boards must hold none of the private-use characters.
    """

    _BOARD = re.compile(r"[1-8PNBRQKpnbrqk]+(?:/[1-8PNBRQKpnbrqk]+){7}(?= [wb] )")

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        ids = tokenizer.get_vocab()
        self._words = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._words.normalizer = None
        men = [(square, piece) for square in chess.SQUARES for piece in board_pieces(square)]
        self._plain = {man: ids[piece_token(man[1], man[0])] for man in men}
        self._seen = {
            letter: {man: ids[seen_token(man[1], man[0], turn)] for man in men}
            for letter, turn in (("w", chess.WHITE), ("b", chess.BLACK))
        }
        self._movers = {
            letter: {man: ids[mover_token(man[1], man[0], turn)] for man in men if man[1] in men_symbols(turn)}
            for letter, turn in (("w", chess.WHITE), ("b", chess.BLACK))
        }
        self._rivals = {
            letter: {man: ids[rival_token(man[1], man[0], turn)] for man in men if man[1] in men_symbols(not turn)}
            for letter, turn in (("w", chess.WHITE), ("b", chess.BLACK))
        }

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = []
        begin = 0
        for board in self._BOARD.finditer(text):
            ids += self._words.encode(text[begin : board.start()]).ids
            before, letter = text[: board.start()], text[board.end() + 1]
            table = self._seen[letter] if before.endswith(("P: ", "A: ")) else self._plain
            men = men_of(board[0])
            ids += [table[man] for man in men]
            if before.endswith("P: "):
                for again in (self._rivals[letter], self._movers[letter]):
                    ids += [again[man] for man in men if man in again]
            begin = board.end()
        return ids + self._words.encode(text[begin:]).ids

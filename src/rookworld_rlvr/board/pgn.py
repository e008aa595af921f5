"""Reader of PGN: the main line of every game, as it stands in the text, or an error with game and line.

python-chess skips what it cannot read. A tag in an unexpected place, a piece in another language (`Sf3`) or a second
game in the same lines then changes the positions without a word. Here every word of a main line has a meaning or is
refused. Comments, variations, NAGs and the usual annotation signs are read over. Each move is made by python-chess.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import chess
import chess.pgn

RESULTS = frozenset({"1-0", "0-1", "1/2-1/2", "1/2", "½-½", "½", "*"})
# A null move passes the turn: a move that the score sheet lacks, or a plan.
NULL_MOVES = frozenset({"--", "Z0", "0000", "@@@@"})
# Remarks that programs write without a comment around them: novelty, diagram, en passant.
REMARKS = frozenset({"N", "D", "ep", "e.p."})
FIGURINES = str.maketrans("♔♕♖♗♘♙♚♛♜♝♞♟", "KQRBNPKQRBNP")
# Tags that decide from which position a game is read. Any other may be malformed.
START_TAGS = frozenset({"fen", "setup", "variant"})
LARGEST_START_COUNTER = 99_999
ROSTER = "event"

TAG = re.compile(r'\s*\[\s*(\w[\w+#=:-]*)\s+"((?:[^"\\]|\\.)*)"\s*\]')
# A tag that has its line alone may have quotes inside its value.
TAG_LINE = re.compile(r'\s*\[\s*(\w[\w+#=:-]*)\s+"(.*)"\s*\]\s*$')
MALFORMED_TAG = re.compile(r'\s*\[\s*[A-Za-z]\w*[\s"].*', re.DOTALL)
# One of START_TAGS, wherever a line has it.
START_TAG = re.compile(rf"\[\s*({'|'.join(sorted(START_TAGS))})\b", re.IGNORECASE)
TOKEN = re.compile(r"\s+|[{}()]|;.*|\$\d*|<[^>]*>|\[%[^\]]*\]|[^\s{}();$<]+|<", re.DOTALL)
NUMBER = re.compile(r"(\d+)([.…]+)?")
ELLIPSIS = re.compile(r"[.…]+")
MOVE = re.compile(
    r"P?((?:[NBKRQ]?[a-h]?[1-8]?[-x:]?[a-h][1-8]|[NBRQK]?@[a-h][1-8])(?:=?[nbrqkNBRQK])?|[oO0]-[oO0](?:-[oO0])?)"
    r"(?:e\.?p\.?)?\W*"
)
# Beginning of a move or of a result.
CUT_OFF = re.compile(r"[NBKRQ]?[a-h]?[1-8]?[-x:]?[a-h]?|[O0]-?(?:[O0]-?)?|[01]-?|1/2?-?1?/?|-")
# Words that are no moves, such as +- and !?. A dash may be a null move that a word processor has changed.
SIGNS = re.compile(r"(?![-‒–—−]+$)[^\w*@]+")


@dataclass(frozen=True, slots=True)
class PgnGame:
    """Main line of a game of standard chess."""

    number: int
    """Number of the game in its file, from 1."""
    start: chess.Board
    moves: tuple[chess.Move, ...]
    """Legal moves, and null moves, each of which passes the turn of a side that is not in check."""
    line: int
    """Last line of the game in its file, from 1."""
    has_result: bool
    """True if a result follows the moves. `*` counts as one."""
    null_move_line: int = 0
    """Line of the first null move; 0 if there is none."""

    def boards(self) -> Iterator[chess.Board]:
        """Yield the position at the start and after each move: one board, which the next step changes."""
        board = self.start.copy()
        yield board
        for move in self.moves:
            board.push(move)
            yield board

    def parts(self) -> Iterator[tuple[str, ...]]:
        """Yield the FENs of the positions, in which each follows from the one before it by a legal move.

        There is one part, and another one after each null move.
        """
        part: list[str] = []
        for board in self.boards():
            if board.move_stack and not board.move_stack[-1]:
                yield tuple(part)
                part = []
            part.append(board.fen())
        yield tuple(part)


def read_pgn(lines: Iterable[str], name: str) -> Iterator[PgnGame]:
    """Yield the games of a text. A text without a game yields nothing.

    A game ends at its result, at the tags of the next, or at a blank line after which the moves begin again at 1; other
    blank lines have no meaning. Raises ValueError, with the game's number, `name` and the line, for a word that is not
    PGN, an illegal move, tags that do not say clearly where the game begins, and a game that is not standard chess.
    """
    reader = _Reader(name)
    for line in lines:
        reader.read(line)
        yield from reader.take()
    reader.end()
    yield from reader.take()


@dataclass(slots=True)
class _Game:
    """A game that is being read."""

    tags: dict[str, str] = field(default_factory=dict)
    """Values by name in small letters."""
    board: chess.Board | None = None
    """Position after the moves so far; None before the first of them."""
    start: chess.Board | None = None
    moves: list[chess.Move] = field(default_factory=list)
    line: int = 0
    start_line: int = 0
    """Line of the last tag on which the first position depends; 0 without."""
    ended: bool = False
    blank: bool = False
    """True after a blank line since the last tag or move."""
    offset: int | None = None
    """Number of the first move in the text less that of the position; None before a number was read."""
    pending: tuple[int, bool] | None = None
    """Number that was read before the next move, and whether dots show that Black makes it."""
    null_move_line: int = 0

    @property
    def begun(self) -> bool:
        """True after the tags."""
        return bool(self.moves or self.ended)

    @property
    def expected(self) -> int:
        """Number that the text should give the next move."""
        return (self.board.fullmove_number if self.board else 1) + (self.offset or 0)


class _Reader:
    """State of reading a text line by line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._line = 0
        self._number = 1
        self._game = _Game()
        self._found: list[PgnGame] = []
        # Lines at which the open comment, a tag inside it, and each open variation begin; 0 without.
        self._comment = 0
        self._tag_in_comment = 0
        self._variations: list[int] = []

    def take(self) -> list[PgnGame]:
        """Return the games that were completed since the last call."""
        found, self._found = self._found, []
        return found

    def read(self, line: str) -> None:
        """Read the next line."""
        self._line += 1
        # Files that were put together have a byte order mark within.
        line = line.lstrip("\ufeff")
        if self._comment:
            self._read_rest(line, self._end_of_comment(line, 0))
        elif not line.strip():
            self._game.blank = True
        elif not line.startswith("%"):
            self._read_rest(line, 0)

    def end(self) -> None:
        """End the last game. A file may be cut off within a comment or a variation."""
        if self._tag_in_comment:
            raise self._swallowing_comment()
        self._finish()

    def _read_rest(self, line: str, place: int) -> None:
        """Read a line from `place` on, which is outside of comments."""
        if place == 0 and not TAG.match(line) and self._unusual_tag(line):
            return
        while place < len(line):
            if tag := TAG.match(line, place):
                self._tag(tag[1], tag[2])
                place = tag.end()
            else:
                token = TOKEN.match(line, place)
                # The pattern takes any character.
                assert token is not None
                place = self._token(token[0], line, token.end())

    @property
    def _is_in_moves(self) -> bool:
        """True after a game's first move, and before its result."""
        return bool(self._game.moves) and not self._game.ended

    def _unusual_tag(self, line: str) -> bool:
        """Read a line that begins with a tag of another form; return False for a line that does not.

        A malformed tag is left out, as python-chess does, unless the game's first position depends on it.
        """
        tag = TAG_LINE.match(line)
        if tag is None and (self._is_in_moves or not MALFORMED_TAG.match(line)):
            return False
        if START_TAG.search(line):
            raise self._error('a tag [Name "value"]', repr(line.strip()))
        if tag is not None:
            self._tag(tag[1], tag[2])
        elif self._game.tags and not self._game.begun:
            self._game.line = self._line
        return True

    def _token(self, token: str, line: str, place: int) -> int:
        """Read a token that ends at `place`; return where the next begins."""
        if token == "{":
            self._comment = self._line
            return self._end_of_comment(line, place)
        if token == "(":
            self._variations.append(self._line)
        elif token in (")", "}"):
            if token == "}" or not self._variations:
                raise self._error("an opening bracket before the closing one", repr(token))
            self._variations.pop()
        elif token[0] not in ";$<" and not token.startswith("[%") and not token.isspace() and not self._variations:
            self._word(token, last=place == len(line))
        return place

    def _end_of_comment(self, line: str, place: int) -> int:
        """Return where the open comment ends in this line, or the line's length if it goes on."""
        end = line.find("}", place)
        inside = line[place:] if end < 0 else line[place:end]
        if self._tag_in_comment and "{" in inside:
            raise self._swallowing_comment()
        if place == 0 and TAG_LINE.match(line):
            self._tag_in_comment = self._tag_in_comment or self._line
        if end < 0:
            return len(line)
        self._comment = self._tag_in_comment = 0
        return end + 1

    def _swallowing_comment(self) -> ValueError:
        wanted = f"the comment that begins in line {self._comment} to end before the next game"
        return self._error(wanted, f"tags inside it in line {self._tag_in_comment}")

    def _tag(self, name: str, value: str) -> None:
        name = name.lower()
        if self._variations:
            wanted = f"the variation that begins in line {self._variations[-1]} to end before the next game"
            raise self._error(wanted, f"a tag {name!r}")
        tags = self._game.tags
        if self._game.begun or (name in tags and (self._game.blank or name == ROSTER)):
            self._finish()
        elif name in START_TAGS and tags.get(name, value) != value:
            raise self._error(f"one value of the tag {name!r}", f"{tags[name]!r} and {value!r}")
        self._game.tags[name] = value
        self._game.line, self._game.blank = self._line, False
        if name in START_TAGS:
            self._game.start_line = self._line

    def _word(self, word: str, *, last: bool) -> None:
        """Read a word of the main line. If it is the `last` of a text without a line end, it may be cut off."""
        game = self._game
        word = word.translate(FIGURINES)
        if word in RESULTS:
            game.ended, game.line = True, self._line
            return
        if word.rstrip("!?") not in NULL_MOVES and (number := NUMBER.match(word)):
            rest = word[number.end() :]
            if number[2] or not rest or rest[0] not in "-/":
                game.pending = int(number[1]), (number[2] or ".") != "."
                word = rest
        elif ELLIPSIS.match(word):
            game.pending, word = game.pending and (game.pending[0], True), word.lstrip(".…")
        move = MOVE.fullmatch(word)
        if move or word.rstrip("!?") in NULL_MOVES:
            self._move(move[1] if move else "--")
        elif word and word not in REMARKS and not SIGNS.fullmatch(word):
            if not (game.tags or game.moves or game.pending):
                raise self._error("a PGN game", f"{word!r}: neither tags nor moves")
            if last and self._is_in_moves and CUT_OFF.fullmatch(word):
                return
            raise self._error("a move in English notation", repr(word))

    def _move(self, san: str) -> None:
        pending = self._game.pending
        if self._game.ended or self._begins_again():
            self._finish()
            self._game.pending = pending
        game = self._game
        if game.board is None:
            game.start = self._start(game)
            game.board = game.start.copy()
        self._check_number(game, game.board)
        san = san.replace(":", "x")
        if san[0] in "oO0":
            san = san.replace("o", "O").replace("0", "O")
        try:
            move = game.board.parse_san(san)
            if not move and game.board.is_check():
                raise ValueError(f"a null move in check in {game.board.fen()}")
        except ValueError as error:
            raise self._error("a game of legal moves", str(error)) from error
        if not move:
            game.null_move_line = game.null_move_line or self._line
        game.board.push(move)
        game.moves.append(move)
        game.line, game.blank, game.pending = self._line, False, None

    def _begins_again(self) -> bool:
        """Return True if the next move is the first of another game, which has no tags."""
        game = self._game
        if not (game.moves and game.board and game.blank and game.pending) or game.pending[0] != 1:
            return False
        return game.expected > 1 or (game.board.turn is chess.BLACK and not game.pending[1])

    def _check_number(self, game: _Game, board: chess.Board) -> None:
        """Raise ValueError if the number before a move shows that moves or tags are missing."""
        if game.pending is None:
            return
        number, black = game.pending
        if game.offset is None:
            if not game.moves and number != 1 and "fen" not in game.tags:
                raise self._error("a game from the initial position to begin with move 1", f"{number}.")
            game.offset = number - board.fullmove_number
        missing = ""
        if number == 1 < game.expected:
            raise self._error(f"move {game.expected}, or a result or a blank line before another game", "1.")
        if board.turn is chess.BLACK and not black and number == game.expected + 1:
            missing = "Black"
        elif board.turn is chess.WHITE and black and number == game.expected:
            missing = "White"
        if missing:
            raise self._error(f"a move of {missing}", f"{number}{'...' if black else '.'}")

    def _start(self, game: _Game) -> chess.Board:
        """Return the position in which a game begins."""
        tags, line = game.tags, game.start_line or game.line
        headers = chess.pgn.Headers({"Variant": tags["variant"]} if "variant" in tags else {})
        wanted = "standard chess from a valid position"
        try:
            standard = headers.variant() is chess.Board and not headers.is_chess960()
            board = chess.Board(tags.get("fen", chess.STARTING_FEN))
        except ValueError as error:
            raise self._error(wanted, str(error), line) from error
        if not standard or not board.is_valid():
            raise self._error(wanted, str({name: tags[name] for name in sorted(START_TAGS & tags.keys())}), line)
        if max(board.halfmove_clock, board.fullmove_number) > LARGEST_START_COUNTER:
            # The moves of a game raise them, and a FEN has counters of six digits at most.
            raise self._error("counters of one to five digits", board.fen(), line)
        return board

    def _finish(self) -> None:
        """Complete the game, if there is one, and begin the next."""
        game, self._game = self._game, _Game()
        self._variations = []
        if not (game.tags or game.moves):
            if game.ended:
                raise self._error("a PGN game", "neither tags nor moves")
            return
        if game.start is None:
            game.start = self._start(game)
        moves = tuple(game.moves)
        self._found.append(PgnGame(self._number, game.start, moves, game.line, game.ended, game.null_move_line))
        self._number += 1

    def _error(self, wanted: str, got: str, line: int = 0) -> ValueError:
        return ValueError(f"expected {wanted}, got {got}, game {self._number}, {self._name}:{line or self._line}")

"""The model as a UCI engine. UCI is the protocol between chess programs and engines.

The model writes its whole answer to a position in a fraction of a second, so the limits of `go` are met by answering at
once. After `go infinite` and `go ponder` the answer is held back until `stop` or `ponderhit`, as the protocol requires,
and at the latest until the next `go` or `ucinewgame`.

Every `go` gets one `bestmove`, in order, and never for another position than the last one that was sent. Positions and
moves are read as other programs write them. Bad input is answered by an `info string` and changes nothing, except that
`go` after a bad `position` is answered by `bestmove 0000`, since a move of an earlier position might be illegal.

Source: the protocol's text by Huber and Meyer-Kahlen, 2006.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import chess
from chess.engine import Mate

from ..board.evals import from_pawns
from ..board.fen import lenient_fen, parse_fen
from ..board.moves import is_legal_uci, lenient_move
from ..errors import UserError
from ..evaluation.players import DecodingConfig
from ..rollout.generator import GeneratorError
from ..tasks.policy.text import MAX_CANDIDATES
from .choice import Choice, MoveChooser
from .introduction import MAX_ATTEMPTS, MAX_TOP_K, introduction, without_mark

# Commands that this engine accepts and ignores.
SILENT = ("debug", "register")
# The arguments of longer lines are not read.
MAX_CHARACTERS = 2**20
NULL_MOVE = "0000"
# Words of `go` that end the list of moves after `searchmoves`.
LIMITS = ("wtime", "btime", "winc", "binc", "movestogo", "depth", "nodes", "mate", "movetime", "infinite", "ponder")


@dataclass(slots=True)
class Options:
    """The options that `setoption` sets."""

    temperature: float = 0.0
    top_k: int = 0
    multi_pv: int = 1
    attempts: int = 3


@dataclass(frozen=True, slots=True)
class Search:
    """Request of a `go`."""

    chooser: MoveChooser
    board: chess.Board
    options: Options
    among: list[str] | None
    """The moves to choose from; None for all legal moves."""
    number: int
    """Number of searches of the game before this one."""


class UciSession:
    """A UCI session. `receive` acts on a line of input; `send` gets the lines of output, from one thread at a time."""

    def __init__(self, load: Callable[[str], MoveChooser], checkpoint: str, send: Callable[[str], None]) -> None:
        """`load` returns the chooser of a checkpoint (a folder or a name) and raises UserError if there is none."""
        self._load, self._checkpoint, self._send = load, checkpoint, send
        self._chooser: MoveChooser | None = None
        self._options = Options()
        self._board: chess.Board | None = chess.Board()
        self._lock = threading.Lock()
        self._search: threading.Thread | None = None
        self._release = threading.Event()
        self._prompted = self._illegal = 0

    def receive(self, line: str) -> bool:
        """Act on a line; return False if it ends the session."""
        words = without_mark(line[:MAX_CHARACTERS]).split()
        commands: Mapping[str, Callable[[Sequence[str]], None]] = {
            "uci": self._introduce,
            "isready": self._be_ready,
            "setoption": self._set_option,
            "ucinewgame": self._new_game,
            "position": self._set_position,
            "go": self._go,
            "stop": self._stop,
            "ponderhit": self._stop,
        }
        # The protocol: unknown words before a command are ignored.
        known = (place for place, word in enumerate(words) if word.lower() in (*commands, *SILENT, "quit"))
        name, *arguments = words[next(known, len(words)) :] or [""]
        name = name.lower()
        if len(line) > MAX_CHARACTERS:
            # The first moves of a game are another position than all of them.
            arguments = []
        if name == "quit":
            self._stop([])
            return False
        if name in commands:
            try:
                commands[name](arguments)
            # A checkpoint's path may be too long or forbidden.
            except (ValueError, OSError) as error:
                self._send_info(f"{name}: {error}")
        elif not name and words:
            self._send_info(f"unknown command: {words[0][:40]}")
        return True

    def wait(self) -> None:
        """Return once no search is under way."""
        if self._search is not None:
            self._search.join()

    def _introduce(self, _arguments: Sequence[str]) -> None:
        for line in introduction(self._checkpoint):
            self._send_line(line)

    def chooser(self) -> MoveChooser:
        """Return the chooser, which the first call loads. Raises UserError."""
        if self._chooser is None:
            self._chooser = self._load(self._checkpoint)
        return self._chooser

    def _be_ready(self, _arguments: Sequence[str]) -> None:
        self.chooser()
        self._send_line("readyok")

    def _set_option(self, arguments: Sequence[str]) -> None:
        """Set the option of `name <words> value <words>`; the case of the name does not matter."""
        if not arguments or arguments[0] != "name":
            raise ValueError("expected setoption name <name> value <value>")
        end = arguments.index("value") if "value" in arguments else len(arguments)
        name, value = " ".join(arguments[1:end]).lower(), " ".join(arguments[end + 1 :])
        options = self._options
        if name == "temperature":
            options.temperature = DecodingConfig(_decimal(value)).temperature
        elif name == "topk":
            options.top_k = _whole(value, 0, MAX_TOP_K)
        elif name == "multipv":
            options.multi_pv = _whole(value, 1, MAX_CANDIDATES)
        elif name == "attempts":
            options.attempts = _whole(value, 0, MAX_ATTEMPTS)
        elif name == "checkpoint":
            self._chooser, self._checkpoint = self._load(value), value
        else:
            raise ValueError(f"expected Temperature, TopK, MultiPV, Attempts or Checkpoint, got {name[:40]!r}")

    def _new_game(self, _arguments: Sequence[str]) -> None:
        self._stop([])
        self._board, self._prompted, self._illegal = chess.Board(), 0, 0

    def _set_position(self, arguments: Sequence[str]) -> None:
        """Set the position of `startpos` or `fen <FEN>`, then `moves <UCI>…`. After bad input there is no position."""
        self._board = None
        end = arguments.index("moves") if "moves" in arguments else len(arguments)
        where, moves = arguments[:end], arguments[end + 1 :]
        if list(where) == ["startpos"]:
            board = chess.Board()
        elif where and where[0] == "fen":
            board = lenient_fen(" ".join(where[1:]))
        else:
            raise ValueError("expected startpos or fen <FEN>")
        for move in moves:
            board.push(lenient_move(board, move))
        # Its counters may have become too long for a prompt.
        parse_fen(board.fen())
        self._board = board

    def _go(self, arguments: Sequence[str]) -> None:
        # A search that is not held ends in a fraction of a second.
        self._stop([])
        held = "infinite" in arguments or "ponder" in arguments
        asked: Search | str
        try:
            asked = self._asked(arguments)
        except (ValueError, OSError) as error:
            asked = f"go: {error}"
        self._release.clear()
        self._search = threading.Thread(target=self._answer, args=(asked, held), daemon=True)
        self._search.start()

    def _asked(self, arguments: Sequence[str]) -> Search:
        """Return what `go` asks for. Raises ValueError without a position, UserError or OSError without a model."""
        if self._board is None:
            raise ValueError("expected a position, the last one was refused")
        number, self._prompted = self._prompted, self._prompted + 1
        board = self._board.copy()
        return Search(self.chooser(), board, replace(self._options), _searched(board, arguments), number)

    def _stop(self, _arguments: Sequence[str]) -> None:
        self._release.set()
        self.wait()

    def _answer(self, asked: Search | str, held: bool) -> None:
        """Ask the model and send its move: at once, or after `stop` or `ponderhit` if it is `held`.

        `asked` is the reason instead if there is nothing to search. Then the move is the null move.
        """
        move = NULL_MOVE
        try:
            if isinstance(asked, str):
                self._send_info(asked)
            else:
                move = min((legal.uci() for legal in asked.board.legal_moves), default=NULL_MOVE)
                move = self._chosen(asked) or move
        except (GeneratorError, UserError) as error:
            self._send_info(f"the model gave no answer, so this is a legal move that it did not choose: {error}")
        finally:
            # After an error of ours too, which this thread still raises: without an answer the client would wait on.
            if held:
                self._release.wait()
            self._send_line(f"bestmove {move}")

    def _chosen(self, asked: Search) -> str:
        """Return the model's move, or an empty string if the game is over. Raises GeneratorError or UserError."""
        started, options = time.monotonic(), asked.options
        decoding = DecodingConfig(options.temperature, options.top_k)
        choice = asked.chooser.choose(
            asked.board, decoding, attempts=options.attempts, number=asked.number, among=asked.among
        )
        if choice.move:
            self._report(asked.board, choice, options, 1000 * (time.monotonic() - started))
        return choice.move

    def _report(self, board: chess.Board, choice: Choice, options: Options, spent_ms: float) -> None:
        illegal = [move for move in choice.illegal if not is_legal_uci(board, move)]
        then = "a random legal move" if choice.replaced else "prompted again"
        if illegal:
            self._illegal += 1
            wrote = ", ".join(text[:10] or "nothing" for text in illegal)
            self._send_info(f"illegal: {wrote}; then {then}; {self._illegal} of {self._prompted} moves in this game")
        elif choice.written != choice.move and not choice.illegal:
            known = "" if is_legal_uci(board, choice.written) else ", which is illegal"
            self._send_info(f"chosen among the legal moves; the model wrote {choice.written[:10] or 'nothing'}{known}")
        elif choice.illegal:
            self._send_info(f"not among searchmoves: {', '.join(choice.illegal)}; then {then}")
        lines = [choice.move, *(move for move in choice.candidates if move != choice.move)][: options.multi_pv]
        for place, move in enumerate(lines, start=1):
            score = _score(choice.candidates[move]) if move in choice.candidates else ""
            self._send_line(f"info depth 1 multipv {place} {score}time {spent_ms:.0f} pv {move}")

    def _send_info(self, text: str) -> None:
        self._send_line("info string " + " ".join(text.split()))

    def _send_line(self, line: str) -> None:
        with self._lock:
            self._send(line)


def _score(pawns: float) -> str:
    """Return an eval in UCI notation; empty if it is not a score.

    >>> _score(-0.3), _score(999.98)
    ('score cp -30 ', 'score mate 2 ')
    """
    try:
        score = from_pawns(pawns)
    except ValueError:
        return ""
    return f"score mate {score.mate()} " if isinstance(score, Mate) else f"score cp {score.score()} "


def _searched(board: chess.Board, arguments: Sequence[str]) -> list[str] | None:
    """Return the legal moves after `searchmoves`; None, for all legal moves, without `searchmoves`."""
    if "searchmoves" not in arguments:
        return None
    behind = arguments[arguments.index("searchmoves") + 1 :]
    end = next((place for place, word in enumerate(behind) if word in LIMITS), len(behind))
    moves: list[str] = []
    for text in behind[:end]:
        with suppress(ValueError):
            moves.append(lenient_move(board, text).uci())
    return moves


def _whole(text: str, low: int, high: int) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 9 or not low <= int(text) <= high:
        raise ValueError(f"expected a whole number from {low} to {high}, got {text[:40]!r}")
    return int(text)


def _decimal(text: str) -> float:
    try:
        if not text.isascii() or "_" in text:
            raise ValueError
        return float(text)
    except ValueError:
        raise ValueError(f"expected a number, got {text[:40]!r}") from None

"""The model as a UCI engine. UCI is the protocol between chess programs and engines.

The model writes its whole answer to a position in a fraction of a second, so the limits of `go` are met by answering at
once. After `go infinite` and `go ponder` the answer is held back until `stop` or `ponderhit`, as the protocol requires.
Bad input is answered by an `info string` and changes nothing.

Source: the protocol's text by Huber and Meyer-Kahlen, 2006.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import chess
from chess.engine import Mate

from ..board.evals import from_pawns
from ..board.fen import parse_fen, require_valid_fen
from ..board.moves import is_legal_uci
from ..errors import UserError
from ..evaluation.players import DecodingConfig
from ..rollout.generator import GeneratorError
from ..tasks.policy.text import MAX_CANDIDATES
from .choice import Choice, MoveChooser
from .introduction import MAX_ATTEMPTS, MAX_TOP_K, introduction

# Commands that this engine accepts and ignores.
SILENT = ("debug", "register")
# Longer lines are cut to this length.
MAX_CHARACTERS = 2**20
# Words of `go` that end the list of moves after `searchmoves`.
LIMITS = ("wtime", "btime", "winc", "binc", "movestogo", "depth", "nodes", "mate", "movetime", "infinite", "ponder")


@dataclass(slots=True)
class Options:
    """The options that `setoption` sets."""

    temperature: float = 0.0
    top_k: int = 0
    multi_pv: int = 1
    attempts: int = 3


class UciSession:
    """A UCI session. `receive` acts on a line of input; `send` gets the lines of output, from one thread at a time."""

    def __init__(self, load: Callable[[str], MoveChooser], checkpoint: str, send: Callable[[str], None]) -> None:
        """`load` returns the chooser of a checkpoint (a folder or a name) and raises UserError if there is none."""
        self._load, self._checkpoint, self._send = load, checkpoint, send
        self._chooser: MoveChooser | None = None
        self._options = Options()
        self._board = chess.Board()
        self._lock = threading.Lock()
        self._search: threading.Thread | None = None
        self._release, self._answered = threading.Event(), threading.Event()
        self._prompted = self._illegal = 0

    def receive(self, line: str) -> bool:
        """Act on a line; return False if it ends the session."""
        words = line[:MAX_CHARACTERS].split()
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
        known = (place for place, word in enumerate(words) if word in commands or word in (*SILENT, "quit"))
        name, *arguments = words[next(known, len(words)) :] or [""]
        if name == "quit":
            self._stop([])
            return False
        if name in commands:
            try:
                commands[name](arguments)
            except (ValueError, UserError) as error:
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
        self._board, self._prompted, self._illegal = chess.Board(), 0, 0

    def _set_position(self, arguments: Sequence[str]) -> None:
        """Set the position of `startpos` or `fen <FEN>`, then `moves <UCI>…`. Bad input leaves the old position."""
        end = arguments.index("moves") if "moves" in arguments else len(arguments)
        where, moves = arguments[:end], arguments[end + 1 :]
        if list(where) == ["startpos"]:
            board = chess.Board()
        elif where and where[0] == "fen":
            board = require_valid_fen(" ".join(where[1:]))
        else:
            raise ValueError("expected startpos or fen <FEN>")
        for move in moves:
            if not is_legal_uci(board, move):
                raise ValueError(f"expected a legal move in {board.fen()}, got {move[:10]!r}")
            board.push_uci(move)
        # Its counters may have become too long for a prompt.
        parse_fen(board.fen())
        self._board = board

    def _go(self, arguments: Sequence[str]) -> None:
        if self._search is not None and not self._answered.is_set():
            raise ValueError("expected no search under way; send stop first")
        # The client may ask again before the thread that sent the last move has ended.
        self.wait()
        chooser = self.chooser()
        held = "infinite" in arguments or "ponder" in arguments
        self._release.clear()
        self._answered.clear()
        given = (chooser, self._board.copy(), replace(self._options), _searched(arguments), held)
        self._search = threading.Thread(target=self._answer, args=given, daemon=True)
        self._search.start()

    def _stop(self, _arguments: Sequence[str]) -> None:
        self._release.set()
        self.wait()

    def _answer(
        self, chooser: MoveChooser, board: chess.Board, options: Options, among: Sequence[str] | None, held: bool
    ) -> None:
        """Ask the model and send its move: at once, or after `stop` or `ponderhit` if it is `held`."""
        started = time.monotonic()
        number, self._prompted = self._prompted, self._prompted + 1
        legal = sorted(legal_move.uci() for legal_move in board.legal_moves)
        move = legal[0] if legal else "0000"
        try:
            decoding = DecodingConfig(options.temperature, options.top_k)
            choice = chooser.choose(board, decoding, attempts=options.attempts, number=number, among=among)
            if choice.move:
                move = choice.move
                self._report(board, choice, options, 1000 * (time.monotonic() - started))
        except GeneratorError as error:
            self._send_info(f"the model gave no answer, so this is a legal move that it did not choose: {error}")
        finally:
            # After an error of ours too, which this thread still raises: without an answer the session would hang.
            if held:
                self._release.wait()
            self._answered.set()
            self._send_line(f"bestmove {move}")

    def _report(self, board: chess.Board, choice: Choice, options: Options, spent_ms: float) -> None:
        illegal = [move for move in choice.illegal if not is_legal_uci(board, move)]
        then = "a random legal move" if choice.replaced else "prompted again"
        if illegal:
            self._illegal += 1
            wrote = ", ".join(text[:10] or "nothing" for text in illegal)
            self._send_info(f"illegal: {wrote}; then {then}; {self._illegal} of {self._prompted} moves in this game")
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


def _searched(arguments: Sequence[str]) -> list[str] | None:
    """Return the moves after `searchmoves`; None, for all legal moves, without `searchmoves`."""
    if "searchmoves" not in arguments:
        return None
    behind = arguments[arguments.index("searchmoves") + 1 :]
    end = next((place for place, word in enumerate(behind) if word in LIMITS), len(behind))
    return list(behind[:end])


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

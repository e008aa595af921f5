"""Client of one engine process that speaks UCI over pipes, one position at a time and with a deadline.

python-chess also has a client, but it parses every move of every line of the search, up to 218 lines per depth.
Measured with Stockfish 15 on 60 positions, 20,000 nodes and MultiPV over all legal moves, on two busy cores: this
client makes 11.0 positions per second and `SimpleEngine.analysis` 3.8, with the same results. Per position Python takes
1.2 ms of CPU time here and 30.4 ms there, the engine 19 ms. `SimpleEngine.analyse` makes 5.3 positions per second, but
reports a bound as the score of a move whose search was cut short, so 10 of the 60 analyses differ.
Protocol: https://github.com/official-stockfish/Stockfish/wiki/UCI-&-Commands
"""

import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chess.engine import Cp, Mate

from ..board.evals import to_pawns
from .analysis import Lines

READ_BYTES = 1 << 16
# Time limit of the start, during which a network may be loaded from a slow disk. A search has its own deadline.
START_S = 30.0
# `poll` takes its timeout as a C int of milliseconds, so a longer wait is split into several.
LONGEST_POLL_S = 86_400.0
# Largest number of legal moves in any position; an engine reports fewer lines if there are fewer moves.
ALL_LINES = 218


class UciError(RuntimeError):
    """The engine did not answer in time, died, or does not speak UCI; the message is one line."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits of a search; 0 is no limit. There is no time limit, because results would then depend on the machine."""

    nodes: int = 0
    depth: int = 0
    """Plies."""

    def __str__(self) -> str:
        parts = (("nodes", self.nodes), ("depth", self.depth))
        return " ".join(f"{name} {value}" for name, value in parts if value)


class UciProcess:
    """A running single-threaded engine that reports `lines` variations. Raises UciError if `binary` is no engine."""

    def __init__(self, binary: str, *, hash_mib: int, lines: int) -> None:
        self._unread = b""
        try:
            # In its own process group the engine gets no Ctrl-C. If we die, the engine's input ends, and it exits.
            self._process = subprocess.Popen(
                [binary],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                process_group=0,
            )
        except OSError as error:
            raise UciError(f"it does not start: {error}") from error
        try:
            self.name = self.network = ""
            self._greet()
            settings = {"Threads": 1, "Hash": hash_mib, "MultiPV": lines}
            self._send(*(f"setoption name {name} value {value}" for name, value in settings.items()), "isready")
            list(self._until("readyok", START_S))
        except BaseException:
            self.kill()
            raise

    def search(self, fen: str, limit: Limit, timeout_s: float, moves: int) -> Lines:
        """Return the engine's evals of a position that has a legal move, as if the engine had just been started.

        `moves` is the number of moves that it reports. If the limit ends the search in the middle of a move, the move's
        newest score is only a bound. The move then keeps its last exact score; without one it is left out.
        """
        self._send("ucinewgame", f"position fen {fen}", f"go {limit}")
        return last_lines(list(self._until("bestmove", timeout_s)), moves)

    def kill(self) -> None:
        """Kill the process at once, even during a search. Safe to call again, and from another thread."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill the process and close its pipes. Must not be called during a search."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _greet(self) -> None:
        """Read the engine's name with its version, and the name of its default network if it has one."""
        self._send("uci")
        for line in self._until("uciok", START_S):
            if line.startswith("id name "):
                self.name = line.removeprefix("id name ")
            elif line.startswith("option name EvalFile "):
                self.network = line.split()[-1]

    def _send(self, *commands: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("".join(f"{command}\n" for command in commands).encode())
        except OSError as error:
            raise UciError("it has died") from error

    def _until(self, last: str, timeout_s: float) -> Iterator[str]:
        """Yield the engine's lines before the one that begins with `last`. Raises UciError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            *lines, self._unread = self._unread.split(b"\n")
            for place, line in enumerate(lines):
                text = line.decode(errors="replace").strip()
                if text.startswith(last):
                    self._unread = b"\n".join([*lines[place + 1 :], self._unread])
                    return
                yield text
            if (chunk := self._read(deadline)) is None:
                raise UciError(f"no {last} in {timeout_s:g} s")
            self._unread += chunk

    def _read(self, deadline: float) -> bytes | None:
        """Return new output, possibly empty; None if there is none before the deadline."""
        assert self._process.stdout is not None
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN | select.POLLHUP)
        left_s = max(0.0, deadline - time.monotonic())
        if not poll.poll(min(left_s, LONGEST_POLL_S) * 1000):
            return None if left_s <= LONGEST_POLL_S else b""
        if not (chunk := os.read(self._process.stdout.fileno(), READ_BYTES)):
            raise UciError("it has died")
        return chunk


def last_lines(output: Sequence[str], moves: int) -> Lines:
    """Return the newest move of each rank with its newest exact eval, from the output of a search of `moves` moves.

    Lines are parsed from the newest backwards until every rank has both; usually only the last depth is parsed.
    """
    ranked: dict[int, str] = {}
    evals_pawns: dict[str, float] = {}
    for line in reversed(output):
        if " score " in line and " pv " in line:
            rank, move, pawns = _variation(line.split())
            ranked.setdefault(rank, move)
            if "bound " not in line:
                evals_pawns.setdefault(move, pawns)
            if len(ranked) >= moves and evals_pawns.keys() >= set(ranked.values()):
                break
    newest = (ranked[rank] for rank in sorted(ranked))
    return tuple((move, evals_pawns[move]) for move in newest if move in evals_pawns)


def _variation(words: list[str]) -> tuple[int, str, float]:
    """Return rank, move and eval of `info … multipv 2 score cp -31 … pv e2e4 …`."""
    try:
        at = words.index("score")
        score = {"cp": Cp, "mate": Mate}[words[at + 1]](int(words[at + 2]))
        return int(words[words.index("multipv") + 1]), words[words.index("pv") + 1], to_pawns(score)
    except (ValueError, KeyError, IndexError) as error:
        raise UciError(f"expected a variation with its score, got {' '.join(words)!r}") from error

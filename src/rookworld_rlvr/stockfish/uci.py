"""Client of one engine process that speaks UCI over pipes, one position at a time and with a deadline.

python-chess has a client too, which parses every move of every line of the search, up to 218 lines per depth. Measured
with Stockfish 15 over 60 positions in turn, 20,000 nodes and MultiPV over all legal moves, on two busy cores: 11.0
positions per second here and 3.8 with `SimpleEngine.analysis`; Python's share is 1.2 and 30.4 ms of CPU time per
position, the engine's 19. `SimpleEngine.analyse` makes 5.3 positions per second, but reports the bound of a move whose
search was cut short as its score, so 10 of the 60 analyses differ; those of `analysis` are equal to these.
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

READ_BYTES = 1 << 16
# To load a network from a slow disk; a search has a deadline of its own.
START_S = 30.0
# A wait of poll's is an int of C, in milliseconds; a longer one is made of several.
LONGEST_POLL_S = 86_400.0
# As many as a position has legal moves at most; an engine takes fewer where there are fewer.
ALL_LINES = 218


class UciError(RuntimeError):
    """The engine did not answer in time, has died, or speaks no UCI; one line."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Limits of a search, of which those above 0 apply. There is no time limit: results would depend on the machine."""

    nodes: int = 0
    depth: int = 0
    """Plies."""

    def __str__(self) -> str:
        parts = (("nodes", self.nodes), ("depth", self.depth))
        return " ".join(f"{name} {value}" for name, value in parts if value)


Lines = tuple[tuple[str, float], ...]
"""Moves as UCI with their evals, as the engine ranks them: pawns, from the view of the side to move, mates folded in.
A search that ended between two depths has seen some of them deeper than the others."""


class UciProcess:
    """A running engine, single-threaded, that reports `lines` variations. Raises UciError if it is none."""

    def __init__(self, binary: str, *, hash_mib: int, lines: int) -> None:
        self._unread = b""
        try:
            # A process group of its own: Ctrl-C is ours to handle. When we die its input ends, and so does it.
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
        """The engine's evals of a position that has a legal move, as if the engine had just been started.

        `moves`: how many it reports at most. If the limit ends the search in the middle of a move, the move's newest
        score is only a bound. The move then keeps its last exact score; without an exact score it is left out.
        """
        self._send("ucinewgame", f"position fen {fen}", f"go {limit}")
        return last_lines(list(self._until("bestmove", timeout_s)), moves)

    def kill(self) -> None:
        """End it at once, whatever it does; safe to call again, and from another thread."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill the process and close its pipes. Only while no search is under way."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _greet(self) -> None:
        """Its name with version, and of its options the default network and the largest hash, where it names them."""
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
        """Its lines before the one that begins with `last`."""
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
        """New output, perhaps empty; None where there is none before the deadline."""
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
    """The newest move of each rank with its newest exact eval, from all lines of a search that reports `moves` moves.

    Lines are parsed from the newest back until every rank has both, which is usually the last depth alone.
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
    """Rank, move and eval of `info … multipv 2 score cp -31 … pv e2e4 …`."""
    try:
        at = words.index("score")
        score = {"cp": Cp, "mate": Mate}[words[at + 1]](int(words[at + 2]))
        return int(words[words.index("multipv") + 1]), words[words.index("pv") + 1], to_pawns(score)
    except (ValueError, KeyError, IndexError) as error:
        raise UciError(f"expected a variation with its score, got {' '.join(words)!r}") from error

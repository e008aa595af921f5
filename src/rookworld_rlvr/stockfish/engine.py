"""One Stockfish engine: its binary is found and checked, and a process that hangs or dies is replaced."""

import os
import re
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from ..board.fen import parse_fen
from ..errors import ScorerError, UserError
from .analysis import Analysis, Lines
from .uci import ALL_LINES, Limit, UciError, UciProcess

# Debian installs the binary here, which is not on root's PATH.
DEBIAN_PATH = Path("/usr/games/stockfish")
MIN_VERSION = 15
# Nightly builds have no version number, but a date (day, month, year) or the word `dev`.
_NAME = re.compile(r"Stockfish (?:(?P<date>\d{6})|(?P<version>\d+)|dev)\b")
# Release date of Stockfish 15 as year, month, day.
MIN_DATE = "220418"
# Largest number of searches of a position, each with twice the nodes of the last, until every move has an eval.
MAX_DOUBLINGS = 12
# Nodes of a search by default, and the seconds after which it counts as hung: many times what it takes on a slow core.
USUAL_NODES, TIMEOUT_S = 20_000, 10.0
# With a longer limit an engine that hangs would never be noticed.
MAX_TIMEOUT_S = 86_400
# Size of a process's hash table in MiB. The table is cleared before every position, and a search of about 20,000 nodes
# fills no more than this. Evaluations depend on the size.
HASH_MIB = 1
# Number of attempts to search a position, each retry in a new process, before the search counts as failed.
ATTEMPTS = 3


class EngineUnusableError(UserError):
    """No engine was found, or a binary does not work as one or is too old."""


@dataclass(slots=True)
class EngineProcessConfig:
    """The engine's binary and its processes."""

    path: str = ""
    """Path of the binary. Empty: STOCKFISH_PATH, then `stockfish` on the PATH, then Debian's /usr/games/stockfish."""
    processes: int = 1
    """Number of engine processes; it changes the speed, not the results."""

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise ValueError(f"stockfish.processes: expected 1 or more, got {self.processes}")


@dataclass(slots=True)
class EngineOptions(EngineProcessConfig):
    """Stockfish, and the size of its search of a position."""

    nodes: int = USUAL_NODES
    """Nodes per position for all its legal moves together; unlike a time, the same result on every machine."""

    def __post_init__(self) -> None:
        # super() does not find a dataclass with slots.
        EngineProcessConfig.__post_init__(self)
        if self.nodes < 1:
            raise ValueError(f"stockfish.nodes: expected 1 or more, got {self.nodes}")


@dataclass(slots=True)
class EngineConfig(EngineOptions):
    """Stockfish, its search of a position, the time limit of a search, and whether analyses are kept."""

    timeout_s: float = TIMEOUT_S
    """Seconds after which a search of `nodes` nodes counts as hung; for more nodes the time grows in proportion. The
    engine is then killed and the position is searched again."""
    cache: bool = True
    """Keep analyses on disk for later runs, in `rookworld` below XDG_CACHE_HOME or ~/.cache."""

    def __post_init__(self) -> None:
        EngineOptions.__post_init__(self)
        if not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            expected = f"more than 0 and at most {MAX_TIMEOUT_S} seconds, a day"
            raise ValueError(f"stockfish.timeout_s: expected {expected}, got {self.timeout_s}")


def engine_config(options: EngineOptions) -> EngineConfig:
    """Return the engine of these options. Its time limit is TIMEOUT_S, and more in proportion beyond USUAL_NODES."""
    timeout_s = min(MAX_TIMEOUT_S, TIMEOUT_S * max(1.0, options.nodes / USUAL_NODES))
    return EngineConfig(options.path, options.processes, options.nodes, timeout_s)


def find_engine(path: str = "") -> str:
    """Return the absolute path of the engine's binary. Raises EngineUnusableError if there is none."""
    # Not Path.expanduser, which raises if there is no such user.
    wanted = os.path.expanduser(path or os.environ.get("STOCKFISH_PATH", ""))
    if wanted and not Path(wanted).is_file():
        raise EngineUnusableError(f"expected an engine's binary, got {wanted!r}: no such file")
    binary = wanted or shutil.which("stockfish") or (str(DEBIAN_PATH) if DEBIAN_PATH.is_file() else "")
    if not binary:
        raise EngineUnusableError("expected Stockfish, found none: apt-get install stockfish, or set STOCKFISH_PATH")
    # A name without a slash would be looked for on the PATH when it is started.
    return os.path.abspath(binary)


def engine_position(fen: str) -> str:
    """Return a position as an engine gets it: the FEN as python-chess prints it, with move number 1.

    The halfmove clock is kept, because evals approach a draw as it rises. The move number has no effect on evals, so
    it is the same for all positions. Raises ValueError for a FEN that does not parse.

    >>> engine_position("8/8/8/4k3/8/4P3/8/4K3 b - - 7 60")
    '8/8/8/4k3/8/4P3/8/4K3 b - - 7 1'
    """
    return parse_fen(fen).fen().rsplit(" ", 1)[0] + " 1"


class Engine:
    """One Stockfish process, which searches one position at a time. `lines`: the number of best moves that it reports.

    A process that hangs or dies is killed and replaced, and its position is searched again. Each search is a
    new game, so its result does not depend on earlier ones. Raises EngineUnusableError.
    """

    def __init__(self, config: EngineConfig, *, lines: int = ALL_LINES) -> None:
        self._config, self._lines = config, lines
        self._binary = find_engine(config.path)
        self._lock, self._searching = threading.Lock(), threading.Lock()
        self._process: UciProcess | None = None
        self._closed = False
        self.restarts = 0
        """Number of processes that were replaced."""

    def identity(self) -> str:
        """Start the engine and return name, version and network: with hash and limit, all that decides an analysis."""
        try:
            process = self._running()
        except UciError as error:
            raise EngineUnusableError(f"expected a UCI engine, got {self._binary}: {error}") from error
        try:
            require_new_enough(process.name, self._binary)
        except EngineUnusableError:
            self.close()
            raise
        return " ".join(part for part in (process.name, process.network) if part)

    def analyse(self, position: str, limit: Limit) -> Analysis:
        """Return the analysis of a position from `engine_position`. Raises ScorerError if every attempt fails."""
        moves = parse_fen(position).legal_moves.count()
        if not moves:
            return Analysis(position, ())
        failure = UciError("it was not started")
        with self._searching:
            for _ in range(ATTEMPTS):
                try:
                    return Analysis(position, self._complete(position, limit, min(moves, self._lines)))
                except UciError as error:
                    self._discard()
                    failure = error
        raise ScorerError(f"the engine failed {ATTEMPTS} times on {position}: {failure} ({self._binary})") from failure

    def close(self) -> None:
        """End the process, also in the middle of a search, which then raises ScorerError. Safe to call again."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
        with self._searching:
            self._discard()

    def _complete(self, position: str, limit: Limit, moves: int) -> Lines:
        """Return evals of all moves. As long as the nodes do not suffice for that, search again with twice as many."""
        for _ in range(MAX_DOUBLINGS if limit.nodes else 1):
            timeout_s = self._config.timeout_s * max(1.0, limit.nodes / self._config.nodes)
            lines = self._running().search(position, limit, timeout_s, moves)
            if len({move for move, _ in lines}) == moves:
                return lines
            limit = Limit(nodes=2 * limit.nodes, depth=limit.depth)
        raise UciError(f"expected evals of {moves} moves, got {len(lines)}")

    def _running(self) -> UciProcess:
        with self._lock:
            if self._closed:
                raise ScorerError("the engine is closed")
            if self._process is None:
                self._process = UciProcess(self._binary, hash_mib=HASH_MIB, lines=self._lines)
            return self._process

    def _discard(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None
                self.restarts += not self._closed


def require_new_enough(name: str, binary: str) -> None:
    """Raise EngineUnusableError if `name`, which `binary` reports, is not Stockfish or is too old a version."""
    if not _new_enough(name):
        raise EngineUnusableError(f"expected Stockfish {MIN_VERSION} or newer, got {name!r} from {binary}")


def _new_enough(name: str) -> bool:
    """Return True for the name of a Stockfish that is new enough.
    >>> [_new_enough(f"Stockfish {build}") for build in ("15.1", "14.1", "dev-2024", "190422", "180421")]
    [True, False, True, True, False]
    """
    known = _NAME.match(name)
    if not known:
        return False
    if date := known["date"]:
        return date[4:] + date[2:4] + date[:2] >= MIN_DATE
    return known["version"] is None or int(known["version"]) >= MIN_VERSION

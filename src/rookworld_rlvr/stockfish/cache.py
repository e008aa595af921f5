"""Analyses of an engine on disk, shared by processes and runs.

The key of an analysis is everything that it depends on: the engine's name, version and network, its hash, the limit,
and the position with its half-move clock. So the analysis that is read is the one that would have been computed.
SQLite with a write-ahead log: a process that is killed loses at most what it was writing, and several may read and
write at once.
"""

import json
import os
import sqlite3
import threading
import time
from pathlib import Path

from ..errors import ScorerError
from .engine import Analysis

# The number rises when searches are started or read in another way.
FILE = "engine-2.sqlite"
BUSY_S = 30.0
_TABLE = """CREATE TABLE IF NOT EXISTS analyses (
    judge TEXT NOT NULL, position TEXT NOT NULL, lines TEXT NOT NULL, PRIMARY KEY (judge, position)
) WITHOUT ROWID"""


class CacheError(ValueError):
    """A cache that cannot be opened; one line."""


def default_folder() -> Path:
    """`rookworld` among the user's caches."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    # Not Path.home, which raises where there is none.
    return Path(root or os.path.expanduser("~/.cache")) / "rookworld"


class EngineCache:
    """Analyses by engine and position, in `folder`. Used from several threads; raises CacheError."""

    def __init__(self, folder: Path) -> None:
        try:
            self.path = folder.expanduser() / FILE
        except RuntimeError as error:
            raise CacheError(f"expected a folder for a cache of analyses, got {folder}: {error}") from error
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # In autocommit: an analysis is on disk, for every process to see, as soon as it is put.
            self._file = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise CacheError(f"expected a cache of analyses at {self.path}, got {error}") from error

    def get(self, engine: str, position: str) -> Analysis | None:
        """None where there is none. Raises ScorerError for a file that cannot be read."""
        rows = self._run("SELECT lines FROM analyses WHERE judge = ? AND position = ?", engine, position)
        if not rows:
            return None
        return Analysis(position, tuple((move, pawns) for move, pawns in json.loads(rows[0][0])))

    def put(self, engine: str, analysis: Analysis) -> None:
        """Raises ScorerError for a file that cannot be written to, as on a full disk."""
        values = (engine, analysis.position, json.dumps(analysis.lines))
        self._run("INSERT OR REPLACE INTO analyses VALUES (?, ?, ?)", *values)

    def close(self) -> None:
        """Safe to call again."""
        with self._lock:
            self._file.close()

    def _prepare(self) -> None:
        """Several processes may begin at once, and only one can change the mode of the log."""
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                self._file.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        # A power cut may then cost the newest analyses, never the file.
        self._file.execute("PRAGMA synchronous = NORMAL")
        self._file.execute(_TABLE)

    def _run(self, statement: str, *values: str) -> list[tuple[str]]:
        try:
            with self._lock:
                return self._file.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise ScorerError(f"the cache of analyses failed: {error} ({self.path})") from error

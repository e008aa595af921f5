"""Cache of an engine's analyses on disk, shared by processes and runs.

The key of an analysis has everything that the analysis depends on: the engine's name, version and network, its hash
size, the limit of the search, and the position with its halfmove clock. So a cached analysis is the one that a search
would give. The file is an SQLite database with a write-ahead log: a killed process loses at most the analysis that it
was writing, and several processes may read and write at the same time.
"""

import json
import os
import sqlite3
import threading
import time
from pathlib import Path

from ..errors import ScorerError, UserError
from .analysis import Analysis

# The number in the name is raised when the code that starts searches or reads their output changes the result.
FILE = "engine-3.sqlite"
BUSY_S = 30.0
_TABLE = """CREATE TABLE IF NOT EXISTS analyses (
    engine TEXT NOT NULL, position TEXT NOT NULL, lines TEXT NOT NULL, PRIMARY KEY (engine, position)
) WITHOUT ROWID"""


def default_folder() -> Path:
    """Return the folder `rookworld` below XDG_CACHE_HOME or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    # Not Path.home, which raises if there is no home folder.
    return Path(root or os.path.expanduser("~/.cache")) / "rookworld"


class EngineCache:
    """Analyses by engine and position, stored in `folder`. Several threads may use it. Raises UserError."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        try:
            # Raises RuntimeError if there is no such user.
            self.path = folder.expanduser() / FILE
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # With autocommit an analysis is on disk and visible to every process as soon as it is stored.
            self._file = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._prepare()
        except (OSError, RuntimeError, sqlite3.Error) as error:
            raise UserError(f"expected a cache of analyses at {folder / FILE}, got {error}") from error

    def get(self, engine: str, position: str) -> Analysis | None:
        """Return the analysis of a position, None if there is none. Raises ScorerError if the file cannot be read."""
        rows = self._run("SELECT lines FROM analyses WHERE engine = ? AND position = ?", engine, position)
        if not rows:
            return None
        return Analysis(position, tuple((move, pawns) for move, pawns in json.loads(rows[0][0])))

    def put(self, engine: str, analysis: Analysis) -> None:
        """Store an analysis. Raises ScorerError if the file cannot be written, as on a full disk."""
        values = (engine, analysis.position, json.dumps(analysis.lines))
        self._run("INSERT OR REPLACE INTO analyses VALUES (?, ?, ?)", *values)

    def close(self) -> None:
        """Close the file. Safe to call again."""
        with self._lock:
            self._file.close()

    def _prepare(self) -> None:
        """Set the log mode and create the table. Several processes may start at once; only one can change the mode."""
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                self._file.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        # With this setting a power cut may lose the newest analyses but never damages the file.
        self._file.execute("PRAGMA synchronous = NORMAL")
        self._file.execute(_TABLE)

    def _run(self, statement: str, *values: str) -> list[tuple[str]]:
        try:
            with self._lock:
                return self._file.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise ScorerError(f"the cache of analyses failed: {error} ({self.path})") from error

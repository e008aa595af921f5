"""What live games asked and how they ended, on disk: what was trained on can be left out of an evaluation.

Positions are never taken back: after a resume those of steps that were given up stand there too, each line once. Games
are cut to those of the checkpoint, so that none is told of twice.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..tasks.live_games import LiveRecords
from .run_folder import write_text

POSITIONS_FILE, GAMES_FILE = "live_positions.jsonl", "live_games.jsonl"


class LiveFiles:
    """The two files of a run's folder. Each joins the other on `game`."""

    def __init__(self, folder: Path) -> None:
        self._positions, self._games = folder / POSITIONS_FILE, folder / GAMES_FILE
        self._seen: set[str] = set()

    def begin(self, games_ended: int) -> None:
        """Go on behind so many games; make the files where there are none. Lines that were cut short are dropped."""
        positions = _whole_lines(self._positions)
        self._seen = set(positions)
        write_text(self._positions, "".join(positions))
        write_text(self._games, "".join(_whole_lines(self._games)[:games_ended]))

    def write(self, records: LiveRecords) -> None:
        """Add what is new, on disk when this returns: before a checkpoint that was trained on it."""
        lines = dict.fromkeys(map(_line, records.asked))
        new = [line for line in lines if line not in self._seen]
        self._seen.update(new)
        _append(self._positions, new)
        _append(self._games, map(_line, records.ended))


def _line(record: Mapping[str, Any]) -> str:
    return f"{json.dumps(record)}\n"


def _whole_lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    return [line for line in lines if line.endswith("\n")]


def _append(path: Path, lines: Iterable[str]) -> None:
    text = "".join(lines)
    if not text:
        return
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())

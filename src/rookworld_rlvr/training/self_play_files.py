"""Files of self-play positions and of how the games ended, so that an evaluation can leave out trained positions.

Positions are never removed: after a resume the file also has the positions of steps that were given up, each line once.
The list of games is cut to the games of the checkpoint, so that no game is listed twice.
"""

import json
from pathlib import Path

from ..files import append_lines, whole_lines, write_lines
from ..tasks.self_play_prompts import SelfPlayRecords

POSITIONS_FILE, GAMES_FILE = "self_play_positions.jsonl", "self_play_games.jsonl"


class SelfPlayFiles:
    """The two files of a run's folder. Each joins the other on `game`."""

    def __init__(self, folder: Path) -> None:
        self._positions, self._games = folder / POSITIONS_FILE, folder / GAMES_FILE
        self._seen: set[str] = set()

    def begin(self, games_ended: int) -> None:
        """Go on behind so many games; make the files where there are none. Lines that were cut short are dropped."""
        positions = whole_lines(self._positions)
        self._seen = set(positions)
        write_lines(self._positions, positions)
        write_lines(self._games, whole_lines(self._games)[:games_ended])

    def write(self, records: SelfPlayRecords) -> None:
        """Add what is new, on disk when this returns: before a checkpoint that was trained on it."""
        lines = dict.fromkeys(map(json.dumps, records.asked))
        new = [line for line in lines if line not in self._seen]
        self._seen.update(new)
        append_lines(self._positions, new)
        append_lines(self._games, map(json.dumps, records.ended))

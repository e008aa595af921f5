"""Log of finished games, from which an interrupted data generation resumes."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import UserError
from ..files import try_lock

Header = Mapping[str, str | int]
# Number of bytes of a damaged line that an error message shows.
SHOWN = 40


class GameLog:
    """File with a header line and, in the order of their numbers, one JSON line of rows per game.

    Opening the log drops a last line that an interrupt truncated. Raises UserError if the log's header differs from
    `header` or is damaged, or if another process has the log open.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self._path = path
        self._file = path.open("a+b")
        try:
            if not try_lock(self._file.fileno()):
                raise UserError(f"expected to write {path} alone, got it open in another process")
            self.finished = self._recover(header)
        except BaseException:
            self._file.close()
            raise

    def games(self) -> Iterator[list[str]]:
        """Yield the rows of each finished game, beginning with game 0. Raises UserError for a damaged line."""
        with self._path.open("rb") as lines:
            next(lines)
            for number, line in zip(range(2, self.finished + 2), lines, strict=False):
                rows = self._parse(line, number)
                if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
                    raise self._damaged(line, number)
                yield rows

    def append(self, rows: list[str]) -> None:
        """Write the rows of the next game; they are on disk when this returns."""
        self._write(rows)
        self.finished += 1

    def close(self) -> None:
        self._file.close()

    def _recover(self, header: Header) -> int:
        """Return the number of complete games, and cut off what follows the last complete line."""
        self._file.seek(0)
        first = self._file.readline()
        if not first.endswith(b"\n"):
            self._file.truncate(0)
            self._write(header)
            return 0
        if self._parse(first, 1) != header:
            saved = first.decode().strip()
            raise UserError(f"expected games of {json.dumps(header)}, got {self._path} of {saved}")
        finished, end = 0, self._file.tell()
        for line in self._file:
            if line.endswith(b"\n"):
                finished, end = finished + 1, end + len(line)
        self._file.truncate(end)
        return finished

    def _parse(self, line: bytes, number: int) -> object:
        try:
            return json.loads(line)
        except ValueError as error:
            raise self._damaged(line, number) from error

    def _damaged(self, line: bytes, number: int) -> UserError:
        return UserError(f"expected JSON of this command in line {number} of {self._path}, got {line[:SHOWN]!r}")

    def _write(self, value: object) -> None:
        self._file.write(json.dumps(value).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

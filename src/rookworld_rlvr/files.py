"""Files that are there whole or not at all, and logs of lines that a crash can only cut short."""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from .errors import UserError


def asset(name: str) -> Path:
    """A file or folder of `assets`, which ships with the package."""
    return Path(str(resources.files("rookworld_rlvr") / "assets" / name))


def make_folder(folder: Path, option: str) -> None:
    """Make a folder and its parents if they are missing. Raises UserError, naming the option that needs it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{option}: expected a folder to write to, got {folder}: {error.strerror}") from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON by a rename, so that no reader sees half a file."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text by a rename; even after a power cut the file is the old one or the new one."""
    write_lines(path, [text], end="")


def write_lines(path: Path, lines: Iterable[str], *, end: str = "\n") -> int:
    """Write lines, each with `end` behind it, by a rename; returns how many there are.

    The lines may be produced while they are written; where that raises, the old file stays.
    """
    writing, count = path.with_name(f".{path.name}.writing"), 0
    try:
        with writing.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(line + end)
                count += 1
            file.flush()
            os.fsync(file.fileno())
        writing.replace(path)
    finally:
        writing.unlink(missing_ok=True)
    return count


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Add lines behind a log's end; they are on disk when this returns. Without a line nothing is touched."""
    text = "".join(f"{line}\n" for line in lines)
    if text:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def whole_lines(path: Path) -> list[str]:
    """The lines of a log without their ends, less a last one that a crash cut short; none if there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    return [line.removesuffix("\n") for line in lines if line.endswith("\n")]


@contextmanager
def written_alone(path: Path, option: str) -> Iterator[None]:
    """Meanwhile no other process writes `path`, if it asks here; however this one ends, it lets go.

    The lock is a hidden file beside it, which goes away. Raises UserError, naming the option that needs it.
    """
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One that another process took away just now locks nothing.
            if not lock.exists() or not os.path.samestat(os.fstat(descriptor), lock.stat()):
                raise BlockingIOError
        except BlockingIOError as error:
            raise UserError(f"{option}: expected to write {path} alone, got it open in another process") from error
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)

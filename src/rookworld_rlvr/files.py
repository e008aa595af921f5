"""Atomic writes of whole files, and append-only logs of which a crash can only truncate the last line.

Also links to the newest or best of several folders. Where a file system has no links, a text file has their place.
"""

import errno
import fcntl
import filecmp
import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TextIO

from .errors import UserError

LFS_POINTER = "a Git LFS pointer in place of the file: `git lfs pull` in its repository fetches it"
GZIP = b"\x1f\x8b"
# First bytes of files that people take for text, and what they are.
FOREIGN = {
    b"version https://git-lfs.github.com/spec/": LFS_POINTER,
    GZIP: "a file compressed by gzip: decompress it first",
    b"\x28\xb5\x2f\xfd": "a file compressed by zstd: decompress it first",
    b"BZh": "a file compressed by bzip2: decompress it first",
    b"\xfd7zXZ": "a file compressed by xz: decompress it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"<!doctype html": "a web page in place of the file",
    b"<html": "a web page in place of the file",
}
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# Enough for every beginning above.
HEAD_BYTES = 64
# A file that takes the place of a link has one path.
POINTER_BYTES = 4096
# What file systems of networks and other systems answer to a request that they do not support.
UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL})
# Characters of a file's and of the computer's name in the name of a temporary file, which may have 255 bytes.
NAME_CHARACTERS, HOST_CHARACTERS = 60, 40


def asset(name: str) -> Path:
    """Return the path of a file or folder in `assets`, which ships with the package."""
    return Path(str(resources.files("rookworld_rlvr") / "assets" / name))


def file_type(path: Path | str) -> str:
    """Return the suffix of a path in small letters, as the type of its file.

    >>> file_type("games/A.PGN"), file_type("games")
    ('.pgn', '')
    """
    return Path(path).suffix.lower()


def foreign_content(head: bytes) -> str:
    """Say what a file is that begins with `head`, if it is a Git LFS pointer, compressed or a web page; else empty."""
    begins = head.lstrip().lower()
    return next((what for first, what in FOREIGN.items() if head.startswith(first) or begins.startswith(first)), "")


def open_text(path: Path, *, wanted: str = "text", newline: str | None = None) -> TextIO:
    """Open a text to read, in UTF-8 or, if it begins with the mark of UTF-16, in that.

    Undecodable bytes become replacement characters, so that a reader can name the line that contains them. Raises
    UserError for a file of `foreign_content`, OSError if it cannot be opened.
    """
    file = path.open("rb")
    try:
        # Without moving on, because a pipe cannot be read twice.
        head = file.peek(HEAD_BYTES)[:HEAD_BYTES]
        if foreign := foreign_content(head):
            raise UserError(f"expected {wanted} in {path}, got {foreign}")
    except BaseException:
        file.close()
        raise
    encoding = "utf-16" if head.startswith(UTF_16) else "utf-8-sig"
    return io.TextIOWrapper(file, encoding=encoding, errors="replace", newline=newline)


def make_folder(folder: Path, option: str) -> None:
    """Make a folder and its parents if they are missing. Raises UserError that names `option`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{option}: expected a folder to write to, got {folder}: {error.strerror}") from error


def check_output_file(path: Path, option: str) -> None:
    """Raise UserError that names `option` if `path` is a folder, or if its folder does not exist."""
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise UserError(f"{option}: expected a file in a folder that exists, got {path}")


def write_json(path: Path, value: Any) -> None:
    """Write JSON to a temporary file and rename it, so that no reader sees an incomplete file."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text to a temporary file and rename it. Even after a power cut the file has the old or the new text."""
    write_lines(path, [text], end="")


def write_lines(path: Path, lines: Iterable[str], *, end: str = "\n") -> int:
    """Write lines, each followed by `end`, to a temporary file and rename it. Return the number of lines.

    `lines` may be a generator. If it raises, the old file stays. Raises OSError.
    """
    count = 0
    with replacing(path) as writing, writing.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(line + end)
            count += 1
        file.flush()
        os.fsync(file.fileno())
    return count


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` when the block ends. If it raises, the old file stays.

    The name has the computer and the process, so two processes that write `path` do not share the file: the one that
    ends last wins. Temporary files of processes that were killed on this computer are removed. Raises OSError.
    """
    if not path.name:
        raise IsADirectoryError(f"expected the name of a file, got {str(path)!r}")
    mine = f".{path.name[:NAME_CHARACTERS]}.writing.{os.uname().nodename[:HOST_CHARACTERS]}."
    for other in _numbered(path.parent, mine):
        if not _runs(int(other.name.removeprefix(mine))):
            other.unlink(missing_ok=True)
    writing = path.with_name(f"{mine}{os.getpid()}")
    try:
        yield writing
        writing.replace(path)
    finally:
        writing.unlink(missing_ok=True)


def _numbered(folder: Path, start: str) -> list[Path]:
    """Return the files of a folder whose names are `start` and a number; none if the folder cannot be read."""
    with suppress(OSError):
        return [
            path for path in folder.iterdir() if path.name.startswith(start) and path.name[len(start) :].isdecimal()
        ]
    return []


def _runs(pid: int) -> bool:
    """Return True if this computer has such a process."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def point(link: Path, target: Path) -> None:
    """Make `link` point to the folder `target`, which is beside it or below, by one rename.

    On a file system without links, `link` becomes a text file with the relative path, which `follow` reads, and a line
    on standard error says so once. A folder in the place of the link, as some copies of a run have, is removed if it is
    a copy of a folder beside it; otherwise it is renamed to `<name>.copied`. Raises OSError.
    """
    path = os.path.relpath(target, link.parent)
    if link.is_dir() and not link.is_symlink():
        _make_way(link)
    new = link.with_name(f".{link.name}-{os.getpid()}")
    try:
        new.unlink(missing_ok=True)
        try:
            new.symlink_to(path, target_is_directory=True)
        except OSError as error:
            write_text(link, f"{path}\n")
            _say_no_links(error.strerror or str(error))
        else:
            new.replace(link)
    finally:
        new.unlink(missing_ok=True)


def unpoint(link: Path) -> None:
    """Remove what `point` made, if it is there. A folder in its place is treated as by `point`."""
    if link.is_dir() and not link.is_symlink():
        _make_way(link)
    link.unlink(missing_ok=True)


def follow(path: Path | str) -> Path:
    """Return a path in which text files of `point` are replaced by the folders that they name.

    A text file is followed only to a folder beside it or below, because it may come from a stranger.
    """
    given = Path(path)
    place = Path(given.anchor)
    for part in given.parts[1:] if given.anchor else given.parts:
        place = place / part
        # Most small files are no text, or no path.
        with suppress(OSError, ValueError):
            if place.is_file() and place.stat().st_size <= POINTER_BYTES:
                named = Path(place.read_text(encoding="utf-8").strip())
                below = named.parts and not named.is_absolute() and ".." not in named.parts
                if below and (place.parent / named).is_dir():
                    place = place.parent / named
    return place


@cache
def _say_no_links(reason: str) -> None:
    places = "text files with the folder's name take the place of latest, last, best and last_good"
    print(f"rookworld: no links can be made here ({reason}): {places}", file=sys.stderr)


def _make_way(folder: Path) -> None:
    """Remove a folder if another one beside it has the same content; otherwise rename it to `<name>.copied`."""
    beside = (path for path in folder.parent.iterdir() if path != folder and path.is_dir() and not path.is_symlink())
    if any(_same_content(folder, path) for path in beside):
        shutil.rmtree(folder)
        return
    names = (f"{folder.name}.copied{number}" for number in ("", *map(str, range(2, 10**6))))
    folder.rename(next(path for path in map(folder.with_name, names) if not path.exists()))


def _same_content(folder: Path, other: Path) -> bool:
    """Return True if two folders have the same files, byte for byte."""
    names = sorted(entry.name for entry in folder.iterdir())
    if not names or names != sorted(entry.name for entry in other.iterdir()):
        return False
    for one, two in ((folder / name, other / name) for name in names):
        if one.is_dir() and two.is_dir():
            if not _same_content(one, two):
                return False
        elif not (one.is_file() and two.is_file() and filecmp.cmp(one, two, shallow=False)):
            return False
    return True


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk. Some file systems cannot do that for a folder. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not path.is_dir() or error.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append lines to a log; they are on disk when this returns. Without lines the file is not touched."""
    text = "".join(f"{line}\n" for line in lines)
    if text:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a log without line ends. Drops a truncated last line; empty if there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    return [line.removesuffix("\n") for line in lines if line.endswith("\n")]


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file or folder until it is closed; return False if another process has it locked.

    With `shared`, other processes may have shared locks at the same time. On a file system without locks, as some of
    networks are, nothing is locked and the answer is True.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    return True


@contextmanager
def lock_for_writing(path: Path, option: str) -> Iterator[None]:
    """Lock `path`, in a `with` statement, against other processes that use this function to write it.

    The lock is a hidden file in the same folder. It is released however the process ends, and the file is removed when
    the context ends. Raises UserError that names `option` if another process has the lock.
    """
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        # A lock file that another process has just removed locks nothing.
        if not try_lock(descriptor) or not lock.exists() or not os.path.samestat(os.fstat(descriptor), lock.stat()):
            raise UserError(f"{option}: expected to write {path} alone, got it open in another process")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)

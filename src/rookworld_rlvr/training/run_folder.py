"""A run's folder: where it is made, who trains in it, which ones are unfinished, and the link to the newest."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from ..errors import UserError

LATEST = "latest"
CONFIG_FILE, SUMMARY = "config.yaml", "summary.json"
INTERRUPTED = "interrupted"


def make_run_folder(root: Path, name: str, *, now: datetime) -> Path:
    """`root/<date>/<time>-<name>`, with a number behind it where that is taken. Raises UserError."""
    stem = root / now.strftime("%Y-%m-%d") / f"{now.strftime('%H-%M-%S')}-{name}"
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        folder = stem
        for number in range(2, 1000):
            if not folder.exists():
                break
            folder = stem.with_name(f"{stem.name}-{number}")
        folder.mkdir()
    except OSError as error:
        raise UserError(f"output_root: expected a folder to write to, got {root}: {error.strerror}") from error
    return folder


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Meanwhile no other process trains in the folder; however this one ends, it lets go. Raises UserError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"resume: expected a run that no other process trains, got {folder}") from error
        yield
    finally:
        os.close(descriptor)


def point_latest(root: Path, folder: Path) -> None:
    """Make `root/latest` lead to the run, in one rename."""
    link = root / f".{LATEST}-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(folder, root), target_is_directory=True)
    link.replace(root / LATEST)


def unfinished(root: Path) -> Iterator[Path]:
    """The runs under `root` that have not finished and that no other process trains, the newest first."""
    for path in sorted(root.glob(f"*/*/{CONFIG_FILE}"), reverse=True):
        if not _finished(path.parent) and not _is_held(path.parent):
            yield path.parent


def _finished(folder: Path) -> bool:
    summary = folder / SUMMARY
    return summary.is_file() and json.loads(summary.read_text(encoding="utf-8"))["stopped"] != INTERRUPTED


def _is_held(folder: Path) -> bool:
    try:
        with held(folder):
            return False
    except UserError:
        return True

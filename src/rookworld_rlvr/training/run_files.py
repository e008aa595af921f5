"""Files of a run: its folder and lock, the link to the newest run, and transcripts."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import follow, try_lock, whole_lines
from ..rollout.groups import Group, Sample
from .state import StepReport

LATEST = "latest"
CONFIG_FILE, SUMMARY = "config.yaml", "summary.json"
METRICS_FILE, ROLLOUTS_FILE = "metrics.jsonl", "rollouts.jsonl"
BEFORE_ROWS, AFTER_ROWS = "before_rows.jsonl", "after_rows.jsonl"
# Key of the first line of these two files, which says how their rows were measured.
MEASURED = "measured"
# Value of "stopped" in summary.json if a stop was requested; the run can be resumed.
INTERRUPTED = "interrupted"


def make_run_folder(root: Path, name: str, *, now: datetime) -> Path:
    """Make the folder `root/<date>/<time>-<name>`, with a number at the end if it exists. Raises UserError."""
    stem = root / now.strftime("%Y-%m-%d") / f"{now.strftime('%H-%M-%S')}-{name}"
    folder, numbers = stem, count(2)
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        while True:
            # Not after a test whether it exists, because another run may make it in between.
            with suppress(FileExistsError):
                folder.mkdir()
                return folder
            folder = stem.with_name(f"{stem.name}-{next(numbers)}")
    except OSError as error:
        raise UserError(f"output_root: expected a folder to write to, got {root}: {error.strerror}") from error


@contextmanager
def locked(folder: Path, *, option: str = "resume", shared: bool = False) -> Iterator[None]:
    """Lock a training's folder during the block, see `try_lock`. The lock is released however the process ends.

    Raises UserError that names `option` if another process has the folder locked.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if not try_lock(descriptor, shared=shared):
            raise UserError(f"{option}: expected a run that no other process trains, got {folder}")
        yield
    finally:
        os.close(descriptor)


def unfinished(root: Path) -> Iterator[Path]:
    """Yield the runs under `root` that have not finished and that no other process trains, the newest first."""
    for path in sorted(root.glob(f"*/*/{CONFIG_FILE}"), reverse=True):
        if is_unfinished(path.parent) and not _is_locked(path.parent):
            yield path.parent


def unfinished_run(path: Path) -> str:
    """Return a line about a path in the folder of a run that has not finished; empty for any other path."""
    place = follow(path.expanduser()).resolve()
    for folder in (place, *place.parents):
        if (folder / METRICS_FILE).is_file() and is_unfinished(folder):
            return f"{path} is of {folder.name}, which has not finished: it is not evaluated"
    return ""


def is_unfinished(folder: Path) -> bool:
    """Return True if a run has no summary yet or the summary of an interrupted run; False for a damaged summary."""
    summary = folder / SUMMARY
    try:
        return not summary.is_file() or json.loads(summary.read_text(encoding="utf-8"))["stopped"] == INTERRUPTED
    except (ValueError, KeyError, TypeError):
        return False


def _is_locked(folder: Path) -> bool:
    try:
        with locked(folder, shared=True):
            return False
    except UserError:
        return True


def lines_until(path: Path, step: int) -> list[str]:
    """Return the lines of a run's file up to `step`; empty without the file. Raises UserError for a malformed line."""
    kept = []
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"expected a JSON object with a step at {path}:{number}, got {line[:80]!r}") from error
    return kept


def transcript(step: int, group: Group, sample: Sample) -> dict[str, Any]:
    """Return one completion as a JSON object for rollouts.jsonl."""
    failure, reward = sample.score.failure, sample.score.total
    return {
        "step": step,
        "task": group.example.task,
        "prompt": group.example.prompt,
        "completion": sample.text,
        "expected": group.example.completion,
        # JSON has no NaN. A reward that is not finite is reported as a fault.
        "reward": reward if math.isfinite(reward) else None,
        "components": sample.score.components,
        "failure": f"{failure.reason}: {failure.detail}" if failure else None,
        "finished": sample.completion.finished,
    }


def kept_transcripts(report: StepReport) -> list[dict[str, Any]]:
    """Return transcripts of the worst and the best completion of each group."""
    ranked = ((group, sorted(group.samples, key=lambda sample: sample.score.total)) for group in report.groups)
    return [transcript(report.step + 1, group, one) for group, samples in ranked for one in (samples[0], samples[-1])]

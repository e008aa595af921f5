"""Sinks of metrics: the file of a run and the console. Trackers are in `trackers`."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..files import append_lines


class Sink:
    """Receives metrics, transcripts and the summary of a run; the default is to ignore them."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take a step's metrics; step 0 has those of the start."""

    def show(self, step: int, transcripts: Sequence[Mapping[str, Any]]) -> None:
        """Take the transcripts of a step, as rollouts.jsonl has them; behind `write` of that step."""

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Take the summary of a run that has ended."""

    def close(self) -> None:
        """Let go of what it owns."""


class JsonlSink(Sink):
    """One object per step at the file's end. Opened for each: a resumed run cuts the file by a rename."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        append_lines(self._path, [json.dumps({"step": step, **metrics})])


# Text, key, format and unit on the console's line; a step that a fault ended lacks some of them.
SHOWN = (
    ("reward", "reward/mean", "+.3f", ""),
    ("kl", "kl/reference", ".4f", ""),
    ("entropy", "policy/entropy", ".3f", ""),
    ("grad", "optim/grad_norm", ".2f", ""),
    ("lr", "optim/lr", ".1e", ""),
    ("", "throughput/completions_per_s", ".0f", " completions/s"),
)


class ConsoleSink(Sink):
    """One line per step, with the time that the other steps will take."""

    def __init__(self, console: Console, total_steps: int) -> None:
        self._console, self._total = console, total_steps
        self._first: tuple[int, float] | None = None
        """The first step that was written, and when."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if not step:
            return
        now = time.monotonic()
        self._first = self._first or (step, now)
        shown = (f"{text} {metrics[key]:{form}}{unit}".strip() for text, key, form, unit in SHOWN if key in metrics)
        first, since = self._first
        left = (now - since) * (self._total - step) / max(step - first, 1)
        ending = f"  {minutes(left)} left" if first < step < self._total else ""
        self._console.print(f"step {step:>4}/{self._total}  {'  '.join(shown)}{ending}", highlight=False)


def minutes(seconds: float) -> str:
    """A duration as minutes and seconds.

    >>> minutes(522)
    '8:42'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"

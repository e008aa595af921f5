"""Sinks of metrics: the run's metrics file and the console. Experiment trackers are in `trackers`."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..files import append_lines
from ..progress import minutes


class Sink:
    """Receiver of a run's metrics, transcripts and summary. By default it ignores them."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of a step; step 0 has those before training."""

    def show(self, step: int, transcripts: Sequence[Mapping[str, Any]]) -> None:
        """Receive the transcripts of a step, in the form of rollouts.jsonl, after `write` of that step."""

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Receive the summary of a run that has ended."""

    def close(self) -> None:
        """Release the sink's resources."""


class JsonlSink(Sink):
    """Sink that appends one JSON object per step. It opens the file each time, because a resumed run replaces it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        append_lines(self._path, [json.dumps({"step": step, **metrics})])


# Text, key, format and unit of each value on the console's line. A step that a fault ended lacks some of them.
SHOWN = (
    ("reward", "reward/mean", "+.3f", ""),
    ("kl", "kl/reference", ".4f", ""),
    ("entropy", "policy/entropy", ".3f", ""),
    ("grad", "optim/grad_norm", ".2f", ""),
    ("lr", "optim/lr", ".1e", ""),
    ("", "throughput/completions_per_s", ".0f", " completions/s"),
)


class ConsoleSink(Sink):
    """Sink that prints one line per step, with an estimate of the remaining time."""

    def __init__(self, console: Console, total_steps: int) -> None:
        self._console, self._total = console, total_steps
        self._first: tuple[int, float] | None = None
        """First step that was written, and its time."""

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

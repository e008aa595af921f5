"""Where metrics go: a file always, the console, and a tracker if one is chosen."""

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import UserError
from ..evaluation.headline import HEADLINE
from ..files import write_text
from .config import Tracker


def require_tracker(tracker: Tracker) -> None:
    """Raises UserError with the line that installs the tracker where it is missing; imports nothing."""
    if tracker is not Tracker.none and importlib.util.find_spec(tracker.value) is None:
        raise UserError(f"logging={tracker}: expected {tracker} to be installed: pip install {tracker}")


class Sink:
    """Takes what a run tells. What a sink cannot show it lets pass."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take a step's metrics."""

    def show(self, step: int, transcripts: Sequence[Mapping[str, Any]]) -> None:
        """Take the transcripts of a step, as rollouts.jsonl has them; behind `write` of that step."""

    def conclude(self, summary: Mapping[str, Any]) -> None:
        """Take the summary of a run that has ended."""

    def close(self) -> None:
        """Let go of what it owns."""


@dataclass(frozen=True, slots=True)
class Cards:
    """How transcripts are drawn for a tracker."""

    html: Callable[[Sequence[Mapping[str, Any]]], str]
    """Boards as a page of their own."""
    markdown: Callable[[Sequence[Mapping[str, Any]]], str]
    """Boards as text."""


TRANSCRIPTS, BOARDS, CHANGES = "transcripts", "boards", "before and after"
TRANSCRIPT_COLUMNS = ("step", "task", "reward", "failure", "prompt", "completion", "expected")
CHANGE_COLUMNS = ("key", "before", "after", "gain", "low", "high", "moved")


def transcript_rows(transcripts: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """A row a transcript, in the order of TRANSCRIPT_COLUMNS; a text that is not there is empty."""
    known = [transcript | {"failure": transcript["failure"] or "", "expected": transcript["expected"] or ""}
             for transcript in map(dict, transcripts)]  # fmt: skip
    return [[transcript[column] for column in TRANSCRIPT_COLUMNS] for transcript in known]


def change_rows(summary: Mapping[str, Any]) -> list[list[Any]]:
    """A row a headline key that was evaluated before and after, in the order of CHANGE_COLUMNS."""
    moved = {key: part for part in ("better", "worse") for key in summary[part]}
    return [
        [key, *(summary[part][key]["value"] for part in ("before", "after")),
         *(gain[end] for end in ("value", "low", "high")), moved.get(key, "")]
        for key in HEADLINE if (gain := summary["gain"].get(key))
    ]  # fmt: skip


class JsonlSink(Sink):
    """One object a step behind the file's end. Opened for each: a resumed run cuts the file by a rename."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")


# Text, key, format and unit on the console's line; a step that a fault ended has not all of them.
SHOWN = (
    ("reward", "reward/mean", "+.3f", ""),
    ("kl", "kl/reference", ".4f", ""),
    ("entropy", "policy/entropy", ".3f", ""),
    ("grad", "optim/grad_norm", ".2f", ""),
    ("lr", "optim/lr", ".1e", ""),
    ("", "throughput/completions_per_s", ".0f", " completions/s"),
)


class ConsoleSink(Sink):
    """One line per step."""

    def __init__(self, console: Console, total_steps: int) -> None:
        self._console, self._total = console, total_steps

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        shown = (f"{text} {metrics[key]:{form}}{unit}".strip() for text, key, form, unit in SHOWN if key in metrics)
        self._console.print(f"step {step:>4}/{self._total}  {'  '.join(shown)}", highlight=False)


class TensorBoardSink(Sink):
    """Scalars under the metrics' names; tables and boards as text, since TensorBoard draws no SVG."""

    def __init__(self, folder: Path, cards: Cards) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))
        self._cards, self._step = cards, 0

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = step
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)

    def show(self, step: int, transcripts: Sequence[Mapping[str, Any]]) -> None:
        self._writer.add_text(TRANSCRIPTS, _markdown(TRANSCRIPT_COLUMNS, transcript_rows(transcripts)), step)
        self._writer.add_text(BOARDS, self._cards.markdown(transcripts), step)

    def conclude(self, summary: Mapping[str, Any]) -> None:
        if rows := change_rows(summary):
            self._writer.add_text(CHANGES, _markdown(CHANGE_COLUMNS, rows), self._step)

    def close(self) -> None:
        self._writer.close()


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; blanks are drawn together, and a bar would end a cell."""
    lines = [columns, ["---"] * len(columns), *rows]
    cells = ([" ".join(str(cell).split()).replace("|", "/") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def cut_lines(path: Path, step: int) -> None:
    """Drop the lines behind `step`, which a resumed run writes again. An absent file stays absent."""
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
    write_text(path, "".join(kept))

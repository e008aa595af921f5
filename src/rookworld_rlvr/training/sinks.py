"""Sinks of metrics: the run's metrics file, the console and experiment trackers.

Weights & Biases and TensorBoard are imported only if they are chosen.
"""

import importlib.util
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import UserError, first_line
from ..evaluation.headline import headline_keys
from ..files import append_lines, write_text
from ..progress import minutes
from .config import Tracker


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


class Observer(Sink):
    """A sink that a run does not need: its first error is said in a line, and from then on it is left out.

    An error is any exception, because trackers raise those of their processes, connections and files.
    """

    def __init__(self, name: str, sink: Sink, say: Callable[[str], object]) -> None:
        self._name, self._say = name, say
        self._sink: Sink | None = sink

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._tell(lambda sink: sink.write(step, metrics))

    def show(self, step: int, transcripts: Sequence[Mapping[str, Any]]) -> None:
        self._tell(lambda sink: sink.show(step, transcripts))

    def conclude(self, summary: Mapping[str, Any]) -> None:
        self._tell(lambda sink: sink.conclude(summary))

    def close(self) -> None:
        self._tell(lambda sink: sink.close())

    def _tell(self, work: Callable[[Sink], None]) -> None:
        if self._sink is None:
            return
        try:
            work(self._sink)
        except Exception as error:
            failed, self._sink = self._sink, None
            what = f"{type(error).__name__}: {first_line(error)}"
            self._say(f"{self._name} is left out from here on, metrics.jsonl has all steps: {what}")
            with suppress(Exception):
                failed.close()


class JsonlSink(Sink):
    """Sink that appends one JSON object per step: the record, without which a run ends.

    It opens the file each time, because a resumed run replaces it.
    """

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


# Project in Weights & Biases, unless the environment variable WANDB_PROJECT names another.
PROJECT = "rookworld-rlvr"
# File of a run's folder with the id of its W&B run.
WANDB_ID = "wandb_id"
# Seconds that W&B may take to start, before training, and to upload the rest at the end; unlimited by default. Offline
# both take less than a second. Earlier versions lack the second setting.
WANDB_LIMITS = {"init_timeout": 30.0, "finish_timeout": 300.0, "finish_timeout_raises": True}


def require_tracker(tracker: Tracker) -> None:
    """Raise UserError, with the command that installs the tracker, if it is not installed. It is not imported."""
    if tracker is not Tracker.none and importlib.util.find_spec(tracker.value) is None:
        raise UserError(f"logging.tracker={tracker}: expected {tracker} to be installed: pip install {tracker}")


def make_tracker(tracker: Tracker, folder: Path, settings: Mapping[str, Any]) -> Sink:
    """Return the tracker, for a run's folder and its settings. Raises UserError if it does not start."""
    try:
        match tracker:
            case Tracker.tensorboard:
                return TensorBoardSink(folder)
            case Tracker.wandb:
                return WandbSink(folder, settings)
    # wandb raises its own errors, those of pydantic, and those of its process and connection.
    except Exception as error:
        # pydantic's first line does not have the reason.
        reason = " ".join(str(error).split()) or type(error).__name__
        advice = "; WANDB_MODE=offline needs no account and no network" if tracker is Tracker.wandb else ""
        raise UserError(f"logging.tracker={tracker}: expected it to start, got: {reason}{advice}") from error
    raise ValueError(f"expected a tracker, got {tracker}")


TRANSCRIPTS, CHANGES = "transcripts", "before and after"
TRANSCRIPT_COLUMNS = ("step", "task", "reward", "failure", "prompt", "completion", "expected")
CHANGE_COLUMNS = ("key", "before", "after", "gain", "low", "high", "moved")


def transcript_rows(transcripts: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return one row per transcript, in the order of TRANSCRIPT_COLUMNS. Missing texts are empty."""
    known = [transcript | {"failure": transcript["failure"] or "", "expected": transcript["expected"] or ""}
             for transcript in map(dict, transcripts)]  # fmt: skip
    return [[transcript[column] for column in TRANSCRIPT_COLUMNS] for transcript in known]


def change_rows(summary: Mapping[str, Any]) -> list[list[Any]]:
    """Return one row per headline key that was evaluated before and after, in the order of CHANGE_COLUMNS."""
    moved = {key: part for part in ("better", "worse") for key in summary[part]}
    return [
        [key, *(summary[part][key]["value"] for part in ("before", "after")),
         *(gain[end] for end in ("value", "low", "high")), moved.get(key, "")]
        for key in headline_keys() if (gain := summary["gain"].get(key))
    ]  # fmt: skip


class TensorBoardSink(Sink):
    """TensorBoard run: metrics are scalars under their own names, tables are text."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open = partial(SummaryWriter, str(folder / "tensorboard"))
        self._step: int | None = None

    @cached_property
    def _writer(self) -> Any:
        """The writer, opened at the first step: TensorBoard then hides that step and later ones of an earlier start."""
        return self._open(purge_step=self._step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = step
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)

    def show(self, step: int, transcripts: Sequence[Mapping[str, Any]]) -> None:
        self._writer.add_text(TRANSCRIPTS, _markdown(TRANSCRIPT_COLUMNS, transcript_rows(transcripts)), step)

    def conclude(self, summary: Mapping[str, Any]) -> None:
        if rows := change_rows(summary):
            self._writer.add_text(CHANGES, _markdown(CHANGE_COLUMNS, rows), self._step)

    def close(self) -> None:
        if "_writer" in vars(self):
            self._writer.close()


class WandbSink(Sink):
    """Weights & Biases run. It is offline: it needs no account and can be uploaded later with `wandb sync`.

    `WANDB_MODE=online` in the environment uploads at once, and `WANDB_PROJECT` names another project; an empty variable
    counts as unset. A resumed run continues its W&B run, whose id is in the run's folder.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        # A compose file makes empty variables of those that are not set. wandb would refuse them.
        for name in [name for name, value in os.environ.items() if name.startswith("WANDB_") and not value]:
            del os.environ[name]
        # Slow to import, and installed only if it is used.
        import wandb

        self._wandb: Any = wandb
        self._step = 0
        limits = {name: value for name, value in WANDB_LIMITS.items() if name in wandb.Settings.model_fields}
        known = _wandb_id(folder)
        self._run: Any = wandb.init(
            id=os.environ.get("WANDB_RUN_ID") or known or None,
            resume="allow" if known else None,
            settings=wandb.Settings(**limits),
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            config=dict(settings),
        )
        if not self._run.disabled:
            write_text(folder / WANDB_ID, f"{self._run.id}\n")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = step
        self._run.log(dict(metrics), step=step)

    def show(self, step: int, transcripts: Sequence[Mapping[str, Any]]) -> None:
        table = self._wandb.Table(columns=list(TRANSCRIPT_COLUMNS), data=transcript_rows(transcripts))
        self._run.log({TRANSCRIPTS: table}, step=step)

    def conclude(self, summary: Mapping[str, Any]) -> None:
        if rows := change_rows(summary):
            self._run.log({CHANGES: self._wandb.Table(columns=list(CHANGE_COLUMNS), data=rows)}, step=self._step)

    def close(self) -> None:
        try:
            self._run.finish()
        except ConnectionError:
            # Its process has ended. Otherwise wandb would print a traceback at exit, and no further run could start.
            with suppress(Exception):
                self._wandb.teardown()
            raise


def _wandb_id(folder: Path) -> str:
    """Return the id of the W&B run of a run's folder; empty if it has none."""
    path = folder / WANDB_ID
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else ""


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table. Runs of blanks become one, and bars become slashes, because a bar would end a cell."""
    lines = [columns, ["---"] * len(columns), *rows]
    cells = ([" ".join(str(cell).split()).replace("|", "/") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)

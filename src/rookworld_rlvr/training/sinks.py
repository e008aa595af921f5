"""Where metrics go: a file always, the console, and a tracker if one is chosen."""

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from ..errors import UserError
from ..files import write_text


class Tracker(StrEnum):
    """An experiment tracker beside metrics.jsonl."""

    none = "none"
    wandb = "wandb"
    tensorboard = "tensorboard"


@dataclass(slots=True)
class LoggingConfig:
    """What is written, how often."""

    tracker: Tracker = Tracker.none
    wandb_project: str = "rookworld-rlvr"
    wandb_mode: str = "offline"
    """wandb's mode: online, offline (no account needed) or disabled."""
    console_every: int = 1
    """Steps between lines on the console."""

    def __post_init__(self) -> None:
        if self.wandb_mode not in ("online", "offline", "disabled"):
            raise ValueError(f"logging.wandb_mode: expected online, offline or disabled, got {self.wandb_mode}")
        if self.console_every < 1:
            raise ValueError("logging.console_every: expected 1 or more")


def require_tracker(tracker: Tracker) -> None:
    """Raises UserError with the line that installs the tracker where it is missing; imports nothing."""
    if tracker is not Tracker.none and importlib.util.find_spec(tracker.value) is None:
        raise UserError(f"logging={tracker}: expected {tracker} to be installed: pip install {tracker}")


class Sink(Protocol):
    """Takes each step's metrics."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class JsonlSink:
    """One object a step behind the file's end. Opened for each: a resumed run cuts the file by a rename."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")

    def close(self) -> None:
        return


# Text, key, format and unit on the console's line; a step that a fault ended has not all of them.
SHOWN = (
    ("reward", "reward/mean", "+.3f", ""),
    ("kl", "kl/reference", ".4f", ""),
    ("entropy", "policy/entropy", ".3f", ""),
    ("grad", "optim/grad_norm", ".2f", ""),
    ("lr", "optim/lr", ".1e", ""),
    ("", "throughput/completions_per_s", ".0f", " completions/s"),
)


class ConsoleSink:
    """One line a step."""

    def __init__(self, console: Console, total_steps: int, every: int) -> None:
        self._console, self._total, self._every = console, total_steps, every

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if step % self._every and step != self._total:
            return
        shown = (f"{text} {metrics[key]:{form}}{unit}".strip() for text, key, form, unit in SHOWN if key in metrics)
        self._console.print(f"step {step:>4}/{self._total}  {'  '.join(shown)}", highlight=False)

    def close(self) -> None:
        return


class TensorBoardSink:
    """Scalars under the metrics' names."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


def cut_lines(path: Path, step: int) -> None:
    """Drop the lines behind `step`, which a resumed run writes again. An absent file stays absent."""
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
    write_text(path, "".join(kept))

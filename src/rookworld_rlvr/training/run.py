"""A run of the trainer, built by `app.build`, and the display of its progress."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..evaluation.completions import Sampling
from ..model.policy import Policy
from ..rewards.move_evaluations import MoveEvaluations
from ..rollout.generator import Generator
from ..tasks.types import Example
from .config import RunConfig
from .data import Data, evaluation_rows
from .health import SignWatch
from .sinks import Sink, minutes
from .state import StepContext

P = ParamSpec("P")
Result = TypeVar("Result")
# Seconds between lines about the progress of an evaluation or a match, without a terminal.
LINE_EVERY_S = 30.0


@dataclass(slots=True)
class Run:
    """A run and its current state."""

    context: StepContext
    data: Data
    console: Console
    evaluations: MoveEvaluations
    """Move evaluations for held-out rows; labels and rules are used as well."""
    make_generator: Callable[[Policy], Generator]
    """Makes a generator for a model other than the trained one."""
    folder: Path = Path()
    sinks: list[Sink] = field(default_factory=list)
    config_text: str = ""
    """Resolved configuration. A resumed run writes it to its folder once its checkpoint has loaded."""
    signs: SignWatch = field(default_factory=SignWatch)
    stop_requested: bool = False

    @property
    def config(self) -> RunConfig:
        return self.context.config

    @property
    def sampled(self) -> tuple[Example, ...]:
        """Held-out rows that are also sampled."""
        return evaluation_rows(self.data.held_out, self.config.sampled_rows)

    @property
    def sampling(self) -> Sampling:
        """Sampling settings for held-out rows."""
        return Sampling(self.config.generator.temperature, seed=self.config.seed)

    def close(self) -> None:
        """End every thread and process that samples, scores or evaluates."""
        try:
            self.context.sampler.scorer.close()
        finally:
            self.evaluations.close()


@contextmanager
def progress(
    console: Console, name: str, total: int, *, start: int = 0, unit: str = "rows"
) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how much of `total` is done: a bar on a terminal, otherwise occasional lines."""
    if not console.is_terminal:
        yield _progress_lines(console, name, total, start, unit)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=total, completed=start)
        yield lambda done: bar.update(task, completed=done)


def _progress_lines(console: Console, name: str, total: int, start: int, unit: str) -> Callable[[int], None]:
    began = last_line = time.monotonic()

    def show(done: int) -> None:
        nonlocal last_line
        now = time.monotonic()
        if now - last_line < LINE_EVERY_S or not start < done < total:
            return
        last_line = now
        left = minutes((now - began) * (total - done) / (done - start))
        console.print(f"{name}: {done:,} of {total:,} {unit}, {left} left", highlight=False)

    return show

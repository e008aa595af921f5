"""A run of the trainer, built by `app.build`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ..evaluation.completions import Sampling
from ..model.policy import Policy
from ..rewards.move_evaluations import MoveEvaluations
from ..rollout.generator import Generator
from ..tasks.types import Example
from .config import RunConfig
from .data import Data, evaluation_rows
from .health import SignWatch
from .sinks import Sink
from .state import StepContext


@dataclass(slots=True)
class Run:
    """A run and its current state."""

    config: RunConfig
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
    def sampled(self) -> tuple[Example, ...]:
        """Held-out rows that are also sampled."""
        return evaluation_rows(self.data.held_out, self.config.evaluation.sampled_rows)

    @property
    def validation_every(self) -> int:
        """Number of steps between two validations; 0 for none, also if no task had ten rows to hold some back."""
        return self.config.evaluation.curve_every if self.data.validation else 0

    @property
    def sampling(self) -> Sampling:
        """Sampling settings for held-out rows."""
        return Sampling(self.config.generator.temperature, seed=self.config.seed)

    def say(self, line: str) -> None:
        """Print a line on the console as it is. Brackets, which a path or a name may have, are not markup."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """End every thread and process that samples, scores or evaluates."""
        try:
            self.context.sampler.scorer.close()
        finally:
            self.evaluations.close()

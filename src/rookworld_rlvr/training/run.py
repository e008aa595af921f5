"""Everything a run needs, built by `app.wiring`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ..evaluation import MoveEvaluator
from ..evaluation.sampled import Sampling
from ..model.policy import Policy
from ..rollout.generator import Generator
from ..stability.recovery import RecoveryConfig
from ..stability.reference import ReferenceConfig
from ..tasks import Example
from .config import RunConfig
from .context import StepContext
from .data import evaluation_rows
from .self_play_files import SelfPlayFiles
from .sinks import Sink
from .warning_signs import SignWatch


@dataclass(slots=True)
class Run:
    """A run and where it stands."""

    context: StepContext
    config: RunConfig
    reference: ReferenceConfig
    recovery: RecoveryConfig
    train_examples: tuple[Example, ...]
    validation_examples: tuple[Example, ...]
    """Empty where neither validation nor the reference needs them."""
    held_out: Sequence[Example]
    folder: Path
    sinks: list[Sink]
    console: Console
    rubric_warmup_steps: int = 0
    """Until then rewards rise by schedule, and their trend says nothing."""
    config_text: str = ""
    """The resolved configuration; a resumed run writes it once its checkpoint has loaded."""
    resume: str = ""
    engine: MoveEvaluator | None = None
    """Measures held-out rows beside labels and rules."""
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=1.0))
    """How held-out rows are sampled."""
    make_generator: Callable[[Policy], Generator] | None = None
    """Makes the generator of another model than the trained one; None where no match is played."""
    self_play_files: SelfPlayFiles | None = None
    """Writer of the self-play records; None without self-play prompts, or without a folder."""
    notes: Sequence[str] = ()
    """What is to be told before the run begins, as what was left out of the data."""
    latest_in: Path | None = None
    """Where `latest` is made to lead to this run once its preflight checks have passed; None leaves it."""
    signs: SignWatch = field(default_factory=SignWatch)
    stop_requested: bool = field(default=False)

    @property
    def sampled(self) -> Sequence[Example]:
        """The held-out rows that are sampled too."""
        return evaluation_rows(tuple(self.held_out), self.config.sampled_rows)

    def close(self) -> None:
        """End every process that judges or measures."""
        try:
            self.context.batches.close()
            self.context.scorer.close()
        finally:
            if self.engine is not None:
                self.engine.close()

"""Everything a run needs, built by `app.wiring`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ..evaluation import MoveEvaluator
from ..evaluation.sampled import Sampling
from ..model.policy import Policy
from ..model.world import Distributed, DistributedConfig
from ..rollout.generator import Generator
from ..stability.recovery import RecoveryConfig
from ..stability.reference import ReferenceConfig
from ..tasks import Example
from .context import StepContext
from .data import evaluation_rows
from .self_play_files import SelfPlayFiles
from .sinks import Sink
from .validation import ValidationConfig
from .warning_signs import SignWatch, WarningsConfig


@dataclass(slots=True)
class TrainerConfig:
    """How long a run is and what it leaves behind."""

    steps: int = 200
    """Steps, each of one or more updates."""
    max_minutes: float = 0.0
    """Stop after this many minutes of steps, whatever is left; 0: no limit."""
    checkpoint_every: int = 20
    """Steps between checkpoints; the last step always has one. A restore goes back to one of them."""
    keep_checkpoints: int = 2
    """The newest this many stay, beside the best and the last good one."""
    evaluation_rows: int = 2048
    """Held-out rows a task, evaluated before and after; 0: no evaluation, sampled answers and match included."""
    sampled_rows: int = 256
    """The first so many held-out rows a task are also answered 8 times at the training temperature; 0: none are."""
    match_pairs: int = 100
    """Pairs of games of the trained model against the one it began from, at the end; 0: none."""
    match_plies: int = 100
    """Such a game is cut there and counts as drawn."""
    evaluation_nodes: int = 0
    """Nodes a held-out position of the engine (rubric.stockfish) that measures policy/win_probability_loss; 0: the
    verdicts of rubric.move_evals do, or with rubric.source=engine its engines."""
    rollouts_every: int = 10
    """Steps between transcripts; the first and the last step have them too. 0: none."""
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    warnings: WarningsConfig = field(default_factory=WarningsConfig)
    max_staleness: int = 0
    """1: the next step's batch is sampled while this one is trained, from weights that are one step older."""
    processes: int = 1
    """Processes on this machine that train together, with `distributed`; each takes its share of the cores."""
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

    def __post_init__(self) -> None:
        if self.steps < 1 or self.checkpoint_every < 1 or self.keep_checkpoints < 1:
            raise ValueError("expected steps, checkpoint_every and keep_checkpoints of at least 1")
        if self.max_staleness not in (0, 1):
            raise ValueError(f"max_staleness: expected 0 or 1, got {self.max_staleness}")
        if self.processes < 1 or (self.processes > 1 and self.distributed.kind is Distributed.none):
            raise ValueError(
                f"processes: expected 1 or more, several with distributed=ddp or fsdp2, got {self.processes}"
            )
        if self.evaluation_nodes < 0:
            raise ValueError(f"evaluation_nodes: expected 0 or more, got {self.evaluation_nodes}")
        if self.max_minutes < 0 or self.evaluation_rows < 0 or self.rollouts_every < 0:
            raise ValueError("expected max_minutes, evaluation_rows and rollouts_every from 0 up")
        if self.sampled_rows < 0 or self.match_pairs < 0 or self.match_plies < 1:
            raise ValueError("expected sampled_rows and match_pairs from 0 up and match_plies from 1")


@dataclass(slots=True)
class Run:
    """A run and where it stands."""

    context: StepContext
    config: TrainerConfig
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
    signs: SignWatch = field(default_factory=lambda: SignWatch(WarningsConfig()))
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

"""Configuration of a training run: the whole of it, and the parts that belong to no other package.

`RunConfig` composes what stands here with the dataclasses of other packages, each beside its owner.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from ..evaluation.mate_in_one import MateInOneConfig
from ..model.device import Device, Precision
from ..model.policy import ModelConfig
from ..model.world import Distributed, DistributedConfig
from ..objective import AdvantageConfig, ClipConfig, LossKind, MismatchConfig
from ..rewards import RubricConfig
from ..rollout.generator import GeneratorConfig
from ..stability.kl_control import KLConfig
from ..stability.recovery import RecoveryConfig
from ..stability.reference import ReferenceConfig
from ..tasks.prompt_stream import MixtureConfig
from .optim import OptimConfig

DEFAULT = "default"


class ZeroVariance(StrEnum):
    """Treatment of a zero-variance group: one of equal rewards, or under the outcome filter of equal outcomes."""

    keep = "keep"
    """It stays, with advantage 0: its KL and entropy terms count, and so do its tokens."""
    drop = "drop"
    """It is not trained on."""
    refill = "refill"
    """Other prompts are sampled in its place, up to 3 times (dynamic sampling, arXiv 2503.14476). Groups that still
    have zero variance then are dropped."""


class Truncated(StrEnum):
    """Treatment of a completion that was cut by max_new_tokens."""

    score = "score"
    """It is scored as it is and trained on."""
    mask = "mask"
    """It counts in its group's mean and is not trained on (overlong filtering, arXiv 2503.14476)."""


@dataclass(slots=True)
class CollectionConfig:
    """Choice of the sampled completions that a step trains on."""

    zero_variance: ZeroVariance = ZeroVariance.keep
    truncated: Truncated = Truncated.score


@dataclass(slots=True)
class StepConfig:
    """Size of a step's batch, and the objective of its updates."""

    loss: LossKind = LossKind.dapo
    """Surrogate, and what it is divided by."""
    prompts_per_step: int = 16
    """P: prompts per step."""
    group_size: int = 8
    """G: completions per prompt."""
    epochs: int = 1
    """Passes over the step's batch."""
    minibatches: int = 1
    """Updates per pass: the batch is cut into this many parts, at random if there are several."""
    collection: CollectionConfig = field(default_factory=CollectionConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    clip: ClipConfig = field(default_factory=ClipConfig)
    mismatch: MismatchConfig = field(default_factory=MismatchConfig)
    entropy_coef: float = 0.0
    """Coefficient of the entropy bonus: the loss falls by it times the entropy of each trained token's distribution."""
    all_moves_coef: float = 0.3
    """Coefficient of the expected value of the first candidate over all legal moves, whose gradient needs no samples.
    Only positions with move evaluations have it; 0: none."""

    def __post_init__(self) -> None:
        if self.prompts_per_step < 1 or self.group_size < 2:
            raise ValueError("objective: expected prompts_per_step from 1 and group_size from 2")
        if self.epochs < 1 or self.minibatches < 1:
            raise ValueError("objective: expected epochs and minibatches from 1")
        if not 0 <= self.entropy_coef < math.inf:
            raise ValueError(f"objective.entropy_coef: expected a finite number from 0 up, got {self.entropy_coef}")
        if not 0 <= self.all_moves_coef < math.inf:
            raise ValueError(f"objective.all_moves_coef: expected a finite number from 0 up, got {self.all_moves_coef}")

    @property
    def updates(self) -> int:
        """Updates per step."""
        return self.epochs * self.minibatches


@dataclass(slots=True)
class ValidationConfig:
    """Learning curve: rows that are held back from the run's own training rows, sampled now and then."""

    every: int = 25
    """Steps between validations, which give the learning curve and decide which checkpoint is the best; the start and
    the last step have one too. 0: none; the training is the same."""
    rows: int = 128
    """Rows per task that are held back, at most a tenth of the task's training rows."""

    def __post_init__(self) -> None:
        if self.every < 0 or self.rows < 1:
            raise ValueError(f"validation: expected every from 0 and rows from 1, got {self.every} and {self.rows}")


@dataclass(slots=True)
class SourceConfig:
    """Sources: `default` (ships with us), a .txt or .jsonl file, a dataset's folder or its hub name."""

    train: str = DEFAULT
    """Training examples: `default` (ships with the package), a `.txt`, `.jsonl`, `.fen`, `.epd` or `.pgn` file, a
    dataset's folder or its hub name. `evaluate` leaves out their positions."""
    held_out: str = DEFAULT
    """Examples to evaluate on; empty: a tenth of the training source's positions."""
    split: str = "train"
    """Split of a dataset that is read; files have none."""
    limit: int | None = None
    """Most rows read of each source; positions to keep apart are read of the whole of it."""
    exclude: list[str] = field(default_factory=list)
    """Sources whose positions are left out: not trained on, and not used by `evaluate`."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"data.limit: expected 1 or more, or null, got {self.limit}")


@dataclass(slots=True)
class DataConfig(SourceConfig):
    """Sources, and the stream of prompts that is drawn from them."""

    mixture: MixtureConfig = field(default_factory=MixtureConfig)


class Tracker(StrEnum):
    """An experiment tracker beside metrics.jsonl."""

    none = "none"
    wandb = "wandb"
    tensorboard = "tensorboard"


@dataclass(slots=True)
class LoggingConfig:
    """Experiment trackers beside metrics.jsonl."""

    tracker: Tracker = Tracker.none
    project: str = "rookworld-rlvr"
    """The project of wandb."""


@dataclass(slots=True)
class RunConfig:
    """`rookworld train` and `rookworld smoke`."""

    steps: int = 200
    """Steps, each of one or more updates."""
    max_minutes: float = 0.0
    """Stop after this many minutes of steps, whatever is left; 0: no limit."""
    checkpoint_every: int = 25
    """Steps between checkpoints; the last step always has one. A restore goes back to one of them. One whose step has a
    validation may become the best."""
    keep_checkpoints: int = 2
    """The newest this many stay, beside the best and the last good one."""
    start_share: float = 0.5
    """Share of the start's weights in the model that is validated, evaluated and left in the checkpoints: training goes
    on with its own. 0: the trained weights alone."""
    evaluation_rows: int = 2048
    """Held-out rows per task, evaluated before and after; 0: no evaluation, sampled rows and match included."""
    sampled_rows: int = 256
    """The first so many held-out rows per task are also sampled 8 times at the training temperature; 0: none are."""
    mate_in_one: MateInOneConfig = field(default_factory=MateInOneConfig)
    """Mates in one that are evaluated before and after, beside those among the held-out rows."""
    match_pairs: int = 32
    """Pairs of games of the trained model against the one it began from, at the end; 0: none."""
    match_plies: int = 60
    """A game of this match that reaches this many plies ends and is adjudicated."""
    evaluation_nodes: int = 0
    """Nodes per held-out position of the engine (rubric.stockfish) that measures policy/win_probability_loss; 0: the
    evaluations of rubric.move_evals do, or with rubric.source=engine its engines."""
    rollouts_every: int = 10
    """Steps between transcripts; the first and the last step have them too. 0: none."""
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    max_staleness: int = 0
    """1: the next step's batch is sampled while this one is trained, from weights that are one step older."""
    processes: int = 1
    """Processes on this machine that train together, with `distributed`; each takes its share of the cores."""
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    name: str = "grpo"
    """Ends the name of the run's folder."""
    seed: int = 0
    """Seed of python, torch, the order of examples and every sample; decides the held-out positions if data.held_out
    is empty."""
    device: Device = Device.auto
    """Device of the model; `auto` takes CUDA where there is one, else the CPU."""
    precision: Precision = Precision.auto
    """Arithmetic of forward passes; weights and optimiser are float32 in all."""
    threads: int = 0
    """CPU threads; 0: torch's own choice. One thread gives the same bits on every machine of a kind."""
    output_root: str = "outputs"
    """Runs go to <output_root>/<date>/<time>-<name>."""
    resume: str = ""
    """A run's folder or one of its checkpoints: go on there, with the config it was begun with. `auto`: the newest run
    under output_root with this configuration that has not finished, else a new one."""
    trust: bool = False
    """Start the programs and call the addresses that the resumed run's own configuration names. Without it they are
    refused: the folder may be a stranger's."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rubric: RubricConfig = field(default_factory=RubricConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    objective: StepConfig = field(default_factory=StepConfig)
    kl: KLConfig = field(default_factory=KLConfig)
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)

    def __post_init__(self) -> None:
        if self.steps < 1 or self.checkpoint_every < 1 or self.keep_checkpoints < 1:
            raise ValueError("expected steps, checkpoint_every and keep_checkpoints of at least 1")
        if self.max_staleness not in (0, 1):
            raise ValueError(f"max_staleness: expected 0 or 1, got {self.max_staleness}")
        if self.processes < 1 or (self.processes > 1 and self.distributed.kind is Distributed.none):
            raise ValueError(
                f"processes: expected 1 or more, several with distributed=ddp or fsdp2, got {self.processes}"
            )
        if not 0 <= self.start_share < 1:
            raise ValueError(f"start_share: expected a number from 0 and below 1, got {self.start_share}")
        if self.evaluation_nodes < 0:
            raise ValueError(f"evaluation_nodes: expected 0 or more, got {self.evaluation_nodes}")
        if self.max_minutes < 0 or self.evaluation_rows < 0 or self.rollouts_every < 0:
            raise ValueError("expected max_minutes, evaluation_rows and rollouts_every from 0 up")
        if self.sampled_rows < 0 or self.match_pairs < 0 or self.match_plies < 1:
            raise ValueError("expected sampled_rows and match_pairs from 0 up and match_plies from 1")

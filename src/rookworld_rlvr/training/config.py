"""Configuration of a training run.

`RunConfig` combines the dataclasses of this module with those that other packages define for their own options.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from ..errors import prefixed
from ..evaluation.config import EvaluationConfig
from ..model.device import Device, Precision
from ..model.loading import ModelConfig
from ..model.world import Distributed
from ..objective import KLConfig, ObjectiveConfig
from ..rewards import RubricConfig
from ..rollout.generator import GeneratorConfig
from ..stability.recovery import RecoveryConfig
from ..stability.reference import ReferenceConfig
from ..tasks import Task, task_named
from ..tasks.chat.prompts import ChatPromptConfig
from ..tasks.prompt_stream import shares
from .optim import OptimConfig

DEFAULT = "default"


def longest(tasks: Iterable[Task]) -> int:
    """Return the largest number of tokens that one of the tasks allows a completion."""
    return max(task.max_new_tokens for task in tasks)


@dataclass(slots=True)
class DataConfig:
    """Data sources, and the tasks whose prompts are made from them."""

    train: str = DEFAULT
    """Source of the training examples: `default` (ships with the package), a `.txt`, `.jsonl`, `.fen`, `.epd`, `.pgn`
    or `.csv` file (puzzles of Lichess), a dataset's folder or its hub name. `NAME:SPLIT` reads another split of a
    dataset than `train`. `evaluate` does not use the positions of this source."""
    held_out: str = DEFAULT
    """Source of the examples to evaluate on, as for `train`. Empty: a tenth of the training source's positions."""
    limit: int | None = None
    """Maximum number of rows read from each source; null: all. Positions that training and held-out rows must not share
    are always taken from the whole source."""
    exclude: list[str] = field(default_factory=list)
    """Sources whose positions are excluded from training and from `evaluate`."""
    tasks: list[str] = field(default_factory=lambda: ["policy:3", "environment:1"])
    """Tasks, as NAME or NAME:WEIGHT. Their shares among the prompts are in proportion to the weights, 1 without one. A
    task of weight 0 is evaluated and not trained. A task that needs only positions takes those of other tasks' rows.
    The first one that names a move plays games, puzzles and mates in one."""
    chat: ChatPromptConfig = field(default_factory=ChatPromptConfig)
    """Prompts of the chat task."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"data.limit: expected 1 or more, or null, got {self.limit}")
        with prefixed("data.tasks", ValueError):
            self.task_objects()

    def task_objects(self) -> tuple[Task, ...]:
        """Return the tasks with their options, in their order. Raises ValueError for an unknown name."""
        return tuple(task_named(name).configured(getattr(self, name, None)) for name in shares(self.tasks))

    def player(self) -> Task | None:
        """Return the first task that names a move; None if there is none."""
        return next((task for task in self.task_objects() if task.names_move), None)


class Tracker(StrEnum):
    """Experiment tracker, in addition to metrics.jsonl."""

    none = "none"
    wandb = "wandb"
    tensorboard = "tensorboard"


@dataclass(slots=True)
class LoggingConfig:
    """Options of the experiment tracker."""

    tracker: Tracker = Tracker.none


@dataclass(slots=True)
class RunConfig:
    """Options of `rookworld train` and `rookworld smoke`."""

    steps: int = 200
    """Number of steps, each of one or more updates."""
    max_minutes: float = 0.0
    """Minutes of steps, since the start or the last resume, after which training stops even if steps remain. 0: no
    limit."""
    checkpoint_every: int = 25
    """Number of steps between checkpoints; the last step always has one. A restore returns to one of them. With
    validation, only a checkpoint whose step is validated can become the best."""
    start_share: float = 0.5
    """Share of the starting model's weights in the average that is validated, evaluated and saved. Training itself
    continues from the trained weights. 0: the trained weights alone."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    processes: int = 1
    """Number of processes on this machine that train together and share its cores."""
    distributed: Distributed = Distributed.ddp
    """How several processes share the work: `ddp`, or `fsdp2` for weights in shards."""
    name: str = "grpo"
    """Name of the run, used in the name of its folder."""
    seed: int = 0
    """Seed of python, torch, the order of examples and every sample. It also decides the held-out positions if
    data.held_out is empty."""
    device: Device = Device.auto
    """Device of the model; `auto` uses CUDA if it is available, else the CPU."""
    precision: Precision = Precision.auto
    """Arithmetic of forward passes. Weights and optimiser state are always float32."""
    threads: int = 0
    """Number of CPU threads; 0: torch's default. One thread gives the same bits on all machines of the same kind."""
    output_root: str = "outputs"
    """Folder for all runs. Each run is saved in <output_root>/<date>/<time>-<name>."""
    resume: str = ""
    """Folder of a run to resume, or one of its checkpoints. It keeps the configuration it was started with, except for
    options given now, and for programs and addresses, which must be given again. `auto`: the newest unfinished run
    under output_root with this configuration, else a new run."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rubric: RubricConfig = field(default_factory=RubricConfig)
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    kl: KLConfig = field(default_factory=KLConfig)
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    recovery: RecoveryConfig = field(default_factory=RecoveryConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)

    def __post_init__(self) -> None:
        if self.steps < 1 or self.checkpoint_every < 1:
            raise ValueError(
                f"expected steps and checkpoint_every of at least 1, got {self.steps} and {self.checkpoint_every}"
            )
        if abs(self.seed) >= 2**63:
            raise ValueError(f"seed: expected a number of at most 63 bits, got {self.seed}")
        if self.processes < 1:
            raise ValueError(f"processes: expected 1 or more, got {self.processes}")
        if not 0 <= self.start_share < 1:
            raise ValueError(f"start_share: expected a number from 0 and below 1, got {self.start_share}")
        self.generator.max_new_tokens = self.generator.max_new_tokens or longest(self.data.task_objects())
        if not 0 <= self.max_minutes < math.inf:
            raise ValueError(f"max_minutes: expected from 0 up, got {self.max_minutes}")

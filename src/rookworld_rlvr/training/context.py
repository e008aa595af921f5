"""What a step is configured by, and what it works with."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..model.policy import Policy
from ..objective import AdvantageConfig, ClipConfig, LossKind, MismatchConfig
from ..rewards.judge_pool import Judge
from ..rollout.generator import Generator
from ..tasks.sampler import Sampler
from .collection import CollectionConfig
from .entropy_control import EntropyConfig, EntropyController
from .guards import Guards
from .hooks import Hook, Moment
from .kl_control import KLConfig, KLController
from .optim import Clock, OptimConfig
from .recovery import RecoveryState
from .reference import References
from .step_report import StepReport


@dataclass(slots=True)
class StepConfig:
    """How much is sampled in a step, and what is made of it."""

    loss: LossKind = LossKind.dapo
    """Which surrogate, and what it is divided by."""
    prompts_per_step: int = 8
    """P: prompts a step."""
    group_size: int = 16
    """G: completions a prompt."""
    epochs: int = 1
    """Passes over the step's batch."""
    minibatches: int = 1
    """Updates a pass: the batch is cut into this many parts, at random where there are several."""
    collection: CollectionConfig = field(default_factory=CollectionConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    clip: ClipConfig = field(default_factory=ClipConfig)
    mismatch: MismatchConfig = field(default_factory=MismatchConfig)
    entropy: EntropyConfig = field(default_factory=EntropyConfig)

    def __post_init__(self) -> None:
        if self.prompts_per_step < 1 or self.group_size < 2:
            raise ValueError("objective: expected prompts_per_step from 1 and group_size from 2")
        if self.epochs < 1 or self.minibatches < 1:
            raise ValueError("objective: expected epochs and minibatches from 1")

    @property
    def updates(self) -> int:
        """Updates a step."""
        return self.epochs * self.minibatches


@dataclass(slots=True)
class StepContext:
    """All a step works with. `app.wiring` builds it once."""

    policy: Policy
    references: References
    generator: Generator
    judge: Judge
    sampler: Sampler
    optimizer: torch.optim.Optimizer
    objective: StepConfig
    kl: KLConfig
    optim: OptimConfig
    kl_controller: KLController
    entropy_controller: EntropyController
    guards: Guards
    guarded: bool
    """Whether spikes are faults; what is not finite always is."""
    recovery: RecoveryState
    clock: Clock
    temperature: float
    max_tokens: int
    """Longest completion."""
    total_steps: int
    hooks: list[Hook] = field(default_factory=list)
    """See `hooks`."""
    stop_requested: Callable[[], bool] = lambda: False

    def at(self, moment: Moment, report: StepReport) -> None:
        """Call the hooks."""
        for hook in self.hooks:
            hook(moment, self, report)

"""Input and output of a step: `StepContext` is everything that it works with, `StepReport` what comes of it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..model.batch import Batch
from ..model.device import cores, release_memory
from ..model.policy import Policy
from ..model.weights import averaged
from ..model.world import World
from ..objective import LossSizes
from ..rewards.scorer import Scorer
from ..rollout.generator import Generator
from ..rollout.groups import Collected, Group
from ..stability.faults import Fault, out_of_memory
from ..stability.guards import Guards
from ..stability.kl_control import KLController
from ..stability.recovery import RecoveryState
from ..stability.reference import References
from ..stockfish.pool import EngineCounts
from ..tasks import Example
from ..tasks.prompt_stream import PromptStream
from .config import RunConfig
from .loss import LossPlan, TokenTotals
from .optim import Clock
from .prefetch import Prefetch

# Fewest completions of a micro-batch that is cut so that no core idles; fewer were not tried.
LEAST_EXAMPLES = 16
Result = TypeVar("Result")


@dataclass(slots=True)
class Collection:
    """Groups that were sampled and scored for a step, with the counts and times of their sampling."""

    step: int = 0
    """The step that they are for, counted from 0."""
    schedule_step: int = 0
    """Place of the rubric's warm-up."""
    staleness: int = 0
    """Steps by which the weights that sampled are older than those that are trained."""
    collected: Collected | None = None
    """Groups to train on, with their rewards; None if sampling or scoring failed."""
    examples: Sequence[Example] = ()
    """Examples whose prompts were sampled last, known before their completions are."""
    sampled_groups: int = 0
    """Groups sampled, including those that were dropped or replaced."""
    sampled_completions: int = 0
    """Completions sampled, likewise."""
    sampled_tokens: int = 0
    """Tokens of these completions."""
    engine: EngineCounts | None = None
    """Work of the scorer's engines; None without engines, or if scoring was not reached."""
    times_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the phases generate and score."""

    def add_engine_counts(self, counts: EngineCounts | None) -> None:
        """Add the work of engines; None is nothing."""
        if counts is not None:
            self.engine = (self.engine or EngineCounts()) + counts


@dataclass(slots=True)
class StepReport:
    """Report of one step, from which the trainer makes metrics, transcripts and decisions."""

    step: int
    """Counted from 0."""
    kl_coef: float
    schedule_step: int = 0
    """Place of the schedules: behind `step` after a restore."""
    lr: float = 0.0
    collection: Collection = field(default_factory=Collection)
    used_P: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """True where a group's advantages count."""
    advantages_PG: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    tokens: TokenTotals = field(default_factory=TokenTotals)
    loss: float = 0.0
    """Mean over the step's updates."""
    grad_norm: float = 0.0
    """Before clipping; largest of the step's updates."""
    update_norm: float = 0.0
    """Norm of the change of all parameters, summed over updates; 0 for a skipped one."""
    updates: int = 0
    """Updates made."""
    fault: Fault | None = None
    """Fault that ended the step, None for a good step."""
    fault_batch: Batch | None = None
    """Batch that was trained on when it happened."""
    times_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the phases generate, score and train, and of the whole step."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups that are trained on, or would have been; empty if the step did not reach them."""
        return self.collection.collected.groups if self.collection.collected else ()

    @property
    def rewards_PG(self) -> Tensor:
        """Their rewards (P, G), float32; (0, 0) without groups. A hook may change them in place."""
        return self.collection.collected.rewards_PG if self.collection.collected else torch.zeros(0, 0)

    def reward_by_task(self) -> dict[str, float]:
        """The mean reward of each task among the groups."""
        by_task: dict[str, list[Tensor]] = {}
        for group, rewards_G in zip(self.groups, self.rewards_PG, strict=True):
            by_task.setdefault(group.example.task.value, []).append(rewards_G)
        return {task: float(torch.stack(rewards).mean()) for task, rewards in by_task.items()}


@contextmanager
def timed(times_s: dict[str, float], phase: str) -> Iterator[None]:
    """Add the seconds of the block to those of `phase`."""
    started = time.perf_counter()
    try:
        yield
    finally:
        times_s[phase] = times_s.get(phase, 0.0) + time.perf_counter() - started


class Moment(StrEnum):
    """Moments of a step at which hooks are called, in order."""

    begun = "begun"
    """Before anything is sampled."""
    collected = "collected"
    """Groups are scored: advantages will be made of `report.rewards_PG`."""
    micro_batch = "micro_batch"
    """A micro-batch is about to be computed."""
    accumulated = "accumulated"
    """The gradient of one update is complete and not yet checked."""
    updated = "updated"
    """The optimiser has stepped and the weights are not yet checked."""


Hook = Callable[[Moment, "StepContext", StepReport], None]
"""Sees, and may change, the state of a step at its moments; what it raises propagates. Most fault injection of the
tests uses it:

    def add_noise(moment, context, report):
        if moment is Moment.accumulated:
            for parameter in context.policy.model.parameters():
                parameter.grad.add_(torch.randn_like(parameter.grad), alpha=1e-3)

    run.context.hooks.append(add_noise)
"""


@dataclass(slots=True)
class StepContext:
    """Everything that a step works with. `app.build` makes it once per run."""

    config: RunConfig
    policy: Policy
    references: References
    generator: Generator
    scorer: Scorer
    prompts: PromptStream
    world: World
    """The processes that train together; prompts and micro-batches are shared out among them."""
    optimizer: torch.optim.Optimizer
    kl_controller: KLController
    guards: Guards
    recovery: RecoveryState = field(default_factory=RecoveryState)
    clock: Clock = field(default_factory=Clock)
    prefetch: Prefetch[Collection] | None = None
    """Samples the next step's groups during this step (max_staleness=1); None: each step samples its own."""
    hooks: list[Hook] = field(default_factory=list)
    """Called at every moment of a step, in this order."""
    stop_requested: Callable[[], bool] = lambda: False

    @property
    def temperature(self) -> float:
        """The sampling temperature, at which all log-probs are computed."""
        return self.config.generator.temperature

    @property
    def micro_batch_size(self) -> int:
        """Most completions per pass: as configured, halved each time that memory ran out."""
        return max(1, self.config.optim.micro_batch_size >> self.recovery.halvings)

    def examples_per_pass(self, examples: int) -> int:
        """Size of the micro-batches for so many completions: below `micro_batch_size` if a core would idle otherwise.

        They are whole groups of at least `LEAST_EXAMPLES` together. Several processes, which must cut alike whatever
        cores they have, always use `micro_batch_size`.
        """
        if self.world.size > 1:
            return self.micro_batch_size
        share = max(LEAST_EXAMPLES, ceil(examples / cores(self.policy.device)))
        group = self.config.objective.group_size
        return min(self.micro_batch_size, ceil(share / group) * group)

    def retry_with_smaller_batches(self, work: Callable[[], Result]) -> Result:
        """The result of `work`, which is repeated with micro-batches of half the size each time that memory runs out.

        They stay halved for the rest of the run; the result of an update does not depend on their size. Raises
        FaultError if one completion is too many already, and for a model in shards, whose other ranks may be in the
        middle of the pass.
        """
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as error:
                if self.micro_batch_size == 1 or self.policy.sharded:
                    raise out_of_memory("micro_batch", error) from error
                self.recovery.halvings += 1
            # After the handler, whose exception holds the tensors of the failed pass.
            release_memory(self.policy.device)

    def loss_plan(self, sizes: LossSizes, *, kl_coef: float, stale: bool = False) -> LossPlan:
        """The plan that the micro-batches of an update of these sizes have in common."""
        measured = self.config.kl.measured or kl_coef > 0
        return LossPlan(
            objective=self.config.objective,
            kl=self.config.kl,
            temperature=self.temperature,
            sizes=sizes,
            kl_coef=kl_coef,
            reference=self.references.current if measured else None,
            original=self.references.original if measured and self.references.moves else None,
            stale=stale,
        )

    def averaged_policy(self) -> AbstractContextManager[None]:
        """Inside, the policy is the model that a run validates, evaluates and leaves: see `start_share`."""
        return averaged(self.policy.model, self.references.original.model, self.config.start_share)

    def prompts_state(self) -> Mapping[str, Any]:
        """State of the stream of prompts with which the next step begins."""
        return self.prompts.state_dict() if self.prefetch is None else self.prefetch.prompts_state(self.prompts)

    def at(self, moment: Moment, report: StepReport) -> None:
        """Call the hooks."""
        for hook in self.hooks:
            hook(moment, self, report)

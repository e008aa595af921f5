"""Input and output of a step: `StepContext` holds everything that a step uses, `StepReport` holds its results."""

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
from ..stability.recovery import RecoveryState
from ..stability.reference import References
from ..stockfish.pool import EngineCounts
from ..tasks.prompt_stream import PromptStream
from ..tasks.types import Example
from .config import RunConfig
from .loss import LossPlan, TokenTotals
from .prefetch import Prefetch

# Minimum size of a micro-batch that is made smaller so that no core idles. Smaller sizes were not tried.
LEAST_EXAMPLES = 16
Result = TypeVar("Result")


@dataclass(slots=True)
class Collection:
    """Groups that were sampled and scored for a step, with the counts and times of their sampling."""

    step: int = 0
    """Step that the groups are for, counted from 0."""
    staleness: int = 0
    """Number of steps by which the sampling weights are older than the trained weights."""
    collected: Collected | None = None
    """Groups to train on, with their rewards; None if sampling or scoring failed."""
    sampled: Collected | None = None
    """All groups that were sampled and scored, including those that were dropped or replaced."""
    examples: Sequence[Example] = ()
    """Examples whose prompts were sampled last. They are set before the completions are sampled."""
    sampled_groups: int = 0
    """Number of groups sampled, including those that were dropped or replaced."""
    sampled_completions: int = 0
    """Number of completions in these groups."""
    sampled_tokens: int = 0
    """Number of tokens in these completions."""
    engine: EngineCounts | None = None
    """Work of the scorer's engines; None without engines, or if the step ended before scoring."""
    times_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the phases generate and score, by name."""


@dataclass(slots=True)
class StepReport:
    """Results of one step. The trainer derives metrics, transcripts and recovery actions from them."""

    step: int
    """Number of the step, counted from 0."""
    kl_coef: float
    lr: float = 0.0
    collection: Collection = field(default_factory=Collection)
    advantages_PG: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    tokens: TokenTotals = field(default_factory=TokenTotals)
    loss: float = 0.0
    """Mean over the step's updates."""
    grad_norm: float = 0.0
    """Largest gradient norm of the step's updates, before clipping."""
    update_norm: float = 0.0
    """Norm of the change of all parameters, summed over updates. A skipped update adds 0."""
    updates: int = 0
    """Number of updates made."""
    fault: Fault | None = None
    """Fault of the step; None for a good step."""
    fault_batch: Batch | None = None
    """Batch on which the fault occurred, if it occurred on one."""
    times_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the phases generate, score and train, and of the whole step, by name."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """Groups to train on; empty if a fault ended the step before they were scored."""
        return self.collection.collected.groups if self.collection.collected else ()

    @property
    def rewards_PG(self) -> Tensor:
        """Rewards of the groups (P, G), float32; (0, 0) without groups. A hook may change them in place."""
        return self.collection.collected.rewards_PG if self.collection.collected else torch.zeros(0, 0)

    def reward_by_task(self) -> dict[str, float]:
        """Return the mean reward of each task among all sampled groups."""
        by_task: dict[str, list[Tensor]] = {}
        sampled = self.collection.sampled
        for group, rewards_G in zip(sampled.groups, sampled.rewards_PG, strict=True) if sampled else ():
            by_task.setdefault(group.example.task.value, []).append(rewards_G)
        return {task: float(torch.stack(rewards).mean()) for task, rewards in by_task.items()}


@contextmanager
def timed(times_s: dict[str, float], phase: str) -> Iterator[None]:
    """Add the duration of the block to `times_s[phase]`, in seconds."""
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
    """Groups are scored. Advantages are computed next, from `report.rewards_PG`."""
    micro_batch = "micro_batch"
    """A forward and backward pass of a micro-batch is about to begin."""
    accumulated = "accumulated"
    """The gradient of one update is complete and not yet checked."""
    updated = "updated"
    """The optimiser has stepped and the weights are not yet checked."""


Hook = Callable[[Moment, "StepContext", StepReport], None]
"""Function called at each moment of a step. It may read and change the step's state, and its exceptions propagate.
Tests inject most faults with it:

    def add_noise(moment, context, report):
        if moment is Moment.accumulated:
            for parameter in context.policy.model.parameters():
                parameter.grad.add_(torch.randn_like(parameter.grad), alpha=1e-3)

    run.context.hooks.append(add_noise)
"""


@dataclass(slots=True)
class StepContext:
    """Configuration, state and services that a step uses. `app.build` makes one per run."""

    config: RunConfig
    policy: Policy
    references: References
    generator: Generator
    scorer: Scorer
    prompts: PromptStream
    world: World
    """Processes that train together and share the prompts and micro-batches."""
    optimizer: torch.optim.Optimizer
    guards: Guards
    recovery: RecoveryState = field(default_factory=RecoveryState)
    schedule_step: int = 0
    """Number of schedule steps done. A restore sets it back, so it may be smaller than the number of steps done."""
    prefetch: Prefetch[Collection] | None = None
    """Samples the next step's groups during this step (max_staleness=1). None: each step samples its own groups."""
    hooks: list[Hook] = field(default_factory=list)
    """Hooks called at every moment of a step, in this order."""
    stop_requested: Callable[[], bool] = lambda: False

    @property
    def temperature(self) -> float:
        """Sampling temperature, at which all log-probs are computed."""
        return self.config.generator.temperature

    @property
    def micro_batch_size(self) -> int:
        """Maximum number of completions per pass: the configured number, halved each time that memory ran out."""
        return max(1, self.config.optim.micro_batch_size >> self.recovery.halvings)

    def examples_per_pass(self, examples: int) -> int:
        """Return the size of micro-batches for this number of completions, smaller if a core would otherwise idle.

        It is at most `micro_batch_size`. A smaller size means whole groups, at least `LEAST_EXAMPLES` completions in
        all. Several processes always use `micro_batch_size`: all must divide a batch alike, whatever cores they have.
        """
        if self.world.size > 1:
            return self.micro_batch_size
        share = max(LEAST_EXAMPLES, ceil(examples / cores(self.policy.device)))
        group = self.config.objective.group_size
        return min(self.micro_batch_size, ceil(share / group) * group)

    def retry_with_smaller_batches(self, work: Callable[[], Result]) -> Result:
        """Call `work` and return its result. If memory runs out, call it again with micro-batches of half the size.

        The size stays halved for the rest of the run; the result of an update does not depend on it. Raises FaultError
        if memory runs out with one completion per micro-batch. Raises it at once for a model in shards, because other
        ranks may be in the middle of the pass.
        """
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as error:
                if self.micro_batch_size == 1 or self.policy.sharded:
                    raise out_of_memory("micro_batch", error) from error
                self.recovery.halvings += 1
            # Not inside the handler: until it ends, the exception holds the tensors of the failed pass.
            release_memory(self.policy.device)

    def loss_plan(self, sizes: LossSizes, *, kl_coef: float, stale: bool = False) -> LossPlan:
        """Return the plan that all micro-batches of an update of these sizes share."""
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
        """Return a context in which the policy has the averaged weights that a run evaluates and saves.

        See `RunConfig.start_share`.
        """
        return averaged(self.policy.model, self.references.original.model, self.config.start_share)

    def prompts_state(self) -> Mapping[str, Any]:
        """Return the state of the prompt stream at which the next step begins."""
        return self.prompts.state_dict() if self.prefetch is None else self.prefetch.prompts_state(self.prompts)

    def at(self, moment: Moment, report: StepReport) -> None:
        """Call the hooks with this moment."""
        for hook in self.hooks:
            hook(moment, self, report)

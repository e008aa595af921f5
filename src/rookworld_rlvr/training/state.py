"""Input and output of a step: `StepContext` holds the state that a step uses and changes, `StepReport` its results."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import torch
from torch import Tensor

from ..model.batch import TokenBatch
from ..model.policy import Policy
from ..model.weights import averaged
from ..model.world import World
from ..objective import KLConfig, ObjectiveConfig
from ..rollout.generator import GeneratorConfig
from ..rollout.groups import Group, Rollout
from ..stability.faults import Fault
from ..stability.guards import Guards
from ..stability.recovery import RecoveryConfig, RecoveryState
from ..stability.reference import References
from .collection import Sampler
from .loss import TokenTotals
from .optim import OptimConfig, micro_batch_size


class StepConfig(Protocol):
    """Options that a step reads; see `config.RunConfig`."""

    steps: int
    seed: int
    start_share: float
    generator: GeneratorConfig
    objective: ObjectiveConfig
    kl: KLConfig
    recovery: RecoveryConfig
    optim: OptimConfig


@dataclass(slots=True)
class StepContext:
    """Configuration and state of a run that a step uses. `app.build` makes one per run."""

    config: StepConfig
    policy: Policy
    references: References
    sampler: Sampler
    world: World
    """Processes that train together and share the prompts and micro-batches."""
    optimizer: torch.optim.Optimizer
    guards: Guards
    recovery: RecoveryState = field(default_factory=RecoveryState)
    schedule_step: int = 0
    """Number of schedule steps done. A restore sets it back, so it may be smaller than the number of steps done."""
    hooks: "list[Hook]" = field(default_factory=list)
    """Hooks called at every moment of a step, in this order."""

    @property
    def temperature(self) -> float:
        """Sampling temperature, at which all log-probs are computed."""
        return self.config.generator.temperature

    @property
    def micro_batch_size(self) -> int:
        """Maximum number of completions per pass: the configured number, halved each time that memory ran out."""
        size = micro_batch_size(self.config.optim, self.policy.model, self.policy.device)
        return max(1, size >> self.recovery.halvings)

    def averaged_policy(self) -> AbstractContextManager[None]:
        """Return a context in which the policy has the averaged weights that a run evaluates and saves.

        See `config.RunConfig.start_share`.
        """
        return averaged(self.policy.model, self.references.original.model, self.config.start_share)

    def emit(self, moment: "Moment", event: "Event") -> None:
        """Call the hooks with this moment."""
        for hook in self.hooks:
            hook(moment, self, event)


@dataclass(frozen=True, slots=True)
class StepReport:
    """Results of one step. The trainer derives metrics, transcripts and recovery actions from them.

    A step that a fault ended has the results of the phases that it reached.
    """

    step: int
    """Number of the step, counted from 0."""
    kl_coef: float
    moves_temperature: float = 0.0
    lr: float = 0.0
    rollout: Rollout = field(default_factory=Rollout)
    """All groups that were sampled and scored, whether their completions are trained on or not."""
    kept: Rollout = field(default_factory=Rollout)
    """The groups whose completions are trained on."""
    advantages_PG: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    tokens: TokenTotals = field(default_factory=TokenTotals)
    loss: float = 0.0
    """Mean over the step's updates."""
    grad_norm: float = 0.0
    """Largest gradient norm of the step's updates, before clipping."""
    update_norm: float = 0.0
    """Norm of the change of all parameters, summed over updates."""
    updates: int = 0
    """Number of updates made."""
    fault: Fault | None = None
    """Fault of the step; None for a good step."""
    fault_batch: TokenBatch | None = None
    """Batch on which the fault occurred, if it occurred on one."""
    times_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the phases generate, score and train, and of the whole step, by name."""

    @property
    def groups(self) -> tuple[Group, ...]:
        """Groups to train on; empty if a fault ended the step before they were scored."""
        return self.kept.groups

    @property
    def rewards_PG(self) -> Tensor:
        """Rewards of the groups to train on (P, G), float32; (0, 0) without groups."""
        return self.kept.rewards_PG

    def reward_by_task(self) -> dict[str, float]:
        """Return the mean reward of each task among all sampled groups."""
        by_task: dict[str, list[Tensor]] = {}
        for group, rewards_G in zip(self.rollout.groups, self.rollout.rewards_PG, strict=True):
            by_task.setdefault(group.example.task, []).append(rewards_G)
        return {task: float(torch.stack(rewards).mean()) for task, rewards in by_task.items()}


class Moment(StrEnum):
    """Moments of a step at which hooks are called, in order."""

    begun = "begun"
    """Before anything is sampled."""
    collected = "collected"
    """Groups are scored. Advantages are computed next, from the event's `rewards_PG`."""
    micro_batch = "micro_batch"
    """A forward and backward pass of a micro-batch is about to begin."""
    accumulated = "accumulated"
    """The gradient of one update is complete and not yet checked."""
    updated = "updated"
    """The optimiser has stepped and the weights are not yet checked."""


@dataclass(frozen=True, slots=True)
class Event:
    """State of a step at a moment."""

    step: int
    """Number of the step, counted from 0."""
    updates: int = 0
    """Number of updates that the step has made so far."""
    rollout: Rollout = field(default_factory=Rollout)
    """The step's groups; empty before they are collected."""

    @property
    def rewards_PG(self) -> Tensor:
        """Rewards of the groups (P, G). A hook may change them in place when they are collected."""
        return self.rollout.rewards_PG


Hook = Callable[[Moment, StepContext, Event], None]
"""Function called at each moment of a step. It may change the state of the context, and its exceptions propagate.
A run has one, which measures memory; tests inject faults with others:

    def add_noise(moment, context, event):
        if moment is Moment.accumulated:
            for parameter in context.policy.model.parameters():
                parameter.grad.add_(torch.randn_like(parameter.grad), alpha=1e-3)

    run.context.hooks.append(add_noise)
"""

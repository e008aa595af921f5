"""What a step is configured by, and what it works with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import Any, Protocol

import torch

from ..model.device import cores
from ..model.policy import Policy
from ..model.world import World
from ..objective import LossSizes
from ..rewards.scorer import Scorer
from ..rollout.generator import Generator
from ..rollout.groups import Collected
from ..stability.guards import Guards
from ..stability.kl_control import KLConfig, KLController
from ..stability.recovery import RecoveryState
from ..stability.reference import References
from ..tasks.prompt_stream import PromptStream
from .config import StepConfig
from .loss import LossPlan
from .optim import Clock, OptimConfig
from .step_report import StepReport

# Fewest completions of a micro-batch that is cut so that no core idles; fewer were not tried.
LEAST_ROWS = 16


class Moment(StrEnum):
    """When a hook is called, in the order of a step."""

    begun = "begun"
    """Before anything is sampled."""
    collected = "collected"
    """Groups are scored: advantages will be made of `report.collected`."""
    micro_batch = "micro_batch"
    """A micro-batch is about to be computed."""
    accumulated = "accumulated"
    """The gradient of one update is complete and not yet looked at."""
    updated = "updated"
    """The optimiser has stepped and the weights are not yet looked at."""


Hook = Callable[[Moment, "StepContext", StepReport], None]
"""Sees, and may change, the state of a step at its moments; what it raises propagates. The fault injection of the tests
and of `benchmarks/` uses nothing else:

    def add_noise(moment, context, report):
        if moment is Moment.accumulated:
            for parameter in context.policy.model.parameters():
                parameter.grad.add_(torch.randn_like(parameter.grad), alpha=1e-3)

    run.context.hooks.append(add_noise)
"""


class Batches(Protocol):
    """Where a step's groups come from."""

    abandons: bool
    """Whether a step that was begun may be given up as if it had not begun."""

    def next(self, context: "StepContext", report: StepReport) -> Collected:
        """The groups of the step; the report is told of them. Raises FaultError."""

    def wait(self) -> None:
        """Let what is being sampled come to its end: someone else needs the generator."""

    def drop(self) -> None:
        """Forget what was sampled for the next step: the weights are others now."""

    def prompts_state(self, prompts: PromptStream) -> Mapping[str, Any]:
        """The state of the stream of prompts from which the next step goes on."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What a resumed run needs beside it."""

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `state_dict` said."""

    def close(self) -> None:
        """Let go of what it owns."""


@dataclass(slots=True)
class StepContext:
    """All a step works with. `app.wiring` builds it once."""

    policy: Policy
    references: References
    generator: Generator
    scorer: Scorer
    prompts: PromptStream
    batches: Batches
    seed: int
    """What the run draws with: a prompt's completions follow from it, the step and the prompt's number in the step."""
    world: World
    """The processes that train together; prompts and micro-batches are shared out among them."""
    optimizer: torch.optim.Optimizer
    objective: StepConfig
    kl: KLConfig
    optim: OptimConfig
    kl_controller: KLController
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
    """Called at every moment of a step, in this order."""
    stop_requested: Callable[[], bool] = lambda: False

    @property
    def micro_batch_size(self) -> int:
        """Most completions of a pass: as configured, halved each time that memory ran out."""
        return max(1, self.optim.micro_batch_size >> self.recovery.halvings)

    def rows_a_pass(self, rows: int) -> int:
        """Into how large micro-batches to cut `rows` completions: fewer than `micro_batch_size` if a core would idle.

        These are whole groups of at least `LEAST_ROWS` together. Several processes, which must cut alike whatever
        cores they have, always use `micro_batch_size`.
        """
        if self.world.size > 1:
            return self.micro_batch_size
        share = max(LEAST_ROWS, ceil(rows / cores(self.policy.device)))
        group = self.objective.group_size
        return min(self.micro_batch_size, ceil(share / group) * group)

    def loss_plan(self, sizes: LossSizes, *, kl_coef: float, entropy_coef: float) -> LossPlan:
        """What the micro-batches of an update of these sizes have in common."""
        measured = self.kl.measured or kl_coef > 0
        return LossPlan(
            loss=self.objective.loss,
            sizes=sizes,
            clip=self.objective.clip,
            mismatch=self.objective.mismatch,
            temperature=self.temperature,
            kl_form=self.kl.form,
            kl_token_clamp=self.kl.token_clamp,
            kl_coef=kl_coef,
            entropy_coef=entropy_coef,
            reference=self.references.current if measured else None,
            original=self.references.original if measured and self.references.moves else None,
        )

    def at(self, moment: Moment, report: StepReport) -> None:
        """Call the hooks."""
        for hook in self.hooks:
            hook(moment, self, report)

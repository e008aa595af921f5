"""Faults of a step, as values; `recovery` decides on the action after each."""

from dataclasses import dataclass
from enum import StrEnum

import torch

from ..model.batch import Batch


class FaultKind(StrEnum):
    """Place in which a step failed."""

    generator = "generator"
    """The generator gave nothing, or not what was requested."""
    scorer = "scorer"
    """The scorer itself failed."""
    reward = "reward"
    """A reward is not finite."""
    logprobs = "logprobs"
    """A log-prob of policy, reference or sampler is not finite."""
    loss = "loss"
    """The loss is not finite."""
    gradient = "gradient"
    """The gradient is not finite."""
    gradient_spike = "gradient_spike"
    """The gradient's norm is far outside its own history."""
    kl_spike = "kl_spike"
    """KL(policy‖reference) is far outside its own history."""
    kl_limit = "kl_limit"
    """KL(policy‖reference) is above the most that is allowed: the policy has run away."""
    parameter = "parameter"
    """A weight is not finite."""
    collapse = "collapse"
    """The mean reward has fallen far below its best."""
    memory = "memory"
    """The device's memory did not suffice for a single completion, for sampling, for the optimiser's step, or for a
    model in shards."""


# After these the weights themselves are wrong: skipping an update does not help.
DAMAGE = frozenset({FaultKind.kl_limit, FaultKind.parameter, FaultKind.collapse})
# These come again in every step: neither a skip nor a restore helps.
LASTING = frozenset({FaultKind.memory})


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that went wrong in one step."""

    kind: FaultKind
    tensor: str
    """The first bad tensor in the order of computation, or what stands for it."""
    detail: str
    """One line: what was measured."""

    @property
    def damages(self) -> bool:
        """True if the weights are wrong already, so that only a restore helps."""
        return self.kind in DAMAGE

    def __str__(self) -> str:
        return f"{self.kind} ({self.tensor}: {self.detail})"


class FaultError(RuntimeError):
    """Ends a step; caught where the step is reported."""

    def __init__(self, fault: Fault, batch: Batch | None = None) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.batch = batch
        """What was trained on when it happened."""

    def __reduce__(self) -> tuple[type["FaultError"], tuple[Fault, Batch | None]]:
        """Pickled form for other processes; tensors go by the CPU."""
        return FaultError, (self.fault, None if self.batch is None else self.batch.to(torch.device("cpu")))


def out_of_memory(where: str, error: torch.OutOfMemoryError) -> FaultError:
    """The fault that ends the run when a device's memory does not suffice."""
    return FaultError(Fault(FaultKind.memory, where, next(iter(str(error).splitlines()), "out of memory")))


class StepAbandonedError(RuntimeError):
    """A stop was requested: the step is given up between two micro-batches, before its first update."""

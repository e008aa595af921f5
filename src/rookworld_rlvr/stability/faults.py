"""Faults of a training step; `recovery` decides on the action after each."""

from dataclasses import dataclass
from enum import StrEnum

import torch

from ..model.batch import TokenBatch


class FaultKind(StrEnum):
    """Kind of a fault."""

    generator = "generator"
    """The generator returned nothing, or not what was requested."""
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
    kl_limit = "kl_limit"
    """KL(policy‖reference) is above its limit: the policy has moved too far from the reference."""
    parameter = "parameter"
    """A weight is not finite."""
    memory = "memory"
    """The device's memory was not sufficient for a single completion, for sampling, for the optimiser's step, for a
    sharded model, or for the copy of the weights that a validation or a checkpoint needs."""


# After these faults the weights themselves are wrong, so skipping an update does not help.
DAMAGING = frozenset({FaultKind.kl_limit, FaultKind.parameter})
# These faults return in every step, so neither a skip nor a restore helps.
UNRECOVERABLE = frozenset({FaultKind.memory})


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that went wrong in one step."""

    kind: FaultKind
    tensor: str
    """The first bad tensor in the order of computation, or the quantity or operation that failed instead."""
    detail: str
    """One line with the measured values."""

    @property
    def damages_weights(self) -> bool:
        """True if the weights are already wrong, so that only a restore helps."""
        return self.kind in DAMAGING

    def __str__(self) -> str:
        return f"{self.kind} ({self.tensor}: {self.detail})"


class FaultError(RuntimeError):
    """Error that ends a step; caught where the step is reported."""

    def __init__(self, fault: Fault, batch: TokenBatch | None = None) -> None:
        super().__init__(str(fault))
        self.fault = fault
        self.batch = batch
        """Batch that was trained on when the fault occurred; None if there was none."""

    def __reduce__(self) -> tuple[type["FaultError"], tuple[Fault, TokenBatch | None]]:
        """Return the pickled form for other processes, with tensors on the CPU."""
        return FaultError, (self.fault, None if self.batch is None else self.batch.to(torch.device("cpu")))


def out_of_memory(where: str, error: torch.OutOfMemoryError) -> FaultError:
    """Return the fault that ends the run when a device's memory is not sufficient."""
    return FaultError(Fault(FaultKind.memory, where, next(iter(str(error).splitlines()), "out of memory")))


class StopRequestedError(RuntimeError):
    """Error that ends an evaluation of a run after a requested stop. A step is always completed."""

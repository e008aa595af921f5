"""What is done where a device's memory does not suffice: the same work again, in smaller pieces."""

from collections.abc import Callable
from typing import TypeVar

import torch

from ..model.device import release_memory
from ..stability.faults import Fault, FaultError, FaultKind
from .context import StepContext

Result = TypeVar("Result")


def in_pieces_that_fit(context: StepContext, attempt: Callable[[], Result]) -> Result:
    """What `attempt` returns. It must ask `context.micro_batch_size` and leave nothing behind where it raises.

    Each time that memory runs out the micro-batch is halved, for the rest of the run, and the attempt is made again:
    the result of an update does not depend on how it is cut. Raises FaultError where one completion is too many, and
    for a model in shards, whose other ranks may be in the middle of the pass.
    """
    while True:
        try:
            return attempt()
        except torch.OutOfMemoryError as error:
            if context.micro_batch_size == 1 or context.policy.sharded:
                raise out_of_memory("micro_batch", error) from error
            context.recovery.halvings += 1
        release_memory(context.policy.device)


def out_of_memory(where: str, error: torch.OutOfMemoryError) -> FaultError:
    """The fault that ends the run."""
    return FaultError(Fault(FaultKind.memory, where, next(iter(str(error).splitlines()), "out of memory")))

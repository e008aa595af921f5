"""Several training processes started by torchrun, and their exchanges through torch.distributed.

An exchange has two parts. `monitored_barrier` waits until every rank has arrived; if one does not, rank 0 names it.
Then `all_gather_object` sends each rank's result or error to all, so that an error on one rank is raised on every rank.
"""

import os
import pickle
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import RAISED_ON, first_line
from .device import exchange_backend, is_accelerator
from .world import RankError, World

Result = TypeVar("Result")
# Seconds that a rank waits for the others. After that the run ends and names the missing ranks.
TIMEOUT_S = 600.0


class Ranks(World):
    """One of several processes that train together."""

    def __init__(self, device: torch.device, timeout_s: float = TIMEOUT_S) -> None:
        """Meet the other ranks. Needs torchrun's environment. Raises RankError if they do not arrive in time."""
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._timeout_s = timeout_s
        limit = timedelta(seconds=timeout_s)
        try:
            dist.init_process_group(exchange_backend(device), timeout=limit)
            # Barriers and objects need gloo; gradients are summed on their own device.
            self._gloo = dist.new_group(backend="gloo", timeout=limit) if is_accelerator(device) else None
        except RuntimeError as error:
            raise self._missing("the start", error) from error

    def all_gather(self, work: Callable[[], Result], what: str) -> list[Result]:
        """See `World.all_gather`."""
        mine: Any = None
        raised: Exception | None = None
        try:
            mine = work()
        except Exception as error:
            if _is_on_all_ranks(error):
                raise
            raised = error
        arrived: list[Any] = [None] * self.size
        # Rank 0 gives up first, because only rank 0 can name the missing ranks.
        limit = timedelta(seconds=self._timeout_s * (1 if self.is_rank_0 else 2))
        try:
            dist.monitored_barrier(self._gloo, limit, wait_all_ranks=True)
            dist.all_gather_object(arrived, (what, mine, raised and _sendable(raised, self.rank)), group=self._gloo)
        except RuntimeError as error:
            # This rank's own error explains more than the absence of the others.
            raise raised or self._missing(what, error) from error
        for rank, (_, _, theirs) in enumerate(arrived):
            if theirs is not None:
                first: Exception = raised if raised is not None and rank == self.rank else theirs
                # Noted here, because an error with its own way of being pickled loses its notes.
                first.add_note(f"{RAISED_ON}{rank}")
                raise first
        for rank, (place, _, _) in enumerate(arrived):
            if place != what:
                raise RankError(f"expected all ranks at {what}, rank {rank} is at {place}")
        return [result for _, result, _ in arrived]

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """See `World.sum_gradients`. One vector holds all gradients, followed by a flag for each that shows if it
        exists.

        If memory for the vector runs out on one rank, torch.OutOfMemoryError is raised on all.
        """

        def in_one_vector() -> Tensor:
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            there = parameters[0].new_tensor([p.grad is not None for p in parameters])
            return torch.cat([*(grad.flatten() for grad in grads), there])

        flat = self.barrier(in_one_vector, "gradients")
        dist.all_reduce(flat)
        present = flat[-len(parameters) :].tolist()
        parts = flat[: -len(parameters)].split([p.numel() for p in parameters])
        for parameter, part, count in zip(parameters, parts, present, strict=True):
            parameter.grad = part.view_as(parameter) if count else None

    def _missing(self, what: str, error: RuntimeError) -> RankError:
        return RankError(
            f"expected all {self.size} ranks at {what}; one has ended, or did not arrive within "
            f"{self._timeout_s:g} s: {first_line(error)}"
        )


def _is_on_all_ranks(error: Exception) -> bool:
    """Return True for an error that has gone through `all_gather`, which has raised it on every rank."""
    return isinstance(error, RankError) or any(note.startswith(RAISED_ON) for note in getattr(error, "__notes__", []))


def _sendable(error: Exception, rank: int) -> Exception:
    """Return the error, or a RankError with its text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RankError(f"rank {rank} ended by {type(error).__name__}: {error}")
    return error

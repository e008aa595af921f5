"""Several training processes started by torchrun: their exchanges, and errors that name missing ranks.

Before each exchange every rank announces in a shared store that it has arrived. A rank that does not arrive is named
after the timeout, and a rank that ended by an error is named at once. After that the ranks exchange data through
torch.distributed.
"""

import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from ..errors import RAISED_ON
from .device import exchange_backend, is_accelerator
from .world import RankError, World

Result = TypeVar("Result")
# Seconds that a rank waits for the others. After that the run ends and names the missing ranks.
TIMEOUT_S = 600.0
# Prefix of the message that a failed rank stores in place of the name of an exchange.
FAILED = "failed: "


@dataclass(frozen=True, slots=True)
class _Raised:
    """An error that a rank sends in place of a result."""

    error: Exception


class Ranks(World):
    """One of several processes that train together."""

    def __init__(self, device: torch.device, timeout_s: float = TIMEOUT_S) -> None:
        """Meet the other ranks. Needs torchrun's environment. Raises RankError if they do not arrive in time."""
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._timeout_s, self._met = timeout_s, 0
        self._store = _store(self.rank, timeout_s)
        self._meet("the start")
        group = PrefixStore("group", self._store)
        limit = timedelta(seconds=timeout_s)
        backend = exchange_backend(device)
        dist.init_process_group(backend, store=group, rank=self.rank, world_size=self.size, timeout=limit)
        # Objects are exchanged on the CPU, gradients on their own device.
        self._objects = dist.new_group(backend="gloo", timeout=limit) if is_accelerator(device) else None

    def all_gather(self, work: Callable[[], Result], what: str) -> list[Result]:
        """See `World.all_gather`."""
        raised: Exception | None = None
        mine: Result | _Raised
        try:
            mine = work()
        except Exception as error:
            raised, mine = error, _Raised(_sendable(error, self.rank))
        try:
            self._meet(what)
        except RankError as missed:
            if raised is None:
                raise
            # This rank's own error explains more than the absence of the others.
            raise raised from missed
        results: list[Result | _Raised] = [mine] * self.size
        dist.all_gather_object(results, mine, group=self._objects)
        if raised is not None:
            raise raised
        for theirs in results:
            if isinstance(theirs, _Raised):
                raise theirs.error
        return results  # type: ignore[return-value]

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

    def failed(self, error: BaseException) -> None:
        """See `World.failed`."""
        if not isinstance(error, RankError):
            message = f"{FAILED}rank {self.rank} ended by {type(error).__name__}: {error}"
            with suppress(dist.DistNetworkError):
                self._store.set(f"{self._met + 1}/{self.rank}", message)
                if not _was_raised_on_a_rank(error) and self._store.add(f"{FAILED}{error}", 1) > 1:
                    error.add_note(f"{RAISED_ON}another, with the same words")

    def _meet(self, what: str) -> None:
        """Announce that this rank has arrived at `what`, and wait for all others. Raises RankError."""
        self._met += 1
        keys = [f"{self._met}/{rank}" for rank in range(self.size)]
        try:
            self._store.set(keys[self.rank], what)
            if self._met > 2:
                # All ranks have read the keys of that meeting, because each has arrived at the next one.
                self._store.delete_key(f"{self._met - 2}/{self.rank}")
            self._store.wait(keys, timedelta(seconds=self._timeout_s))
            words = [self._store.get(key).decode() for key in keys]
        except dist.DistNetworkError as error:
            raise RankError(f"waiting at {what}: the store that rank 0 or torchrun keeps is gone") from error
        except dist.DistStoreError as error:
            missing = ", ".join(str(rank) for rank, key in enumerate(keys) if not self._store.check([key]))
            raise RankError(
                f"expected all {self.size} ranks at {what} within {self._timeout_s:g} s, rank {missing} did not arrive"
            ) from error
        for rank, theirs in enumerate(words):
            if theirs.startswith(FAILED):
                raise RankError(f"waiting at {what}: {theirs.removeprefix(FAILED)}")
            if theirs != what:
                raise RankError(f"expected all ranks at {what}, rank {rank} is at {theirs}")


def _store(rank: int, timeout_s: float) -> Store:
    """Return torchrun's store, with a part of its own for each restart; without torchrun, rank 0 keeps the store."""
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0 and not kept,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
    )
    return PrefixStore(f"rookworld/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _was_raised_on_a_rank(error: BaseException) -> bool:
    """Return True if the error has gone through `all_gather`, so that a rank is known to have raised it first."""
    return any(note.startswith(RAISED_ON) for note in getattr(error, "__notes__", []))


def _sendable(error: Exception, rank: int) -> Exception:
    """Return the error with a note of the rank, or a RankError with its text if it cannot be pickled."""
    if not _was_raised_on_a_rank(error):
        error.add_note(f"{RAISED_ON}{rank}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        described = RankError(f"rank {rank} ended by {type(error).__name__}: {error}")
        described.add_note(f"{RAISED_ON}{rank}")
        return described
    return error

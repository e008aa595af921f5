"""Exchanges between processes that train together. A single process imports nothing of torch.distributed."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")
Item = TypeVar("Item")


class Distributed(StrEnum):
    """Way in which several processes share the work. A single process has the whole model either way."""

    ddp = "ddp"
    """Data parallel: each rank has the whole model, and its share of a step's prompts and micro-batches."""
    fsdp2 = "fsdp2"
    """Data parallel, with weights, gradients and moments in shards, one for each rank (`model.sharded`)."""


class RankError(RuntimeError):
    """Failure of another process, or its absence from an exchange; names its rank."""


class World:
    """A single process, rank 0 of 1. `model.ranks` has the exchanges of several processes."""

    rank = 0
    size = 1
    local_size = 1
    """Number of processes on this machine."""

    @property
    def is_rank_0(self) -> bool:
        """True for the process that prints, saves and reports to trackers."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> list[Item]:
        """Return this rank's part of `items`: every `size`-th, starting with its own number."""
        return list(items[self.rank :: self.size])

    def all_gather(self, work: Callable[[], Result], what: str) -> list[Result]:
        """Return every rank's result of `work`, in the order of ranks. `what` names the work in messages.

        An error on one rank is raised on all; of several errors, that of the lowest rank. `work` may contain other
        exchanges: a rank that leaves them by an error takes part in this one, and tells the ranks that wait in those.
        Raises RankError if a rank does not arrive in time, has ended, or is at another exchange.
        """
        return [work()]

    def gather_in_order(self, work: Callable[[], Sequence[Result]], what: str) -> list[Result]:
        """Return the results of ranks that each worked on their `share`, one for each item, in the items' order.

        Raises RankError if a rank has more or fewer results than its share.
        """
        parts = self.all_gather(work, what)
        count = sum(map(len, parts))
        for rank, part in enumerate(parts):
            if len(part) != len(range(rank, count, self.size)):
                raise RankError(f"expected a share of {count} results at {what}, got {len(part)} from rank {rank}")
        return [parts[i % self.size][i // self.size] for i in range(count)]

    def barrier(self, work: Callable[[], Result], what: str) -> Result:
        """Return this rank's result of `work`, which is not sent. No rank continues before all have a result."""
        results: list[Result] = []

        def keep() -> None:
            results.append(work())

        self.all_gather(keep, what)
        return results[0]

    def rank_0_only(self, work: Callable[[], Result], what: str) -> Result:
        """Run `work` on rank 0 only, and return its result on every rank; the others wait."""
        return self.all_gather(lambda: work() if self.is_rank_0 else None, what)[0]  # type: ignore[return-value]

    def any(self, flag: bool, what: str) -> bool:
        """Return True if the flag holds on any rank."""
        return any(self.all_gather(lambda: flag, what))

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Sum the ranks' gradients in place; a gradient that no rank has stays None."""

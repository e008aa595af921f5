"""The processes that train together. A single process exchanges nothing and imports nothing of torch.distributed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from torch import Tensor

Result = TypeVar("Result")
Item = TypeVar("Item")


class Distributed(StrEnum):
    """The way in which several processes share the work."""

    none = "none"
    """One process alone."""
    ddp = "ddp"
    """Data parallel: each rank has the whole model, and its share of a step's prompts and micro-batches."""
    fsdp2 = "fsdp2"
    """Data parallel, with weights, gradients and moments in shards, one for each rank (`model.sharded`)."""


@dataclass(slots=True)
class DistributedConfig:
    """Options of distributed training."""

    kind: Distributed = Distributed.none
    timeout_s: float = 600.0
    """Seconds that a rank waits for the others; then the run ends and names those that did not come."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < float("inf"):
            raise ValueError(f"distributed.timeout_s: expected above 0, got {self.timeout_s}")


class RankError(RuntimeError):
    """Another process has failed, or does not come to where this one waits for it; names its rank."""


class World:
    """A single process, rank 0 of 1. `model.ranks` has the exchanges of several processes."""

    rank = 0
    size = 1
    local_size = 1
    """Processes on this machine."""

    @property
    def is_rank_0(self) -> bool:
        """True for the process that prints, saves and reports to trackers."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> list[Item]:
        """This rank's part of `items`: every `size`-th, beginning with its own number."""
        return list(items[self.rank :: self.size])

    def all_gather(self, work: Callable[[], Result], what: str) -> list[Result]:
        """Every rank's result of `work`, in the order of ranks. What it raises on one rank is raised on all.

        `what` names the work to those who wait for it. Raises RankError.
        """
        return [work()]

    def gather_in_order(self, work: Callable[[], Sequence[Result]], what: str) -> list[Result]:
        """The results of ranks that each worked on its `share`, one for each item, in the items' order."""
        parts = self.all_gather(work, what)
        return [parts[i % self.size][i // self.size] for i in range(sum(map(len, parts)))]

    def barrier(self, work: Callable[[], Result], what: str) -> Result:
        """This rank's result of `work`, which is not sent; no rank goes on before all have one."""
        results: list[Result] = []

        def keep() -> None:
            results.append(work())

        self.all_gather(keep, what)
        return results[0]

    def rank_0_only(self, work: Callable[[], Result], what: str) -> Result:
        """The result of `work` on rank 0, on every rank; the others wait for it and do not work."""
        return self.all_gather(lambda: work() if self.is_rank_0 else None, what)[0]  # type: ignore[return-value]

    def any(self, flag: bool, what: str) -> bool:
        """True if the flag holds on any rank."""
        return any(self.all_gather(lambda: flag, what))

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Add up the ranks' gradients; a gradient that no rank has stays None."""

    def failed(self, error: BaseException) -> None:
        """Tell those who wait for this rank that it ends by this error, and note on it if another ends by the same."""

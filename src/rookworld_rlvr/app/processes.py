"""Processes that train together: starting them with torchrun, and joining those that torchrun has started."""

import logging
import os
import sys
import uuid
from collections.abc import Callable
from functools import cache

import torch

from ..errors import DONE, GAVE_UP, INTERRUPTED, UserError
from ..model.world import World

SIGNALLED = 128


def local_rank() -> int | None:
    """Return this process's rank on its machine, as set by torchrun; None if torchrun did not start it."""
    rank = os.environ.get("LOCAL_RANK") if started_by_torchrun() else None
    return None if rank is None else int(rank)


def started_by_torchrun() -> bool:
    """Return True if torchrun has started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


class ProcessesNeededError(BaseException):
    """Ends a command that needs several processes. It is a BaseException, because hydra continues after others."""

    def __init__(self, processes: int) -> None:
        super().__init__(processes)
        self.processes = processes


def require_processes(processes: int) -> None:
    """Raise ProcessesNeededError if the configuration needs several processes and torchrun has not started them."""
    if processes > 1 and not started_by_torchrun():
        raise ProcessesNeededError(processes)


def run_or_start(command: str, argv: list[str], work: Callable[[], int]) -> int:
    """Return the exit code of `work` or, if it needs several processes, of the command in that many processes.

    In a process of torchrun an exception that leaves `work` is recorded, so that torchrun reports the first one.
    """
    if started_by_torchrun():
        from torch.distributed.elastic.multiprocessing.errors import record

        return record(work)() or DONE
    try:
        return work()
    except ProcessesNeededError as needed:
        return _start(command, argv, needed.processes)


def _start(command: str, argv: list[str], processes: int) -> int:
    """Run a command in this number of processes with torchrun. Return the first failure's exit code, or 0."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Each process reports its own errors, so torchrun's report is not needed.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)(*_program(), command, *argv)
    except ChildFailedError as error:
        # A rank that waited for the failed one ends with GAVE_UP, perhaps in the same second.
        failures = error.failures.values()
        code = min(failures, key=lambda failure: (failure.exitcode == GAVE_UP, failure.timestamp)).exitcode
        return code if code > 0 else SIGNALLED - code
    except SignalException:
        # Each process has saved and ended by itself, as a single process does.
        return INTERRUPTED
    return 0


def _program() -> list[str]:
    """Return Python's arguments that start this program again: a user's own file, which may register tasks, or ours."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None) or ""
    own = file.endswith(".py") and getattr(main, "__spec__", None) is None
    return [file] if own else ["-m", "rookworld_rlvr"]


def join_world(processes: int, device: torch.device) -> World:
    """Return the `World` that this process trains in. The ranks meet only once, and all members of a sweep share it.

    Raises UserError if the configuration needs several processes and torchrun has not started them.
    """
    if not started_by_torchrun():
        if processes > 1:
            raise UserError(f"processes: expected 1 here, several only train and smoke start, got {processes}")
        return World()
    return _ranks(device)


@cache
def _ranks(device: torch.device) -> World:
    from ..model.ranks import Ranks

    return Ranks(device)


def threads_of_a_rank(world: World) -> int:
    """Return the number of CPU threads for each process of this machine. A single process gets 0: torch chooses."""
    return 0 if world.local_size == 1 else max(1, len(os.sched_getaffinity(0)) // world.local_size)

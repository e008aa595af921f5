"""One of several ranks that exchange results and, in each case, disagree on purpose. It needs no model.

    python exchanges.py '{"cases": ["fewer results"], "timeout_s": 60, "out": "…"}'

The report has, for each case, the outcome on this rank: the result, or the type and the message of the error.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rookworld_rlvr.app.process import run_process
from rookworld_rlvr.model.ranks import Ranks

RANK = int(os.environ.get("RANK", "0"))
TIMEOUT_S = 60.0


class OwnError(Exception):
    """An error that cannot be unpickled: it needs an argument that pickle does not pass."""

    def __init__(self, place: str, number: int) -> None:
        super().__init__(f"{place} {number}")


class PickledError(Exception):
    """An error with its own way of being pickled, which loses its notes."""

    def __reduce__(self) -> tuple[type[Exception], tuple[str]]:
        return PickledError, (str(self),)


def failing(*ranks: int, error: Exception | None = None) -> Callable[[], int]:
    """Return work that raises an error on some ranks, and returns the rank on the others."""

    def work() -> int:
        if RANK in ranks:
            raise error or ValueError(f"broken on {RANK}")
        return RANK

    return work


def gradients(world: Ranks) -> list[Any]:
    """Sum a gradient of all ranks (1, 2, 3), one that only rank 1 has, and one that no rank has."""
    parameters = [torch.zeros(2, requires_grad=True) for _ in range(3)]
    parameters[0].grad = torch.full((2,), RANK + 1.0)
    if RANK == 1:
        parameters[1].grad = torch.tensor([5.0, 7.0])
    world.sum_gradients(parameters)
    return [None if one.grad is None else one.grad.tolist() for one in parameters]


def left_early(world: Ranks) -> list[int]:
    """Leave an exchange that contains another one by an error on rank 1, before the inner one."""

    def work() -> list[int]:
        failing(1)()
        return world.all_gather(lambda: RANK, "the inner one")

    return world.barrier(work, "the outer one")


def inside(world: Ranks) -> list[int]:
    """Leave an exchange that contains another one by an error on rank 1, in the inner one."""
    inner = failing(1, error=PickledError("broken inside"))
    return world.barrier(lambda: world.all_gather(inner, "the inner one"), "the outer one")


def late(world: Ranks) -> list[int]:
    if RANK == 2:
        time.sleep(1.5 * world._timeout_s)
    return world.all_gather(lambda: RANK, "scores")


def ended(world: Ranks) -> list[int]:
    if RANK == 1:
        os._exit(7)
    return world.all_gather(lambda: RANK, "scores")


CASES: dict[str, Callable[[Ranks], Any]] = {
    "in order": lambda world: world.gather_in_order(lambda: [10 * i for i in world.share(range(7))], "scores"),
    "rank 0 only": lambda world: world.rank_0_only(lambda: RANK + 5, "a file"),
    "a flag": lambda world: [world.any(RANK == 2, "stop"), world.any(False, "stop")],
    "gradients": gradients,
    "fewer results": lambda world: world.gather_in_order(lambda: [1] if RANK == 1 else [1, 2], "groups"),
    "an error": lambda world: world.all_gather(failing(1), "scores"),
    "several errors": lambda world: world.all_gather(failing(1, 2), "scores"),
    "memory": lambda world: world.barrier(failing(2, error=torch.OutOfMemoryError("none left")), "a pass"),
    "not picklable": lambda world: world.all_gather(failing(1, error=OwnError("at", 3)), "scores"),
    "left early": left_early,
    "inside": inside,
    "elsewhere": lambda world: world.any(True, "the clock" if RANK == 1 else "scores"),
    "late": late,
    "ended": ended,
}


def outcome(case: Callable[[Ranks], Any], world: Ranks) -> dict[str, Any]:
    began = time.monotonic()
    try:
        result = {"result": case(world)}
    except Exception as error:
        notes = " ".join(getattr(error, "__notes__", []))
        result = {"error": f"{type(error).__name__}: {error}", "notes": notes}
    return result | {"seconds": time.monotonic() - began}


def main() -> int:
    spec = json.loads(sys.argv[1])
    world = Ranks(torch.device("cpu"), spec.get("timeout_s", TIMEOUT_S))
    report = [outcome(CASES[name], world) for name in spec["cases"]]
    Path(f"{spec['out']}.{RANK}").write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    run_process(main)

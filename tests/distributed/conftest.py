"""A fixture that runs several ranks on one machine, each in its own process."""

import atexit
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RANK = Path(__file__).with_name("rank.py")
PATIENCE_S = 300


@dataclass(frozen=True)
class Ended:
    """The result of a process that has ended."""

    code: int
    text: str
    reports: list[Any]
    """What the process reported of each case; empty if it failed."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def forked(program: Path, spec: dict[str, Any], environment: dict[str, str], output: Path) -> int:
    """Run a program in a forked process, which has torch in memory already; return the process's id."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        # What the test runner does at its end is not for its copy to do.
        atexit._clear()
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
        os.environ.update(environment)
        sys.argv = [str(program), json.dumps(spec)]
        runpy.run_path(str(program), run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        # This process is a copy of the test runner, which must not continue here.
        os._exit(code)


def exit_codes(pids: list[int]) -> list[int]:
    """Wait for processes and return their exit codes; processes that do not end in time are killed."""
    deadline, codes = time.monotonic() + PATIENCE_S, dict[int, int]()
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., list[Ended]]:
    """Return a function that runs a program in `size` processes as torchrun does; a single one runs undistributed."""

    def run(program: Path, size: int, spec: dict[str, Any]) -> list[Ended]:
        port, pids, outputs = free_port(), [], [tmp_path / f"output-{size}-{rank}" for rank in range(size)]
        for rank, output in enumerate(outputs):
            of_rank = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            pids.append(forked(program, spec, of_rank if size > 1 else {}, output))
        ended = []
        for rank, (code, output) in enumerate(zip(exit_codes(pids), outputs, strict=True)):
            path = Path(f"{spec['out']}.{rank}")
            ended.append(Ended(code, output.read_text(), json.loads(path.read_text()) if path.is_file() else []))
            path.unlink(missing_ok=True)
        return ended

    return run


@pytest.fixture
def ranks(start: Callable[..., list[Ended]], small_overrides: list[str], tmp_path: Path) -> Callable[..., list[Ended]]:
    """Return a function that trains in `size` processes and returns their results by case and step."""

    def run(
        size: int, *cases: list[str], steps: int = 3, kind: str = "ddp", harm: Any = (), **spec: Any
    ) -> list[Ended]:
        several = [f"distributed={kind}", f"processes={size}"] if size > 1 else []
        given = spec | {
            "cases": [[*small_overrides, *several, *case] for case in cases],
            "steps": steps,
            "out": str(tmp_path / f"reports-{size}"),
            "replayed": str(tmp_path / "completions") if spec.get("replayed", True) else "",
            "harm": harm,
        }
        return start(RANK, size, given)

    return run

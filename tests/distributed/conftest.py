"""A fixture that runs several ranks on one machine, each in its own Python process."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RANK = Path(__file__).with_name("rank.py")
SOURCE = Path(__file__).resolve().parents[2] / "src"
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


@pytest.fixture
def start() -> Callable[..., list[Ended]]:
    """Return a function that runs a program in `size` processes as torchrun does; a single one runs undistributed."""

    def run(program: Path, size: int, spec: dict[str, Any]) -> list[Ended]:
        port, started = free_port(), []
        for rank in range(size):
            of_rank = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            environment = os.environ | {"PYTHONPATH": str(SOURCE)} | (of_rank if size > 1 else {})
            command = [sys.executable, str(program), json.dumps(spec)]
            started.append(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
        try:
            texts = [process.communicate(timeout=PATIENCE_S)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        ended = []
        for rank, (process, text) in enumerate(zip(started, texts, strict=True)):
            path = Path(f"{spec['out']}.{rank}")
            ended.append(Ended(process.returncode, text, json.loads(path.read_text()) if path.is_file() else []))
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

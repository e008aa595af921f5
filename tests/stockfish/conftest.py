"""Fixtures that wait for a condition and detect the end of a process."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

PATIENCE_S = 20


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], bool]], None]:
    """Function that waits until a condition is met, and fails after `PATIENCE_S` seconds."""

    def wait(met: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not met():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    return wait


@pytest.fixture(scope="session")
def gone() -> Callable[[int], bool]:
    """Function that returns True if a process has ended. A zombie process counts as ended."""

    def ended(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    return ended

"""Processes that are waited for."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

PATIENCE_S = 20


@pytest.fixture(scope="session")
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait until something is met; fails after a while."""

    def wait(met: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not met():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    return wait


@pytest.fixture(scope="session")
def gone() -> Callable[[int], bool]:
    """True if a process has ended; one that nobody has waited for counts."""

    def ended(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    return ended

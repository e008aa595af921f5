"""Seconds of a step's phases."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from .step_report import StepReport


@contextmanager
def timed(report: StepReport, phase: str) -> Iterator[None]:
    """Add what the block takes to the report's seconds of `phase`."""
    started = time.perf_counter()
    try:
        yield
    finally:
        report.times_s[phase] = report.times_s.get(phase, 0.0) + time.perf_counter() - started

"""The process's memory: its peak so far and the step's own, resident on a CPU, allocated on CUDA."""

import math
import resource
import sys

from ..model.device import allocated_peak_bytes, reset_allocated_peak
from .state import Moment, StepContext, StepReport

GIB = 2**30
# Written to clear_refs: forget the high-water mark, see proc(5).
FORGET_PEAK = "5"


class _Peak:
    """The process's peak memory, kept across resets of the system's counter."""

    before_gib = 0.0
    """Highest before the last reset."""
    of_step = False
    """Whether the mark was reset at the step's start."""


def peak_memory_gib() -> float:
    """Peak so far: resident memory of this process, or allocated CUDA memory where CUDA is in use."""
    return max(_Peak.before_gib, _mark_gib())


def step_peak_gib() -> float:
    """Peak since the step began; NaN if the system does not report it."""
    return _mark_gib() if _Peak.of_step else math.nan


def measure_peak(moment: Moment, _context: StepContext, _report: StepReport) -> None:
    """A hook that starts the measurement of a step's own peak."""
    if moment is not Moment.begun:
        return
    _Peak.before_gib = peak_memory_gib()
    if allocated_peak_bytes():
        reset_allocated_peak()
        _Peak.of_step = True
    else:
        _Peak.of_step = _forget_peak()


def _mark_gib() -> float:
    if allocated := allocated_peak_bytes():
        return allocated / GIB
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB


def _forget_peak() -> bool:
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write(FORGET_PEAK)
    except OSError:
        return False
    return True

"""Peak memory of the process, so far and within a step: resident memory on a CPU, allocated memory on CUDA."""

import math
import resource
import sys

from ..model.device import allocated_peak_bytes, reset_allocated_peak
from .state import Event, Moment, StepContext

GIB = 2**30
# Written to /proc/self/clear_refs to reset the peak of resident memory; see proc(5).
FORGET_PEAK = "5"


class _Peak:
    """Peak memory of the process, kept across resets of the system's counter."""

    before_gib = 0.0
    """Highest peak before the last reset."""
    of_step = False
    """True if the counter was reset at the start of the step."""


def peak_memory_gib() -> float:
    """Return the peak so far: resident memory of this process, or allocated CUDA memory if CUDA is in use."""
    return max(_Peak.before_gib, _mark_gib())


def step_peak_gib() -> float:
    """Return the peak since the step began; NaN if the system does not report it."""
    return _mark_gib() if _Peak.of_step else math.nan


def measure_peak(moment: Moment, _context: StepContext, _event: Event) -> None:
    """Start to measure the step's own peak when a step begins. This is a hook."""
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

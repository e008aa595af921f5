"""Settings of the process: its memory, the waiting of its threads, and its end. Imports no torch.

`prepare_process` is called before torch is imported.

glibc serves tensors of up to 32 MiB from one heap, where each new size leaves holes between those that live
longer: resident memory came to three times what was in use. Mapped on their own, large blocks go back as soon
as they are freed; huge pages make that cheap.

OpenMP's threads wait for each other busily. If another process occupies a core, the waiting thread burns the time in
which the missing thread could have run: a step of 1.3 s took 20. So a thread spins no longer than it takes to wake a
thread, and then sleeps.

A user's own settings of the environment win.
"""

import atexit
import ctypes
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

# From here up a block is mapped on its own. A step has many blocks of 2 to 4 MiB, and a mapping of that size holds no
# whole huge page: each of its pages is a fault of its own.
MAPPED_BYTES = 4 * 2**20
# glibc moves its thresholds by itself until one is set, then this one is 128 KiB: too often for small tensors.
TRIM_BYTES = 128 * 2**20
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    # Of libgomp, about 10 µs. A step has 12,000 waits; three in four end within it.
    "GOMP_SPINCOUNT": "2000",
    "THP_MEM_ALLOC_ENABLE": "1",
    # oneDNN compiles a kernel for every shape it meets and keeps 1,024, about 0.3 MiB each; torch's own cache in
    # front of it keeps 1,024 more. With lengths that never repeat, a run would grow for long.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
    "LRU_CACHE_CAPACITY": "32",
}
# Of malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def prepare_process() -> None:
    """Nothing but the environment where the C library is not glibc."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and not {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & os.environ.keys():
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)


def run_process(work: Callable[[], int]) -> NoReturn:
    """Do the work and end this process by the exit code that it returns, or by 1 and a traceback if it raises.

    One of several ranks skips the teardown of Python's interpreter. A rank whose exchange was cut off may still have a
    thread that waits for the other side; if that thread wakes during the teardown, the process ends by SIGABRT.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        sys.exit(work())
    try:
        code = work()
    except Exception:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

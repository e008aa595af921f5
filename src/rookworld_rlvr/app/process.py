"""Settings of the process: memory allocation, waiting threads, its begin and its end. Imports no torch.

`prepare_process` must be called before torch is imported.

glibc allocates tensors of up to 32 MiB from one heap. New sizes leave holes between longer-lived tensors, so that
resident memory was three times the memory in use. Blocks that are mapped individually are returned to the system as
soon as they are freed; huge pages make that cheap.

OpenMP's threads wait for each other actively. If another process occupies a core, a waiting thread uses up the time in
which the missing thread could run: a step of 1.3 s took 20 s. With these settings a thread spins only for about the
time that waking a thread takes, and then sleeps.

Environment variables that the user has set are not changed.

torch and transformers create a million objects, nearly all of which live as long as the process. Looking through them
for garbage takes a second while they are imported, and another one when the interpreter ends.
"""

import atexit
import ctypes
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

# Blocks of at least this size are mapped individually. A step has many blocks of 2 to 4 MiB, but a mapping of that size
# contains no complete huge page, so every small page in it would cost a page fault.
MAPPED_BYTES = 4 * 2**20
# glibc adapts its thresholds until one is set. This one would then stay at 128 KiB: too often for small tensors.
TRIM_BYTES = 128 * 2**20
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    # Option of libgomp; about 10 µs. A step has 12,000 waits, and three quarters of them end within this time.
    "GOMP_SPINCOUNT": "2000",
    "THP_MEM_ALLOC_ENABLE": "1",
    # oneDNN compiles a kernel for every new shape and caches 1,024 of them, about 0.3 MiB each. torch's own cache in
    # front of it keeps 1,024 more. With lengths that never repeat, a run's memory would grow for a long time.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
    "LRU_CACHE_CAPACITY": "32",
}
# Constants of malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def prepare_process() -> None:
    """Set the environment variables and, if the C library is glibc, its allocation thresholds."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and not {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & os.environ.keys():
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(M_TRIM_THRESHOLD, TRIM_BYTES)


def imported(name: str) -> ModuleType:
    """Import a module and return it; no garbage is collected meanwhile."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if collects:
            gc.enable()


def run_process(work: Callable[[], int]) -> NoReturn:
    """Call `work` and end this process with the exit code that it returns, or with 1 and a traceback if it raises.

    The last collection of garbage, at the interpreter's end, leaves out all objects.

    One of several ranks skips the teardown of Python's interpreter. A rank whose exchange was interrupted may still
    have a thread that waits for another rank. If that thread wakes up during the teardown, the process ends by SIGABRT.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        code = work()
        gc.freeze()
        sys.exit(code)
    try:
        code = work()
    except Exception:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

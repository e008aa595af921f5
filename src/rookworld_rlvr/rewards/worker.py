"""How a process of ours that another one started begins."""

import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait


def begin_worker() -> None:
    """Leave Ctrl-C, which reaches all processes of a terminal, to the parent; end this worker when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Wait for the parent's end. No queue shows it, because every worker holds both ends, nor does a computation."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)

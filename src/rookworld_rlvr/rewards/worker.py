"""How a process of ours that another one started begins."""

import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait


def begin_worker() -> None:
    """Ctrl-C goes to all of a terminal's processes, and is the parent's to handle; with the parent a worker ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Its end shows neither in a queue, whose both ends every worker holds, nor while something is computed."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)

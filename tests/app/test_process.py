"""A process ends with its exit code, whichever threads and objects it leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
# The interpreter's teardown destroys `left`, which aborts as a thread of a broken collective would.
PROGRAM = """
import atexit, os
from rookworld_rlvr.app.process import run_process

class Left:
    def __del__(self):
        os.abort()

def work():
    print("worked")
    {end}

left = Left()
atexit.register(print, "closed")
run_process(work)
"""


def ended(end: str, ranks: int) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "WORLD_SIZE": str(ranks), "RANK": "0"}
    command = [sys.executable, "-c", PROGRAM.format(end=end)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(("end", "code"), [("return 0", 0), ("return 4", 4), ("raise ValueError('broken')", 1)])
def test_rank_exits_with_its_code_without_interpreter_teardown(end: str, code: int) -> None:
    process = ended(end, ranks=2)
    assert process.returncode == code, process.stderr
    assert process.stdout == "worked\nclosed\n"
    assert ("ValueError: broken" in process.stderr) == (code == 1)


def test_single_process_waits_for_its_threads_and_destroys_nothing() -> None:
    late = "import threading, time; threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start(); return 3"
    process = ended(late, ranks=1)
    assert process.returncode == 3, process.stderr
    assert process.stdout == "worked\nlate\nclosed\n"

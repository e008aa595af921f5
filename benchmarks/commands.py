"""Helper with which the scripts in this folder call the commands of `rookworld`, as a user does."""

import shlex
import subprocess
import sys


def rookworld(who: str, *command: object) -> None:
    """Print a command and run it in a process of its own. If it fails, exit with a message that names `who`."""
    words = [str(word) for word in command]
    print(f"{who}: rookworld {shlex.join(words)}", flush=True)
    if code := subprocess.run([sys.executable, "-m", "rookworld_rlvr", *words], check=False).returncode:
        raise SystemExit(f"{who}: ended with exit code {code}")

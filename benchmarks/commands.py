"""The commands of `rookworld`, as a user calls them, for the scripts beside this file."""

import shlex
import subprocess
import sys


def rookworld(who: str, *command: object) -> None:
    """Run a command in a process of its own, and print it as it begins. Exits where it fails, and says `who` did."""
    words = [str(word) for word in command]
    print(f"{who}: rookworld {shlex.join(words)}", flush=True)
    if code := subprocess.run([sys.executable, "-m", "rookworld_rlvr", *words], check=False).returncode:
        raise SystemExit(f"{who}: ended with exit code {code}")

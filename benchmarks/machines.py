"""Run the quick tests as other machines and other users would. Once per release; not part of the tests.

    .venv/bin/python benchmarks/machines.py [CASE ...] [--tests tests/objective tests/training] [--workers 2]

A case is an instruction set that torch or oneDNN may use, a number of threads, a locale, a folder with blanks, a user
without root, a machine without Stockfish, or another version of Python, whose environment is made first. `--list`
names all. Each case prints one line: passed, skipped and failed tests and the time; then the names of failed tests. A
case that this machine cannot try says why. The exit code is 1 if a test failed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# A user without rights that every Unix has.
NOBODY = 65534
# pytest sets OMP_NUM_THREADS itself; the number of threads of a command is an option.
SMOKE = ("-m", "rookworld_rlvr", "smoke")


@dataclass(frozen=True)
class Case:
    """One machine or user."""

    environment: dict[str, str] = field(default_factory=dict)
    threads: int = 0
    """Above 0: the preflight checks with this number of threads take the place of the tests."""
    folder: str = ""
    """Name of a folder in which a copy of the project is tried; empty: here."""
    user: int = 0
    """Id of the user; 0: the present one."""
    python: str = ""
    """Version of Python; empty: that of .venv."""
    engine: bool = True
    """False: without Stockfish."""


CASES = {
    "here": Case(),
    **{f"torch-{name}": Case({"ATEN_CPU_CAPABILITY": name}) for name in ("default", "avx2", "avx512")},
    **{
        f"onednn-{name.lower()}": Case({"ONEDNN_MAX_CPU_ISA": name})
        for name in ("AVX2", "AVX512_CORE", "AVX512_CORE_BF16", "AVX512_CORE_AMX")
    },
    "avx2": Case({"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}),
    **{f"threads-{count}": Case(threads=count) for count in (1, 2, 4)},
    "locale-c": Case({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "locale-utf8": Case({"LC_ALL": "C.UTF-8"}),
    "blank": Case(folder="a folder (ü) #1"),
    "nobody": Case(folder="nobody", user=NOBODY),
    "no-engine": Case(engine=False),
    **{f"python-{version}": Case(python=version, folder=f"python-{version}") for version in PYTHONS},
}
COUNT = re.compile(r"(\d+) (passed|skipped|failed|error)")


class CannotTryError(Exception):
    """This machine lacks what a case needs."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(CASES)}")
    parser.add_argument("--tests", nargs="+", default=[], help="files and folders of tests; default: all")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest")
    parser.add_argument("--list", action="store_true", help="print the names of all cases and end")
    given = parser.parse_args()
    if unknown := set(given.cases) - set(CASES):
        parser.error(f"expected cases among {', '.join(CASES)}, got {', '.join(sorted(unknown))}")
    if given.list:
        print("\n".join(CASES))
        return 0
    failed = 0
    for name in given.cases or CASES:
        failed += tried(name, CASES[name], given.tests, given.workers)
    return int(failed > 0)


def tried(name: str, case: Case, tests: list[str], workers: int) -> int:
    """Try a case and print its line; return the number of failed tests."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="machines-") as temporary:
        os.chmod(temporary, 0o755)
        try:
            folder = ROOT if not case.folder else copied(Path(temporary) / case.folder)
            python = python_of(case, folder)
            command = [python, *SMOKE, f"threads={case.threads}"] if case.threads else pytest(python, tests, workers)
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment_of(case, folder),
                user=case.user or None,
                group=case.user or None,
                extra_groups=[] if case.user else None,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except (CannotTryError, PermissionError) as error:
            print(f"{name:<24} not tried: {error}", flush=True)
            return 0
    minutes = (time.monotonic() - started) / 60
    counts = {what: int(count) for count, what in COUNT.findall(done.stdout[-2000:])}
    failed = max(counts.get("failed", 0) + counts.get("error", 0), int(done.returncode != 0))
    shown = ", ".join(f"{count:,} {what}" for what, count in counts.items()) or f"exit code {done.returncode}"
    print(f"{name:<24} {shown}; {minutes:.1f} min", flush=True)
    if failed:
        named = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        print("\n".join(f"    {line}" for line in named or [*done.stdout.splitlines(), *done.stderr.splitlines()][-8:]))
    return failed


def pytest(python: str, tests: list[str], workers: int) -> list[str]:
    """Return the command of the quick tests."""
    options = ("-q", "-n", str(workers), "--dist", "worksteal", "-p", "no:cacheprovider", "-m", "not slow")
    return [python, "-m", "pytest", *options, *tests]


def copied(folder: Path) -> Path:
    """Copy the files that git knows into a folder and return it."""
    folder.mkdir()
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def python_of(case: Case, folder: Path) -> str:
    """Return the Python of a case. Raises CannotTryError if there is none."""
    if not case.python:
        return str(ROOT / ".venv/bin/python")
    found = shutil.which(f"python{case.python}")
    if not found or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        raise CannotTryError(f"no python{case.python} on the PATH")
    tools = folder / "tools"
    tools.mkdir()
    # The set-up takes the first of several names.
    for name in ("python3.11", "python3.12", "python3.13", "python3"):
        (tools / name).symlink_to(found)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "scripts/setup.sh", "test"]
    made = subprocess.run(
        command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise CannotTryError(f"no environment: {(made.stderr.strip() or made.stdout.strip()).splitlines()[-1]}")
    return str(folder / ".venv/bin/python")


def environment_of(case: Case, folder: Path) -> dict[str, str]:
    """Return the environment variables of a case."""
    environment = os.environ | case.environment | {"PYTHONPATH": str(folder / "src")}
    if case.user:
        environment |= {"HOME": str(folder), "USER": "nobody", "TMPDIR": str(folder)}
        for path in (folder, *folder.rglob("*")):
            os.chown(path, case.user, case.user)
    if not case.engine:
        # A path that is set and wrong is not replaced by another engine.
        environment["STOCKFISH_PATH"] = str(folder / "no" / "stockfish")
    return environment


if __name__ == "__main__":
    sys.exit(main())

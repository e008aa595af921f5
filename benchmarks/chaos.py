"""Kill a run at random moments, resume it every time, and compare it with an uninterrupted run.

    python benchmarks/chaos.py --kills 30 --seed 0

The kills are SIGKILLs during start-up, steps and saves. After every kill each checkpoint that exists is loaded with
`torch.load` and `from_pretrained`. At the end metrics (except time, throughput and memory), transcripts, tables,
weights and the trainer's state must be those of the uninterrupted run, bit for bit; otherwise the exit code is 1.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from rookworld_rlvr.training.checkpoint import STATE_FILE, list_checkpoints
from rookworld_rlvr.training.run_files import METRICS_FILE, ROLLOUTS_FILE, SUMMARY
from rookworld_rlvr.training.trainer import BEFORE_ROWS

# Small steps with a save after each, so that saves take much of the time; KL coefficient and reference change too.
RUN = (
    "objective.prompts_per_step=2",
    "objective.group_size=2",
    "generator.max_new_tokens=32",
    "evaluation.rows=2",
    "evaluation.match_pairs=0",
    # A checkpoint's model then has the weights of the trainer's state, not their mean with the starting weights.
    "start_share=0",
    "checkpoint_every=1",
    "evaluation.curve_every=5",
    "evaluation.curve_rows=2",
    "kl.warmup_steps=40",
    "reference.refresh_every=7",
    "precision=fp32",
    "device=cpu",
    "threads=1",
)
OF_THE_MACHINE = ("time/", "throughput/", "memory/")
TABLES = ("steps", "stopped", "before", "after", "gain", "preflight", "recovery")
# Phases at which kills are aimed, and their shares: a save is short and would seldom be hit by chance.
AIMS = {"start-up": 0.2, "step": 0.4, "save": 0.4}
POLL_S = 0.001
PATIENCE_S = 300


class ChaosError(RuntimeError):
    """A process failed, or the killed run lost something."""


@dataclass(frozen=True)
class Pace:
    """Durations on this machine, from the uninterrupted run."""

    start_s: float
    """From the start of the process to the line of the first step."""
    step_s: float
    """Duration of a step with its save."""
    save_s: float
    """The shortest time from the first file of a checkpoint to its final name."""


@dataclass(frozen=True)
class Kill:
    """Moment at which a kill is due."""

    aim: str
    step: int
    """Step that must be printed before the kill; unused in start-up."""
    fraction: float
    """Delay of the kill, as a fraction of the start-up, the next step or the next save."""


class Process:
    """A process of `rookworld train` that prints to a file."""

    def __init__(self, log: Path, overrides: Sequence[str]) -> None:
        command = [sys.executable, "-m", "rookworld_rlvr", "train", *overrides]
        self._log = log
        with log.open("w") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)

    def step(self) -> int:
        """Return the last step that this process has printed; 0 before the first."""
        lines = [line for line in self._log.read_text(encoding="utf-8").splitlines() if line.startswith("step ")]
        return int(lines[-1].split()[1].split("/")[0]) if lines else 0

    def wait_until(self, condition: Callable[[], object]) -> bool:
        """Wait for `condition()`; return False if the process ends first. Raises ChaosError if it fails or hangs."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self._process.poll() is not None:
                self.finish()
                return False
            if time.monotonic() > deadline:
                self.kill()
                raise ChaosError(f"expected an end or a step within {PATIENCE_S} s, see {self._log}")
            time.sleep(POLL_S)
        return True

    def finish(self) -> None:
        """Wait for the end. Raises ChaosError if the exit code is not 0."""
        code = self._process.wait()
        if code:
            last = self._log.read_text(encoding="utf-8").splitlines()[-1:]
            raise ChaosError(f"expected exit code 0, got {code}: {''.join(last)}")

    def kill(self) -> bool:
        """Send SIGKILL; return False if the process had already ended."""
        alive = self._process.poll() is None
        self._process.kill()
        self._process.wait()
        return alive


def run_uninterrupted(root: Path, steps: int) -> tuple[Path, Pace]:
    """Make the run to compare with; return its folder and its pace."""
    started, saves = time.monotonic(), list[float]()
    process = Process(root / "whole.txt", [*RUN, f"steps={steps}", f"output_root={root / 'whole'}"])
    process.wait_until(lambda: process.step() >= 1)
    first = last = time.monotonic()
    while process.wait_until(lambda: unfinished(root / "whole/latest") or process.step() == steps):
        if not unfinished(root / "whole/latest"):
            break
        begun = time.monotonic()
        process.wait_until(lambda: not unfinished(root / "whole/latest"))
        last = time.monotonic()
        saves.append(last - begun)
    process.finish()
    pace = Pace(first - started, (last - first) / max(1, steps - 1), min(saves))
    return (root / "whole/latest").resolve(), pace


def unfinished(folder: Path, kind: str = ".writing-") -> set[tuple[str, int]]:
    """Return unfinished checkpoints by name and time. One that a kill left stays until the next save."""
    files = set()
    for path in (folder / "checkpoints").glob(f"{kind}*"):
        # It may have been renamed or removed by now.
        with suppress(FileNotFoundError):
            files.add((path.name, path.lstat().st_ctime_ns))
    return files


def plan(kills: int, steps: int, rng: random.Random) -> list[Kill]:
    """Spread kills over the whole run, so that it reaches its end however often it is killed."""
    targets = sorted(rng.randrange(steps) for _ in range(kills))
    aims = rng.choices(list(AIMS), list(AIMS.values()), k=kills)
    return [Kill(aim, target, rng.random()) for aim, target in zip(aims, targets, strict=True)]


def kill_one(process: Process, kill: Kill, pace: Pace, folder: Path) -> bool:
    """Kill the process when the kill is due; return False if it ended before."""
    left = unfinished(folder)
    if kill.aim == "start-up":
        time.sleep(kill.fraction * pace.start_s)
        return process.kill()
    if not process.wait_until(lambda: process.step() >= max(1, kill.step)):
        return False
    if kill.aim == "save" and not process.wait_until(lambda: unfinished(folder) - left):
        return False
    time.sleep(kill.fraction * (pace.save_s if kill.aim == "save" else pace.step_s))
    return process.kill()


def moment(folder: Path, process: Process, before: set[tuple[str, int]]) -> str:
    """Return the phase that the kill hit, judged by the files that did not exist `before`."""
    new = {name for name, _ in unfinished(folder, ".") - before}
    if any(name.startswith(".writing-") for name in new):
        return "in a save"
    if new:
        return "while old ones went"
    return "in or after a step" if process.step() else "in start-up"


def check_readable(folder: Path) -> int:
    """Return the number of checkpoints. Raises ChaosError if one cannot be read or a link points nowhere."""
    checkpoints = list_checkpoints(folder)
    for checkpoint in checkpoints:
        try:
            state = torch.load(checkpoint / STATE_FILE, weights_only=False)
            weights = AutoModelForCausalLM.from_pretrained(checkpoint).state_dict()
        except Exception as error:
            raise ChaosError(f"expected to read {checkpoint}, got {error!r}") from error
        if any(not torch.equal(value, state["policy"][name]) for name, value in weights.items()):
            raise ChaosError(f"expected the same weights twice in {checkpoint}")
    for link in (folder / "checkpoints").glob("*"):
        if link.is_symlink() and not link.name.startswith(".") and not link.exists():
            raise ChaosError(f"expected {link} to lead to a checkpoint")
    return len(checkpoints)


def differences(folder: Path, whole: Path, steps: int) -> list[str]:
    """Return the names of the parts in which two finished runs differ."""
    last = f"checkpoints/step-{steps}"
    pairs: dict[str, Callable[[Path], Any]] = {
        METRICS_FILE: metrics,
        ROLLOUTS_FILE: lambda run: (run / ROLLOUTS_FILE).read_bytes(),
        BEFORE_ROWS: lambda run: (run / BEFORE_ROWS).read_bytes(),
        SUMMARY: lambda run: [json.loads((run / SUMMARY).read_text(encoding="utf-8"))[key] for key in TABLES],
        "weights": lambda run: (run / last / "model.safetensors").read_bytes(),
        STATE_FILE: lambda run: leaves(torch.load(run / last / STATE_FILE, weights_only=False)),
        "checkpoints": lambda run: [path.name for path in list_checkpoints(run)],
    }
    return [name for name, read in pairs.items() if read(folder) != read(whole)]


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of each step without those that depend on the machine's speed."""
    rows = [json.loads(line) for line in (run / METRICS_FILE).read_text(encoding="utf-8").splitlines()]
    return [{key: row[key] for key in row if not key.startswith(OF_THE_MACHINE)} for row in rows]


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested containers by path; tensors as bytes."""
    if isinstance(value, torch.Tensor):
        return {path: (str(value.dtype), tuple(value.shape), value.cpu().contiguous().numpy().tobytes())}
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {name: leaf for key, one in items for name, leaf in leaves(one, f"{path}/{key}").items()}
    return {path: value}


def chaos(arguments: argparse.Namespace, root: Path) -> None:
    """Make the uninterrupted run and the killed one, and compare them. Raises ChaosError."""
    rng = random.Random(arguments.seed)
    whole, pace = run_uninterrupted(root, arguments.steps)
    print(
        f"left alone: start-up {pace.start_s:.1f} s, a step {pace.step_s:.2f} s, a save from {pace.save_s:.2f} s",
        flush=True,
    )
    latest = root / "killed/latest"
    fresh = [*RUN, f"steps={arguments.steps}", f"output_root={root / 'killed'}"]
    moments: Counter[str] = Counter()
    read = 0
    for number, kill in enumerate(plan(arguments.kills, arguments.steps, rng), start=1):
        before = unfinished(latest, ".")
        process = Process(root / "killed.txt", [f"resume={latest}"] if latest.exists() else fresh)
        if not kill_one(process, kill, pace, latest):
            raise ChaosError(f"the run came to its end before kill {number}: raise --steps")
        where, checkpoints = moment(latest, process, before), check_readable(latest)
        moments[where] += 1
        read += checkpoints
        print(
            f"kill {number:>3}: {where:<20} step {process.step():>4}, {checkpoints} checkpoints, all readable",
            flush=True,
        )
    Process(root / "killed.txt", [f"resume={latest}"]).finish()
    check_readable(latest)
    different = differences(latest.resolve(), whole, arguments.steps)
    print_table(moments, read, different)
    if different:
        raise ChaosError(f"expected what the run left alone has, differs in: {', '.join(different)}")


def print_table(moments: Counter[str], read: int, different: list[str]) -> None:
    """Print the events as a Markdown table."""
    kills = moments.total()
    rows = [
        ("kills (SIGKILL)", kills),
        *sorted(moments.items()),
        ("resumed", f"{kills}/{kills}"),
        ("checkpoints read after kills", read),
        ("unreadable", 0),
        ("different from the run left alone", ", ".join(different) or "nothing"),
    ]
    print("\n| | |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the moments; the run's own is fixed")
    parser.add_argument("--steps", type=int, default=65)
    parser.add_argument("--out", type=Path, help="keep both runs here; else they are removed")
    arguments = parser.parse_args()
    transformers_logging.disable_progress_bar()
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            chaos(arguments, arguments.out or Path(scratch))
        except ChaosError as error:
            print(f"chaos: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

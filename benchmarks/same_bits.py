"""Check whether two commits train bit for bit the same.

    .venv/bin/python benchmarks/same_bits.py BASE [COMMIT] [--steps 4]

Makes the same short seeded runs with both commits, on one thread: the default run; a run with several updates per step,
the KL in the reward and a moving reference; a run with Stockfish as the scorer. Compares every metric of every step,
except time, throughput, memory and the engine's cache, and prints each that differs. The exit code is 1 if one does.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUNS = {
    "default": [],
    "several updates": ["objective.epochs=2", "kl.form=in_reward", "reference.refresh_every=2"],
    "engine": ["rubric.source=engine"],
}
SHORT = ["threads=1", "seed=0", "evaluation.rows=0", "evaluation.match_pairs=0"]
# Earlier spellings, for a commit that does not know the present ones: options by the file that introduced the present
# spelling, and metric keys.
EARLIER_OPTIONS = {"evaluation.rows": "evaluation_rows", "evaluation.match_pairs": "match_pairs"}
KNOWS_PRESENT_OPTIONS = "src/rookworld_rlvr/evaluation/config.py"
EARLIER_KEYS = {"judge/verdict/": "scorer/source/", "judge/": "scorer/", "reward/part/": "reward/component/"}
# Metrics that depend on the machine, or on the cache, in which the second run finds the evaluations of the first.
NOT_COMPARED = ("time/", "throughput/", "memory/", "scorer/engine_wait_s", "scorer/engine_cached_fraction")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    differing = 0
    with tempfile.TemporaryDirectory() as folder:
        trees = [check_out(commit, Path(folder) / side) for side, commit in (("a", given.base), ("b", given.commit))]
        for name, overrides in RUNS.items():
            one, other = (metrics(tree, [*SHORT, f"steps={given.steps}", *overrides]) for tree in trees)
            keys = differences(one, other)
            differing += len(keys)
            print(f"{name}: {len(one)} and {len(other)} steps, {count(one)} values compared, {len(keys)} keys differ")
            for key, (step, values) in keys.items():
                print(f"  {key}: first in step {step}, {values[0]} and {values[1]}")
    return int(differing > 0)


def check_out(commit: str, folder: Path) -> Path:
    """Write the files of a commit into `folder` and return it."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def metrics(tree: Path, overrides: list[str]) -> list[dict[str, Any]]:
    """Return the metrics of each step of a run with the source code in `tree`, with today's keys."""
    if not (tree / KNOWS_PRESENT_OPTIONS).is_file():
        pairs = (override.partition("=") for override in overrides)
        overrides = [f"{EARLIER_OPTIONS.get(key, key)}={value}" for key, _, value in pairs]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rookworld_rlvr", "train", *overrides]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} in {tree}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    lines = (tree / "outputs" / "latest" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{present(key): value for key, value in json.loads(line).items()} for line in lines]


def present(key: str) -> str:
    """Return today's name of a metric's key."""
    earlier = next((name for name in EARLIER_KEYS if key.startswith(name)), "")
    return EARLIER_KEYS.get(earlier, "") + key.removeprefix(earlier)


def count(steps: list[dict[str, Any]]) -> int:
    return sum(not key.startswith(NOT_COMPARED) for step in steps for key in step)


def differences(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, tuple[int, tuple[Any, Any]]]:
    """Return for each differing key its first differing step and both values, None if a side lacks the key."""
    differing: dict[str, tuple[int, tuple[Any, Any]]] = {}
    if len(one) != len(other):
        differing["step"] = (min(len(one), len(other)), (len(one), len(other)))
    for step, (ours, theirs) in enumerate(zip(one, other, strict=False), start=1):
        for key in sorted(ours.keys() | theirs.keys()):
            values = (ours.get(key), theirs.get(key))
            if not key.startswith(NOT_COMPARED) and values[0] != values[1]:
                differing.setdefault(key, (step, values))
    return differing


if __name__ == "__main__":
    sys.exit(main())

"""A model from nothing: rows labelled by Stockfish, behaviour cloning on them, GRPO, and every suite before and after.

    python benchmarks/from_nothing.py --out FOLDER --rows 2000 --warmstart model.steps=300
    python benchmarks/from_nothing.py --out FOLDER --rows 200000 --processes 16 --mates FILE --puzzles FILE \\
        --warmstart model.layers=12 model.width=768 model.heads=12 model.lr=6e-4 --train optim=rookworld_124m

The second line, a GPT-2 of 124M parameters but for its small vocabulary, on a GPU, has not been run. Each stage is one
command of `rookworld`, printed as it begins; what is there is not repeated; rows and cloning go on where they stopped.
No held-out row is learned from, and no mate or puzzle is asked that was. Ends with what GRPO changed, every key of
every suite, paired, with its 95 % interval, and the seconds of each stage (of the call that ended it).
"""

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path

# Beside this file.
from commands import rookworld

from rookworld_rlvr.training.checkpoint import list_checkpoints

SUITES = ("policy", "environment", "balanced", "selfplay", "world_model", "engine_match")
SOLVED = ("mate_in_one", "puzzles")
"""Suites that are asked where a file is given."""
TIMES = "times.json"


def main() -> None:
    """Parse, run what is missing, print."""
    given = _arguments()
    out: Path = given.out
    files = {name: path for name in SOLVED if (path := getattr(given, name))}
    rows, warm = out / "data", out / "warm"
    corpus = [rows / "policy.txt", rows / "environment.txt"]
    asked = ["--rows", given.rows, "--seed", given.seed, "--processes", given.processes, "--out", rows]
    run_stage(out, "rows", "data", "generate", *asked)
    cloned = [_list("corpus", corpus), f"output={warm}", f"seed={given.seed}"]
    run_stage(out, "cloning", "warmstart", *cloned, *given.warmstart)
    suites = [_list("suites", [*SUITES, *files]), _list("data.exclude", corpus), f"seed={given.seed}"]
    suites += [f"{name}.path={path}" for name, path in files.items()]
    before, after, runs = out / "before.json", out / "after.json", out / "runs"
    run_stage(out, "suites before", "evaluate", f"model.path={warm}", f"output={before}", *suites, *given.evaluate)
    latest = runs / "latest"
    begun = [f"resume={latest}"] if latest.exists() else [f"model.path={warm}", f"output_root={runs}"]
    run_stage(out, "GRPO", "train", *begun, f"seed={given.seed}", *given.train)
    trained = list_checkpoints(latest)[-1]
    run_stage(out, "suites after", "evaluate", f"model.path={trained}", f"output={after}", *suites, *given.evaluate)
    rookworld("comparison", "evaluate", "compare", before, after, "--json", out / "gain.json")
    print("\n".join(f"{name}: {seconds:.0f} s" for name, seconds in _times(out).items()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=20_000, help="of each task; default %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="of Stockfish")
    parser.add_argument("--mates", type=Path, dest="mate_in_one", help="a file of the suite mate_in_one")
    parser.add_argument("--puzzles", type=Path, help="a file of the suite puzzles")
    for command in ("warmstart", "train", "evaluate"):
        parser.add_argument(f"--{command}", nargs="*", default=[], metavar="OVERRIDE", help=f"of rookworld {command}")
    return parser.parse_args()


def run_stage(out: Path, name: str, *command: object) -> None:
    """Run a command of `rookworld` where it has not ended well before; its seconds are kept in `out`."""
    if name not in _times(out):
        began = time.perf_counter()
        rookworld(name, *command)
        times_s = _times(out) | {name: time.perf_counter() - began}
        (out / TIMES).write_text(json.dumps(times_s, indent=2), encoding="utf-8")


def _times(out: Path) -> dict[str, float]:
    path = out / TIMES
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _list(key: str, values: Iterable[object]) -> str:
    return f"{key}=[{','.join(map(str, values))}]"


if __name__ == "__main__":
    main()

"""The main job under three judges and on one task, over seeds: what each run gains, measured by the same engine.

    python benchmarks/judges.py --out FOLDER
    python benchmarks/judges.py --out FOLDER --seeds 0 --runs labels engine -- steps=60 evaluation_rows=512

Every run is `rookworld train` with the default configuration but for what its name says. Held out, greedy, before and
after; the engine that measures looks at twice the nodes of the one that judges. Prints two tables in Markdown: the
paired gain of each run with its 95 % interval, and means over seeds with their spread. A run that has a summary is not
repeated.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev

RUNS = {
    "labels": "rubric=default",
    "rules": "rubric=rules",
    "engine": "rubric=engine",
    "environment": "experiment=environment_only",
}
LOSS = "policy/win_probability_loss"
KEYS = (LOSS, "policy/legal_best_move", "policy/best_move_accuracy", "policy/valid", "environment/next_state_accuracy")
MEASURE = "evaluation_nodes=40000"

Gains = dict[str, dict[str, float]]
"""By key: value, low and high of the paired difference, and the value before."""


def gains_of(name: str, seed: int, out: Path, overrides: list[str]) -> Gains:
    """The gains of one run, which is run where it has no summary. Exits where it fails."""
    root = out / f"{name}-{seed}"
    summary = root / "latest" / "summary.json"
    if not summary.exists():
        given = [RUNS[name], f"seed={seed}", f"name={name}", MEASURE, f"output_root={root}", *overrides]
        code = subprocess.run([sys.executable, "-m", "rookworld_rlvr", "train", *given], check=False).returncode
        if code:
            raise SystemExit(f"{name}, seed {seed}: ended with exit code {code}")
    told = json.loads(summary.read_text(encoding="utf-8"))
    return {key: told["gain"][key] | {"before": told["before"][key]["value"]} for key in KEYS}


def runs_table(found: dict[str, dict[int, Gains]]) -> str:
    """A run a line: the paired gain of each key and its interval."""
    lines = ["| run | seed | " + " | ".join(f"`{key}`" for key in KEYS) + " |", "|---" * (len(KEYS) + 2) + "|"]
    before = next(iter(next(iter(found.values())).values()))
    lines.append("| before | | " + " | ".join(f"{before[key]['before']:.4f}" for key in KEYS) + " |")
    for name, seeds in found.items():
        for seed, gains in seeds.items():
            cells = (f"{gain['value']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]" for gain in gains.values())
            lines.append(f"| {name} | {seed} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def means_table(found: dict[str, dict[int, Gains]]) -> str:
    """A kind of run a line: mean gain ± standard deviation over its seeds."""
    lines = ["| run | seeds | " + " | ".join(f"`{key}`" for key in KEYS) + " |", "|---" * (len(KEYS) + 2) + "|"]
    for name, seeds in found.items():
        values = [[gains[key]["value"] for gains in seeds.values()] for key in KEYS]
        cells = (f"{fmean(row):+.4f} ± {stdev(row) if len(row) > 1 else 0:.4f}" for row in values)
        lines.append(f"| {name} | {len(seeds)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parse, run what is missing, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", choices=RUNS, nargs="+", default=list(RUNS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("override", nargs="*", help="hydra overrides for every run")
    arguments = parser.parse_args()
    found = {
        name: {seed: gains_of(name, seed, arguments.out, arguments.override) for seed in arguments.seeds}
        for name in arguments.runs
    }
    print(f"{runs_table(found)}\n\n{means_table(found)}")


if __name__ == "__main__":
    main()

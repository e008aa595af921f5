"""The main job under three judges and on one task alone, over seeds: what each run gains, and what it forgets.

    python benchmarks/judges.py --out FOLDER
    python benchmarks/judges.py --out FOLDER --seeds 0 --runs labels engine -- steps=60 evaluation_rows=512

Every run is `rookworld train` with the default configuration but for what its name says. Held out, greedy, before and
after; the engine that measures looks at twice the nodes of the one that judges. Runs on one task, and the mixed one
beside them, then are evaluated on both tasks and their labels, and compared with the model they began from.
Prints tables in Markdown: the paired gain of each run with its 95 % interval, means over seeds with their spread, and
for each task what changed. What is there already is not repeated.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, stdev

# Beside this file.
from commands import rookworld
from omegaconf import OmegaConf

from rookworld_rlvr.training.checkpoint import list_checkpoints

RUNS = {
    "verdicts": "rubric.source=cached",
    "labels": "rubric=labels",
    "rules": "rubric=rules",
    "engine": "rubric=engine",
    "policy": "experiment=policy_only",
    "environment": "experiment=environment_only",
}
LOSS = "policy/win_probability_loss"
KEYS = (LOSS, "policy/legal_best_move", "policy/best_move_accuracy", "policy/valid", "environment/next_state_accuracy")
MEASURE = ("evaluation_nodes=40000", "match_pairs=0")
RETAINED = ("labels", "policy", "environment")
"""The mixed run and those of one task."""
RETENTION = {
    "policy": ("legal_best_move", "legal_candidates", "best_move_accuracy", "valid"),
    "environment": ("next_state_accuracy", "reward_accuracy", "recall_illegal", "recall_win", "recall_draw"),
}
SUITES = "suites=[policy,environment,label_loss]"

Table = dict[str, dict[str, float]]
"""By key: value, low and high of a paired difference, and the value before."""
Gains = dict[str, dict[int, Table]]
"""By run and seed."""


def gains_of(name: str, seed: int, out: Path, overrides: list[str]) -> Table:
    """The gains of one run, which is run where it has no summary. Exits where it fails."""
    root = out / f"{name}-{seed}"
    summary = root / "latest" / "summary.json"
    if not summary.exists():
        given = [RUNS[name], f"seed={seed}", f"name={name}", *MEASURE, f"output_root={root}", *overrides]
        rookworld(f"{name}, seed {seed}", "train", *given)
    content = json.loads(summary.read_text(encoding="utf-8"))
    return {key: content["gain"][key] | {"before": content["before"][key]["value"]} for key in KEYS}


def retention_of(name: str, seed: int, out: Path) -> Table:
    """Retention of a finished run's last checkpoint; evaluated if no result lies beside it.

    Without the keys of which the held-out rows have no case.
    """
    run = out / f"{name}-{seed}" / "latest"
    result, start, end = (run / f"{part}.json" for part in ("retention", "start", "end"))
    if not result.exists():
        config = OmegaConf.load(run / "config.yaml")
        same = [f"{key}={OmegaConf.select(config, key)}" for key in ("evaluation_rows", "threads", "seed")]
        for model, output in ((config.model.path, start), (list_checkpoints(run)[-1], end)):
            given = [SUITES, f"model.path={model}", f"output={output}", *same]
            rookworld(f"{name}, seed {seed}, {output.stem}", "evaluate", *given)
        rookworld(f"{name}, seed {seed}, retention", "evaluate", "compare", str(start), str(end), "--json", str(result))
    table = json.loads(result.read_text(encoding="utf-8"))["table"]
    return {key: table[key]["gain"] | {"before": table[key]["first"]} for key in kept_keys() if key in table}


def kept_keys() -> list[str]:
    """The keys of both tasks, and the losses of their labels."""
    metrics = [f"{task}/{metric}" for task, metrics in RETENTION.items() for metric in metrics]
    return [*metrics, *(f"label_loss/{task}" for task in RETENTION)]


def runs_table(gains: Gains, keys: Iterable[str]) -> str:
    """A run a line: the paired change of each key and its interval."""
    keys = list(keys)
    lines = ["| run | seed | " + " | ".join(f"`{key}`" for key in keys) + " |", "|---" * (len(keys) + 2) + "|"]
    before = next(iter(next(iter(gains.values())).values()))
    lines.append("| before | | " + " | ".join(f"{before[key]['before']:.4f}" for key in keys) + " |")
    for name, seeds in gains.items():
        for seed, changes in seeds.items():
            changed = (changes[key] for key in keys)
            numbers = ([float(entry[name]) for name in ("value", "low", "high")] for entry in changed)
            cells = (f"{value:+.4f} [{low:+.4f}, {high:+.4f}]" for value, low, high in numbers)
            lines.append(f"| {name} | {seed} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def means_table(runs: Gains) -> str:
    """A kind of run a line: mean gain ± standard deviation over its seeds."""
    lines = ["| run | seeds | " + " | ".join(f"`{key}`" for key in KEYS) + " |", "|---" * (len(KEYS) + 2) + "|"]
    for name, seeds in runs.items():
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
    out: Path = arguments.out
    gains = {
        name: {seed: gains_of(name, seed, out, arguments.override) for seed in arguments.seeds}
        for name in arguments.runs
    }
    print(f"{runs_table(gains, KEYS)}\n\n{means_table(gains)}")
    kept = {
        name: {seed: retention_of(name, seed, out) for seed in arguments.seeds}
        for name in arguments.runs
        if name in RETAINED
    }
    for task in RETENTION if kept else ():
        common = set.intersection(*(set(table) for seeds in kept.values() for table in seeds.values()))
        print(f"\n{runs_table(kept, sorted(key for key in common if task in key.split('/')))}")


if __name__ == "__main__":
    main()

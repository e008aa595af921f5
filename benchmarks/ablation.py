"""Advantage scale, outcome filter and KL form on the shipped tiny model, one factor at a time.

    python benchmarks/ablation.py --seeds 0 1 2 --steps 50 --out FOLDER

Every run has the same prompts, samples and steps; what differs is named. Greedy held-out metrics before and
after, mean over seeds with its spread. Writes `ablation.json`, a table in Markdown and `ablation.svg`; the
figures of the project's own machine are in `docs/results.md`. A run that is in the JSON already is not repeated.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from omegaconf import OmegaConf

from rookworld_rlvr.app.build import build_run
from rookworld_rlvr.evaluation import summarise
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.evaluations import evaluate_rows
from rookworld_rlvr.training.loop import run_steps
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.trainer import begin

KEYS = ("policy/legal_best_move", "policy/valid", "policy/legal_candidates", "environment/next_state_accuracy")
COMMON = ["objective.prompts_per_step=4", "optim.lr=3e-4", "kl.coef=0.02", "threads=1"]
# ratio_corrected is left out: on-policy its gradient is that of k2_straight_through, token by token.
CONFIGS = {
    "batch std, no filter, k2": [],
    "group std": ["objective.advantage.scale=group"],
    "no scale": ["objective.advantage.scale=none"],
    "outcome filter": ["objective.advantage.outcome_filter=true"],
    "exact KL": ["kl.form=exact"],
    "k1 in the reward": ["kl.form=in_reward"],
    "naive k3": ["kl.form=k3_naive"],
}


def make_run(overrides: list[str], arguments: argparse.Namespace, seed: int) -> Run:
    """A run of one configuration and seed."""
    shared = [f"steps={arguments.steps}", f"seed={seed}", f"evaluation_rows={arguments.rows}", "match_pairs=0"]
    shared += [f"output_root={arguments.out / 'runs'}", "name=ablation"]
    given = OmegaConf.from_dotlist([*COMMON, *shared, *overrides])
    raw = OmegaConf.merge(OmegaConf.structured(RunConfig), given)
    config: Any = OmegaConf.to_object(raw)
    return build_run(config, raw)


def table_of(run: Run) -> dict[str, float]:
    """The greedy held-out metrics of the policy as it is."""
    measures = summarise(evaluate_rows(run, "table", run.data.held_out))
    return {key: measures[key].value for key in KEYS}


def measure(overrides: list[str], arguments: argparse.Namespace, seed: int) -> dict[str, float]:
    """Train one run and take its table, with the last step's KL and mean reward of the last ten."""
    run = make_run(overrides, arguments, seed)
    data, run.data = run.data, replace(run.data, held_out=())
    begin(run)
    run_steps(run, 0)
    run.data = data
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()][-10:]
    return table_of(run) | {
        "kl/original": fmean(line["kl/original"] for line in lines),
        "reward/mean": fmean(line["reward/mean"] for line in lines),
        "recovery/skipped": lines[-1]["recovery/skipped"],
    }


def table(results: dict[str, Any]) -> str:
    """Markdown: a configuration a line, mean over seeds ± standard deviation."""
    before = results["before"]
    columns = [*KEYS, "kl/original", "reward/mean"]
    lines = ["| configuration | " + " | ".join(f"`{key}`" for key in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    shown = [f"{before[key]:.4f}" if key in before else "" for key in columns]
    lines.append("| before | " + " | ".join(shown) + " |")
    for name, seeds in results["runs"].items():
        cells = []
        for key in columns:
            values = [values[key] for values in seeds.values()]
            cells.append(f"{fmean(values):.4f} ± {stdev(values) if len(values) > 1 else 0:.4f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(results: dict[str, Any], path: Path) -> None:
    """The gain in legal best moves of every run, a configuration a line."""
    import matplotlib.pyplot as plt

    key, names = KEYS[0], list(results["runs"])
    figure, axes = plt.subplots(figsize=(7, 0.45 * len(names) + 1.2))
    for y, name in enumerate(names):
        gains = [values[key] - results["before"][key] for values in results["runs"][name].values()]
        axes.plot(gains, [y] * len(gains), "o", color="tab:blue", alpha=0.6)
        axes.plot(fmean(gains), y, "|", color="black", markersize=16)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"gain in {key}, one dot a seed")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Parse, run what is missing, write after every run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rows", type=int, default=768, help="held-out rows a task")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "ablation.json"
    results = json.loads(path.read_text()) if path.exists() else {"before": None, "runs": {}}
    if results["before"] is None:
        results["before"] = table_of(make_run([], arguments, 0))
    for seed in arguments.seeds:
        for name, overrides in CONFIGS.items():
            done = results["runs"].setdefault(name, {})
            if str(seed) not in done:
                done[str(seed)] = measure(overrides, arguments, seed)
                path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
                print(f"{name}, seed {seed}: {done[str(seed)]}", flush=True)
    print(table(results))
    plot(results, arguments.out / "ablation.svg")


if __name__ == "__main__":
    main()

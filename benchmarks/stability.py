"""The learning rate at which a run without recovery fails, and the gain from recovery.

    python benchmarks/stability.py --multiples 2 3 5 --steps 1000 --out FOLDER

One run a multiple of the default learning rate, recovery off, from the lowest up, until one fails: it gives
up, or loses half of its held-out metric (`policy/legal_best_move`, greedy). Then the same run with recovery
on. Writes `stability.json` and `stability.svg`; figures of the project's own machine are in `dev/log.md`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rookworld_rlvr.app.build import build_run
from rookworld_rlvr.errors import TrainingGaveUpError
from rookworld_rlvr.evaluation import summarise
from rookworld_rlvr.training.config import DataConfig, RunConfig
from rookworld_rlvr.training.data import evaluation_rows, load_data
from rookworld_rlvr.training.evaluations import evaluate_rows
from rookworld_rlvr.training.loop import run_steps
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.trainer import begin

KEY = "policy/legal_best_move"
SMALL = ["data.mixture.policy=1", "data.mixture.environment=0", "objective.prompts_per_step=2"]
SMALL += ["objective.group_size=8", "evaluation_rows=0", "threads=1"]


def make_run(arguments: argparse.Namespace, multiple: float, *, recovery: bool) -> Run:
    """The run at a multiple of the default learning rate; constant after the warm-up, so that it stays there."""
    default = RunConfig()
    given = [
        *SMALL,
        *arguments.override,
        f"steps={arguments.steps}",
        f"seed={arguments.seed}",
        f"optim.lr={default.optim.lr * multiple}",
        "optim.min_lr_fraction=1",
        f"recovery.enabled={str(recovery).lower()}",
        f"output_root={arguments.out / 'runs'}",
        f"name=lr-x{multiple:g}-{'on' if recovery else 'off'}",
    ]
    raw = OmegaConf.merge(OmegaConf.structured(RunConfig), OmegaConf.from_dotlist(given))
    config: Any = OmegaConf.to_object(raw)
    return build_run(config, raw)


def curve(run: Run, arguments: argparse.Namespace) -> dict[str, Any]:
    """The held-out metric every `every` steps, until the end, a failure, or half of what it was."""
    rows = [row for row in run_rows(arguments) if row.task == "policy"]
    points: list[tuple[int, float]] = []

    def measure(step: int) -> float:
        value = summarise(evaluate_rows(run, "validation", rows))[KEY].value
        points.append((step, value))
        print(f"{run.folder.name}: step {step}: {KEY} {value:.4f}", flush=True)
        return value

    begin(run)
    start, step, ended = measure(0), 0, "finished"
    while step < arguments.steps and ended == "finished":
        run.config.steps = min(step + arguments.every, arguments.steps)
        try:
            step, _, _ = run_steps(run, step)
        except TrainingGaveUpError as error:
            ended = f"gave up: {error}"
            break
        if measure(step) < start / 2 and not run.config.recovery.enabled:
            ended = "lost half"
    recovery = run.context.recovery
    return {
        "points": points,
        "ended": ended,
        "faults": recovery.skipped,
        "restores": recovery.restores,
        "lr_scale": recovery.lr_scale,
    }


def run_rows(arguments: argparse.Namespace) -> Sequence[Any]:
    """The first held-out rows of the shipped data."""
    return evaluation_rows(load_data(DataConfig(), seed=0).held_out, arguments.rows)


def plot(results: dict[str, dict[str, Any]], path: Path) -> None:
    """All curves in one picture."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for name, result in results.items():
        steps, values = zip(*result["points"], strict=True)
        axes.plot(steps, values, label=f"{name}: {result['ended'].split(':')[0]}", ls="-" if "on" in name else "--")
    axes.set(xlabel="step", ylabel=KEY, ylim=(0, 1))
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--multiples", type=float, nargs="+", default=[2.0, 3.0, 5.0, 10.0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100, help="steps between measurements")
    parser.add_argument("--rows", type=int, default=256, help="held-out rows of each measurement")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-on", action="store_true", help="skip the runs without recovery")
    parser.add_argument("--override", nargs="*", default=[], help="overrides of all runs")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    failed = arguments.multiples[-1]
    for multiple in [] if arguments.only_on else sorted(arguments.multiples):
        result = curve(make_run(arguments, multiple, recovery=False), arguments)
        results[f"×{multiple:g}, recovery off"] = result
        if result["ended"] != "finished":
            failed = multiple
            break
    results[f"×{failed:g}, recovery on"] = curve(make_run(arguments, failed, recovery=True), arguments)
    (arguments.out / "stability.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    plot(results, arguments.out / "stability.svg")
    for name, result in results.items():
        start, end = result["points"][0][1], result["points"][-1][1]
        print(f"{name}: {start:.4f} -> {end:.4f}; {result['ended']}; {result['restores']} restores")


if __name__ == "__main__":
    main()

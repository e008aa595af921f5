"""Charts of runs: their metrics and their points, which are thinned so that the page of a long run opens quickly."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any

from ..training.health import PREFIX
from ..training.metrics import declared
from .run_record import RunRecord

# Largest number of points of a curve. A chart is about 600 pixels wide.
POINTS = 500
# Family of metrics whose members were 0 in the steps that lack them.
COUNTED = "reward/failure/"
# Family of metrics with a member for each task of a run.
REWARD = "reward/task/"
FAULTS, RESTORES = "recovery/skipped", "recovery/restores"


# Metrics that share an axis, by the chart's title. `*` matches any end of a name. A chart with TASK is drawn once for
# each task of the runs.
TASK = "TASK"
CHARTS: Mapping[str, tuple[str, ...]] = {
    "Reward by task": ("reward/task/*", "reward/mean", "reward/penalized"),
    "Expected value over all legal moves": ("reward/expected_value",),
    f"Reward of {TASK}: structure and parse": (
        f"reward/component/{TASK}/structure/*",
        f"reward/component/{TASK}/parse/*",
    ),
    f"Reward of {TASK}: correctness": (f"reward/component/{TASK}/correctness/*",),
    "Completions that the parser refused": ("reward/failure/*",),
    "Validation score": ("validation/score",),
    f"Validation of {TASK}": (f"validation/{TASK}/*",),
    "KL to the reference and to the start": ("kl/reference", "kl/original", "kl/exact"),
    "KL coefficient": ("kl/coef",),
    "Terms of the loss": ("loss", "loss/*"),
    "Groups of equal rewards": ("group/zero_variance_fraction",),
    "Spread of rewards in a group": ("group/reward_std", "advantage/abs_mean"),
    "Probability ratios": ("policy/ratio_max", "sampler/ratio_raw_max"),
    "Clipped tokens": ("policy/clip_fraction",),
    "Entropy": ("policy/entropy",),
    "Learning rate": ("optim/lr",),
    "Gradient": ("optim/grad_norm",),
    "Change of the weights": ("optim/update_norm",),
    "Length of completions": ("rollout/length_mean",),
    "Truncated completions": ("rollout/truncated_fraction",),
    "Seconds per step, by phase": ("time/*",),
    "Completions per second": ("throughput/completions_per_s",),
    "Memory": ("memory/*",),
}


def chart_data(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return the charts that have a curve: title, notes on the metrics, and each curve's run, key, steps and values.

    With several runs each key has a chart of its own.
    """
    curves_by_title: dict[str, list[dict[str, Any]]] = {}
    for title, patterns in _charts(runs):
        for number, run in enumerate(runs):
            for curve in _curves(patterns, run, number):
                curves_by_title.setdefault(curve["key"] if len(runs) > 1 else title, []).append(curve)
    notes = {
        title: [_note(key) for key in dict.fromkeys(curve["key"] for curve in curves_by_title[title])]
        for title in curves_by_title
    }
    return [{"title": title, "notes": notes[title], "curves": curves} for title, curves in curves_by_title.items()]


def _charts(runs: Sequence[RunRecord]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the title and the metrics of each chart, for each task that the runs have rewards of if it is a task's."""
    keys = dict.fromkeys(key for run in runs for step in run.metrics for key in step)
    tasks = [key.removeprefix(REWARD) for key in keys if key.startswith(REWARD)]
    for title, patterns in CHARTS.items():
        for task in tasks if TASK in title else [TASK]:
            yield title.replace(TASK, task), tuple(pattern.replace(TASK, task) for pattern in patterns)


def _note(key: str) -> str:
    metric = declared(key)
    return f"{key}: {metric.meaning}; {metric.unit}; healthy: {metric.healthy}"


def _curves(patterns: Sequence[str], run: RunRecord, number: int) -> list[dict[str, Any]]:
    present = dict.fromkeys(key for step in run.metrics for key in step)
    keys = [key for pattern in patterns for key in present if fnmatchcase(key, pattern)]
    curves = []
    for key in dict.fromkeys(keys):
        counted = key.startswith(COUNTED)
        points = [
            (int(step["step"]), float(step.get(key, 0.0)))
            for step in run.metrics
            if (counted and step["step"]) or key in step
        ]
        steps, values = thinned(points)
        curves.append({"run": number, "key": key, "steps": steps, "values": values})
    return curves


def thinned(points: Sequence[tuple[int, float]], most: int = POINTS) -> tuple[list[float], list[float]]:
    """Return the steps and the values of at most `most` points, each the mean of a block of neighbouring points.

    >>> thinned([(1, 1.0), (2, 3.0), (3, 5.0)], most=2)
    ([1.5, 3], [2.0, 5.0])
    """
    width = -(-len(points) // most)
    if width <= 1:
        return [step for step, _ in points], [_short(value) for _, value in points]
    parts = [points[start : start + width] for start in range(0, len(points), width)]
    return (
        [fmean(step for step, _ in part) if len(part) > 1 else part[0][0] for part in parts],
        [_short(fmean(value for _, value in part)) for part in parts],
    )


def _short(value: float) -> float:
    """Return the value with five digits, because a page contains tens of thousands of values."""
    return float(f"{value:.5g}")


def marks(run: RunRecord) -> list[dict[str, Any]]:
    """Return the events of a run with their steps: faults, restores, and beginnings of warning signs."""
    events: list[dict[str, Any]] = []
    before: Mapping[str, float] = {}
    for step in run.metrics:
        for key, text in ((FAULTS, "fault"), (RESTORES, "restore")):
            if step.get(key, 0) > before.get(key, 0):
                events.append({"step": step["step"], "text": text, "kind": "fault"})
        began = [key for key in step if key.startswith(PREFIX) and step[key] and not before.get(key)]
        events += [{"step": step["step"], "text": key.removeprefix(PREFIX), "kind": "warning"} for key in began]
        before = step
    return events

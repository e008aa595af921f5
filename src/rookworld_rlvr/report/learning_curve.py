"""The learning curve of one or several runs as SVG: the mean and the range over runs, the start and simple rules.

The picture is used in the report's page, whose colours it then takes, and as a file of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from math import ceil, floor, log10
from statistics import fmean

from ..tasks import all_tasks
from .run_record import RunRecord

VALIDATION, RULE = "validation/", "validation/rule/"
LOSS = "win_probability_loss"
RULES = {"random": "random move", "capture": "most valuable capture", "exchange": "exchange rule"}
# Labels of shares. The key that decides about checkpoints is drawn for every other task, by its own name.
SHARES = {
    "policy/legal_best_move": "best move is legal",
    "environment/next_state_accuracy": "next position is exact",
    "chat/legal": "answer is a legal move",
    "chat/valid": "answer is in form and ends",
}
WIDTH, HEIGHT, TOP, BOTTOM, LEFT, RIGHT, GAP = 400, 250, 40, 40, 46, 184, 16
COLORS = ("#1f5fa8", "#c2410c")
STYLE = (
    ".curve text{font:12px system-ui,sans-serif;fill:var(--ink,#1d1f22)}.curve .quiet{fill:var(--quiet,#62676f)}"
    ".curve .ground{fill:var(--card,#fff)}.curve .grid{stroke:var(--line,#dcdad4)}"
    ".curve .level{stroke:var(--quiet,#62676f);stroke-dasharray:5 4}"
)
# Smallest vertical distance of two labels, in pixels.
LABEL = 14


@dataclass(frozen=True, slots=True)
class Points:
    """A metric over the steps that all runs have."""

    name: str
    values_by_step: dict[int, list[float]]
    """One value per run, by step."""

    def mean(self, step: int) -> float:
        return fmean(self.values_by_step[step])


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart with curves and with constant levels."""

    title: str
    curves: list[Points]
    levels: dict[str, float]
    """Constant values, by label."""


def learning_curve_svg(runs: Sequence[RunRecord]) -> str:
    """Return the picture; empty if the runs have no common learning curve."""
    panels = [panel for panel in (_losses(runs), _shares(runs)) if panel.curves]
    if not panels:
        return ""
    wide, high = len(panels) * (WIDTH + RIGHT) + GAP, HEIGHT + 24
    seeds = f"mean and range over {len(runs)} runs, " if len(runs) > 1 else ""
    note = f"{seeds}sampled on held-back rows; dashed: the start and simple rules on the same rows"
    drawn = "".join(
        f'<g transform="translate({place * (WIDTH + RIGHT)} 0)">{_drawn(panel)}</g>'
        for place, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" class="curve" role="img">'
        f"<style>{STYLE}</style><title>Learning curve</title>"
        f'<rect width="{wide}" height="{high}" class="ground"/>{drawn}'
        f'<text x="{LEFT}" y="{high - 8}" class="quiet">{note}</text></svg>\n'
    )


def _losses(runs: Sequence[RunRecord]) -> Panel:
    by_task = _drawable([_points(runs, f"{VALIDATION}{task.name}/{LOSS}", task.name) for task in all_tasks()])
    points = replace(by_task[0], name="trained") if by_task else Points("trained", {})
    rules = {text: _points(runs, f"{RULE}{name}", text) for name, text in RULES.items()}
    levels = {"start": points.mean(0)} if 0 in points.values_by_step else {}
    levels |= {text: rule.mean(0) for text, rule in rules.items() if rule.values_by_step}
    return Panel("Win-probability loss of the move (lower is better)", _drawable([points]), levels)


def _shares(runs: Sequence[RunRecord]) -> Panel:
    keys = {
        **SHARES,
        **{task.decision_key: task.decision_key for task in all_tasks() if task.decision_key not in SHARES},
    }
    curves = _drawable([_points(runs, f"{VALIDATION}{key}", text) for key, text in keys.items()])
    levels = {f"start: {points.name}": points.mean(0) for points in curves if 0 in points.values_by_step}
    return Panel("Share of right completions (higher is better)", curves, levels)


def _points(runs: Sequence[RunRecord], key: str, name: str) -> Points:
    by_run = [{int(step["step"]): float(step[key]) for step in run.metrics if key in step} for run in runs]
    common = sorted(set(by_run[0]).intersection(*by_run[1:]))
    return Points(name, {step: [values[step] for values in by_run] for step in common})


def _drawable(curves: Sequence[Points]) -> list[Points]:
    return [points for points in curves if len(points.values_by_step) > 1]


@dataclass(frozen=True, slots=True)
class Axes:
    """Coordinates in a panel: x for steps or another quantity, y for values."""

    last: float
    """Largest value on the horizontal axis, such as the last step."""
    ticks: list[float]
    """Values with a grid line, from the lowest to the highest."""

    def x(self, step: float) -> float:
        return LEFT + (WIDTH - LEFT) * step / self.last

    def y(self, value: float) -> float:
        share = (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share

    def horizontal_line(self, value: float, kind: str) -> str:
        """Return a horizontal line over the whole width at a value."""
        return f'<line x1="{LEFT}" x2="{WIDTH}" y1="{self.y(value):.1f}" y2="{self.y(value):.1f}" class="{kind}"/>'

    def point(self, step: float, value: float) -> str:
        return f"{self.x(step):.1f},{self.y(value):.1f}"


def ticks(lowest: float, highest: float) -> list[float]:
    """Return three to seven round values that enclose `lowest` and `highest`.

    >>> ticks(0.052, 0.177)
    [0.05, 0.1, 0.15, 0.2]
    """
    span = max(highest - lowest, 1e-3)
    size = 10.0 ** floor(log10(span))
    step = next(size * part for part in (0.2, 0.5, 1.0) if span / (size * part) <= 5 or part == 1.0)
    first, last = floor(lowest / step), max(ceil(highest / step), floor(lowest / step) + 1)
    return [round(place * step, 9) for place in range(first, last + 1)]


def _drawn(panel: Panel) -> str:
    values = [value for points in panel.curves for each in points.values_by_step.values() for value in each]
    values += panel.levels.values()
    last_step = max(max(points.values_by_step) for points in panel.curves)
    axes = Axes(last_step, ticks(min(values), max(values)))
    parts = [f'<text x="{LEFT}" y="20">{escape(panel.title)}</text>', *scale(axes, "step")]
    parts += [axes.horizontal_line(value, "level") for value in panel.levels.values()]
    labels = [(axes.y(value), name, "") for name, value in panel.levels.items()]
    for points, color in zip(panel.curves, COLORS, strict=False):
        parts += _curve(axes, points, color)
        labels.append((axes.y(points.mean(max(points.values_by_step))), points.name, color))
    return "".join([*parts, *end_labels(labels)])


def scale(axes: Axes, x_label: str) -> list[str]:
    """Return the grid, the numbers of both axes, and `x_label`, the name of the horizontal axis."""
    parts = [f'<text x="{WIDTH + 28}" y="{HEIGHT - 20}" class="quiet">{x_label}</text>']
    for tick in axes.ticks:
        parts.append(axes.horizontal_line(tick, "grid"))
        height = f"{axes.y(tick) + 4:.1f}"
        parts.append(f'<text x="{LEFT - 6}" y="{height}" text-anchor="end" class="quiet">{tick:.4g}</text>')
    for step in (0, axes.last / 2, axes.last):
        place = f'x="{axes.x(step):.1f}" y="{HEIGHT - 20}"'
        parts.append(f'<text {place} text-anchor="middle" class="quiet">{step:g}</text>')
    return parts


def _curve(axes: Axes, points: Points, color: str) -> list[str]:
    by_step = points.values_by_step
    band = [axes.point(step, max(values)) for step, values in by_step.items()]
    band += [axes.point(step, min(by_step[step])) for step in reversed(by_step)]
    means = [axes.point(step, points.mean(step)) for step in by_step]
    return [
        f'<polygon points="{" ".join(band)}" fill="{color}" opacity="0.2"/>',
        f'<polyline points="{" ".join(means)}" fill="none" stroke="{color}" stroke-width="2"/>',
    ]


def end_labels(labels: Sequence[tuple[float, str, str]]) -> list[str]:
    """Return labels beside the ends of lines, from top to bottom without overlap. Labels are (height, name, colour)."""
    parts, lowest = [], 0.0
    for height, name, color in sorted(labels):
        lowest = max(height, lowest + LABEL)
        shown = f' style="fill:{color}"' if color else ' class="quiet"'
        parts.append(f'<text x="{WIDTH + 8}" y="{lowest + 4:.1f}"{shown}>{escape(name)}</text>')
    return parts

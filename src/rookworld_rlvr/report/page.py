"""The report: one HTML file about one or several runs. It needs no network, and the same runs give the same bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from ..board.drawing import Drawing
from ..evaluation.headline import MATCH_ELO, headline_gains, headline_keys
from ..evaluation.keys import lower_is_better
from .curves import chart_data, marks
from .learning_curve import learning_curve_svg
from .run_record import RunRecord, shared_row_gains
from .summary import Summary, interval_text, signed, summarise_run
from .svg import board_svg, shared_shapes
from .transcripts import Transcript, draw

REPORT = "report.html"
FOLDER = Path(__file__).parent / "page"
# Largest number of transcripts on a page. Each takes about 14 kB, so the page stays below 5 MB.
TRANSCRIPTS = 200
FACTS = {"steps": "steps", "stopped": "ended", "wall_s": "seconds", "completions_per_s": "completions per second",
         "peak_rss_gib": "peak memory, GiB"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """A key before and after training, as text, and its bar."""

    key: str
    before: str
    after: str
    gain: str
    interval: str
    mark: str
    """`worse` or `better`; empty without a measured difference."""
    bar: tuple[float, float, float]
    """Gain, low and high as fractions of the bar from −1 to 1 (see `_bar`)."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A transcript with its boards."""

    transcript: Transcript
    boards: Drawing
    run: int


@dataclass(frozen=True, slots=True)
class RunPage:
    """The page's content about one run."""

    name: str
    summary: Summary
    headline: list[Change]
    others: list[Change]
    facts: dict[str, Any]
    sections: dict[str, dict[str, Any]]
    """Small tables by title: preflight checks, recovery, software, hashes."""
    config: str


def render(runs: Sequence[RunRecord]) -> str:
    """Return the HTML page of these runs."""
    curves = {
        "runs": [{"name": run.name, "marks": marks(run)} for run in runs],
        "charts": chart_data(runs),
    }
    per_run = max(1, TRANSCRIPTS // len(runs))
    shown = [one for number, run in enumerate(runs) for one in shown_transcripts(run, number, per_run)]
    return template("report.html.jinja", autoescape=True).render(
        title=f"{len(runs)} runs" if len(runs) > 1 else runs[0].name,
        runs=[_page(run) for run in runs],
        table=runs_table(runs) if len(runs) > 1 else [],
        transcripts=shown,
        learning_curve=Markup(learning_curve_svg(runs)),
        steps=sorted({one.transcript.step for one in shown}),
        tasks=sorted({one.transcript.task for one in shown}),
        problems=sorted({one.boards.problem for one in shown if one.boards.problem}),
        pieces=Markup(shared_shapes()),
        svg=lambda board: Markup(board_svg(board)),
        curves=htmlsafe_json_dumps(curves, separators=(",", ":")),
        uplot_js=Markup(_text("uplot/uPlot.iife.min.js")),
        uplot_css=Markup(_text("uplot/uPlot.min.css")),
        css=Markup(_text("report.css")),
        js=Markup(_text("report.js")),
    )


@cache
def template(name: str, *, autoescape: bool) -> Template:
    """Return a template of this package, which refuses to render an undefined value."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _page(run: RunRecord) -> RunPage:
    summary = run.summary
    moved = [*summary.get("worse", []), *summary.get("better", [])]
    keys = [*moved, *(key for key in headline_keys() if key not in moved)]
    gains = summary.get("gain", {})
    headline = [change for key in keys if (change := _change(summary, key))]
    others = [change for key in gains if key not in headline_keys() and (change := _change(summary, key))]
    checks = {name: f"{check['measured']:.2e}, at most {check['bound']:.2g}"
              for name, check in summary.get("preflight", {}).items()}  # fmt: skip
    tables = {name: summary[name] for name in ("recovery", "software", "hashes") if name in summary}
    return RunPage(
        name=run.name,
        summary=summarise_run(summary, run.metrics),
        headline=headline,
        others=others,
        facts={text: summary[key] for key, text in FACTS.items() if key in summary},
        sections={"preflight checks": checks, **tables},
        config=run.config,
    )


def _change(summary: Mapping[str, Any], key: str) -> Change | None:
    """Return the change of a key; None if the run has no values of this key."""
    mark = next((part for part in ("worse", "better") if key in summary.get(part, [])), "")
    if key == MATCH_ELO:
        elo = summary.get("match", {}).get("elo")
        return elo and Change(key, "", "", signed(elo["value"], 0), interval_text(elo, 0), mark, _bar(elo, 100.0))
    gain = summary.get("gain", {}).get(key)
    if not gain:
        return None
    before, after = (f"{float(summary[part][key]['value']):.3f}" for part in ("before", "after"))
    return Change(key, before, after, signed(gain["value"], 3), interval_text(gain, 3), mark, _bar(gain, 0.1, key))


def _bar(gain: Mapping[str, Any], full: float, key: str = "") -> tuple[float, float, float]:
    """Return gain, low and high divided by `full` and clipped to [−1, 1]. Positive values are better."""
    sign = -1 if lower_is_better(key) else 1
    ends = [max(-1.0, min(1.0, sign * float(gain[name]) / full)) for name in ("value", "low", "high")]
    return ends[0], min(ends[1:]), max(ends[1:])


def runs_table(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return a row for each headline key that all runs have: each run's gain, and the mean gain with its interval."""
    rows = []
    for key, gains, (mean, low, high) in headline_gains([run.summary for run in runs], shared_row_gains(runs)):
        digits = 0 if key == MATCH_ELO else 3
        worse = [key in run.summary["worse"] for run in runs]
        each = [(signed(gain["value"], digits), bad) for gain, bad in zip(gains, worse, strict=True)]
        interval = interval_text({"low": low, "high": high}, digits)
        rows.append({"key": key, "each": each, "mean": signed(mean, digits), "interval": interval})
    return rows


def shown_transcripts(run: RunRecord, number: int, most: int) -> list[Shown]:
    """Return at most `most` transcripts: the last step first, then steps evenly spread down to the first step."""
    by_step: dict[int | None, list[Transcript]] = {}
    for transcript in run.transcripts:
        by_step.setdefault(transcript.step, []).append(transcript)
    steps = list(by_step)
    if not steps:
        return []
    room = max(1, min(len(steps), most // max(map(len, by_step.values()))))
    # If there is room for only one step, it is the last one.
    places = [round(place * (len(steps) - 1) / (room - 1)) for place in range(room)] if room > 1 else [-1]
    chosen = {steps[place] for place in places}
    return [
        Shown(transcript, draw(transcript), number)
        for step in reversed(steps)
        if step in chosen
        for transcript in by_step[step][:most]
    ]

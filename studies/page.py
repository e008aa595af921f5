"""Writer of a study's page and picture, `docs/studies/NAME.md`, and of all verdicts in `docs/studies/index.md`.

How arms are compared: `verdicts.py`.
"""

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median

from results import RESULTS, Result
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.evaluation.headline import gain_over_seeds
from rookworld_rlvr.evaluation.intervals import seeds_interval
from rookworld_rlvr.evaluation.keys import lower_is_better
from rookworld_rlvr.files import make_folder, write_text
from rookworld_rlvr.report import learning_curve as curve
from study import DOCS, Member, RunKey, Study, declaration, names
from verdicts import Interval, Results, Verdict, signed

BEGIN, END = "<!-- verdicts -->\n", "<!-- end of verdicts -->\n"
VERDICT = re.compile(rf"^\*\*({'|'.join(Verdict)})\.\*\* (.*)$", re.M | re.I)
NOT_RUN = "not run"
# The primary key of one model may differ between machines, which round differently, by a share of the smallest effect
# that matters, or by this much if that is more. A larger difference before training means two models.
SAME_START_SHARE, SAME_START = 0.1, 0.001
COLORS = ("#1f5fa8", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#0e7490", "#be185d", "#475569", "#65a30d")


def write_page(name: str, study: Study, members: Sequence[Member], finished: Mapping[RunKey, Result]) -> list[Path]:
    """Write the page of a study and its picture, if an arm beside the control has results. Returns the files."""
    runs: dict[str, dict[int, Result]] = {arm: {} for arm in study.arms}
    for member in members:
        if (result := finished.get(member.run_key)) is not None:
            runs[member.arm][member.seed] = result
            if absent := [key for key in (study.key, *study.guards) if key not in result.gain]:
                raise UserError(
                    f"expected {', '.join(absent)} in the result of {member.key}: its run has no such value"
                )
    if not any(by_seed for arm, by_seed in runs.items() if arm != study.control):
        return []
    _check_one_start(study, [result for by_seed in runs.values() for result in by_seed.values()])
    results = Results(study, runs)
    make_folder(DOCS, "docs")
    page, picture = DOCS / f"{name}.md", DOCS / f"{name}.svg"
    write_text(picture, _picture(results))
    sections = (*_head(name, results), *_method(name, study), *_tables(results), *_picture_lines(name, study))
    write_text(page, "\n".join([*sections, *_members(name, study, members, finished), ""]))
    return [page, picture]


def _check_one_start(study: Study, results: Sequence[Result]) -> None:
    """Raise UserError for results of runs that began from different models, which cannot be compared."""
    values = sorted(result.before[study.key] for result in results)
    if values[-1] - values[0] > max(SAME_START, SAME_START_SHARE * study.smallest_effect):
        raise UserError(
            f"expected results of runs that began from one model, got {values[0]:.4f} to {values[-1]:.4f} in "
            f"{study.key} before training: remove the older lines of this study from {RESULTS.name}"
        )


def write_index() -> Path:
    """Write the table of verdicts, read from the pages of all declared studies; the rest of the file is kept."""
    make_folder(DOCS, "docs")
    path, rows = DOCS / "index.md", ["| study | question | verdict | why |", "|---|---|---|---|"]
    for name in names():
        page, study = DOCS / f"{name}.md", declaration(name)
        found = VERDICT.search(page.read_text(encoding="utf-8")) if page.is_file() else None
        link = f"[{name}]({name}.md)" if page.is_file() else name
        word, why = found.groups() if found else (NOT_RUN, f"declared: {len(study.arms)} arms")
        rows.append(f"| {link} | {study.question} | {word.lower()} | {why} |")
    text = path.read_text(encoding="utf-8") if path.is_file() else f"# Studies\n\n{BEGIN}{END}"
    before, _, rest = text.partition(BEGIN)
    write_text(path, "\n".join([before + BEGIN, *rows, "", END + rest.partition(END)[2]]))
    return path


def _head(name: str, results: Results) -> list[str]:
    study = results.study
    word, why = results.verdict(study.comparison).capitalize(), results.reason(study.comparison)
    generated = f"<!-- Written by studies/run.py {name}. -->"
    return [f"# {name}", generated, "", f"{study.question} Source: {study.source}.", "", f"**{word}.** {why}", ""]


def _method(name: str, study: Study) -> list[str]:
    note = [f"- {study.note}"] if study.note else []
    return [
        "## Method",
        "",
        f"The arm that answers is `{study.comparison}`, the control `{study.control}`. The primary key is "
        f"`{study.key}` ({_better(study.key)} is better), and the guards are `{'` and `'.join(study.guards)}`. The "
        f"smallest effect that matters is {study.smallest_effect:g}. All this was declared in `studies/{name}.yaml` "
        "before the first run of a compared arm; runs of the control may be older. How gains, intervals and verdicts "
        "are computed: [method](index.md#method).",
        "",
        f"- All arms: `{' '.join(study.shared)}`. Greedy answers, the same held-out rows for all.",
        *note,
        "",
    ]


def _tables(results: Results) -> list[str]:
    study, keys = results.study, (results.study.key, *results.study.guards)
    lines = ["## Results", ""]
    for key in keys:
        lines += [f"`{key}`:", "", "| arm | seeds | before | after | gain | difference |" + _more(study, key)]
        lines.append("|---|---|---|---|---|---|" + ("---|---|---|" if key == study.key else ""))
        lines += [_row(results, arm, key) for arm in study.arms if results.runs[arm]]
        lines.append("")
        if key == study.key and (arms := results.corrected_arms()):
            lines += [f"Not significant after the correction over the other arms: `{'`, `'.join(arms)}`.", ""]
    return [*lines, *(_rise(results) if study.curve else ())]


def _rise(results: Results) -> list[str]:
    """Return the table of the first step of each seed at which the watched metric reaches the level."""
    study, count = results.study, 0
    lines = [f"First step with `{study.curve}` of at least {study.level:g}, by seed:", ""]
    lines += ["| arm | steps |", "|---|---|"]
    for arm, by_seed in results.runs.items():
        cells = []
        for _, run in sorted(by_seed.items()):
            values = run.curves.get(study.curve, [])
            reached = [step for step, value in enumerate(values, 1) if value >= study.level]
            cells.append(str(reached[0]) if reached else f"never in {len(values)}")
            count += len(values)
        lines += [f"| {arm} | {', '.join(cells)} |"] if cells else []
    return [*lines, ""] if count else []


def _more(study: Study, key: str) -> str:
    return " verdict | KL to the start | reward, last steps |" if key == study.key else ""


def _row(results: Results, arm: str, key: str) -> str:
    study, runs = results.study, list(results.runs[arm].values())
    before, after = fmean(run.before[key] for run in runs), fmean(run.after[key] for run in runs)
    differences = results.differences(arm, key)
    less = signed(seeds_interval(differences)) if arm != study.control and len(differences) > 1 else ""
    cells = [arm, str(len(runs)), f"{before:.4f}", f"{after:.4f}", signed(_gain(runs, key)), less]
    if key == study.key:
        reached = [run.kl for run in runs if run.kl is not None]
        word = results.verdict(arm) if arm != study.control else "control"
        cells += [
            word,
            f"{fmean(reached):.4f}" if reached else "not measured",
            f"{fmean(run.reward for run in runs):.3f}",
        ]
    return f"| {' | '.join(cells)} |"


def _gain(runs: Sequence[Result], key: str) -> Interval:
    gains = [run.gain[key] for run in runs]
    if len(gains) > 1:
        return gain_over_seeds(key, gains)
    return gains[0]["value"], gains[0]["low"], gains[0]["high"]


def _picture_lines(name: str, study: Study) -> list[str]:
    return [f"![Gain in {study.key} against the KL that was reached, by arm]({name}.svg)", ""]


def _picture(results: Results) -> str:
    """Plot the primary key's gain against the KL reached: each arm's mean, its seeds, and its interval over seeds."""
    key, points = results.study.key, {}
    for arm, runs in results.runs.items():
        places = [(run.kl, run) for run in runs.values() if run.kl is not None]
        if places:
            seeds = [(kl, run.gain[key]["value"]) for kl, run in places]
            points[arm] = (seeds, _gain([run for _, run in places], key))
    ends = [0.0, *(end for _, gain in points.values() for end in gain[1:])]
    most = max((kl for seeds, _ in points.values() for kl, _ in seeds), default=0.0)
    axes = curve.Axes(curve.ticks(0.0, most)[-1], curve.ticks(min(ends), max(ends)))
    drawn, labels = [*curve.scale(axes, "KL, nats"), axes.horizontal_line(0.0, "level")], []
    for (arm, (seeds, gain)), color in zip(points.items(), COLORS * len(points), strict=False):
        drawn += _arm(axes, seeds, gain, color)
        labels.append((axes.y(gain[0]), arm, color))
    wide = curve.WIDTH + curve.RIGHT + 40
    title = f"Gain in {key} ({_better(key)} is better)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {curve.HEIGHT}" class="curve" role="img">'
        f'<style>{curve.STYLE}</style><title>{escape(title)}</title><rect width="{wide}" height="{curve.HEIGHT}" '
        f'class="ground"/><text x="{curve.LEFT}" y="20">{escape(title)}</text>'
        f"{''.join([*drawn, *curve.end_labels(labels)])}</svg>\n"
    )


def _arm(axes: curve.Axes, seeds: Sequence[tuple[float, float]], gain: Interval, color: str) -> list[str]:
    x, (mean, low, high) = axes.x(fmean(kl for kl, _ in seeds)), gain
    ends = f'y1="{axes.y(low):.1f}" y2="{axes.y(high):.1f}"'
    dots = [f'<circle cx="{axes.x(kl):.1f}" cy="{axes.y(value):.1f}" r="2" fill="{color}"/>' for kl, value in seeds]
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="{color}"/>'
    return [line, *dots, f'<circle cx="{x:.1f}" cy="{axes.y(mean):.1f}" r="4" fill="{color}"/>']


def _better(key: str) -> str:
    return "lower" if lower_is_better(key) else "higher"


def _command(name: str, study: Study) -> list[str]:
    """Return the lines of the command that runs the study, and at which commit if it is answered."""
    command = ["```text", f".venv/bin/python studies/run.py {name}", "```"]
    if not study.repeatable_at:
        return command
    return [
        f"The options and scripts that this page names are those of commit {study.repeatable_at}, which can repeat the "
        f"runs: `git checkout {study.repeatable_at}`, remove the study's lines in `docs/studies/{RESULTS.name}`, "
        "and then",
        "",
        *command,
    ]


def _members(name: str, study: Study, members: Sequence[Member], finished: Mapping[RunKey, Result]) -> list[str]:
    """Return the study's command, its arms with their overrides, commits and durations, and the failed members."""
    done = [finished[member.run_key] for member in members if member.run_key in finished]
    total = sum(result.seconds for result in done) / 3600
    lines = ["## Runs", "", *_command(name, study), ""]
    lines += [f"{len(done)} of {len(members)} members have finished, in {total:.1f} core hours.", ""]
    lines += ["| arm | overrides | finished | commits | median minutes |", "|---|---|---|---|---|"]
    for arm, overrides in study.arms.items():
        own = [finished[member.run_key] for member in members if member.arm == arm and member.run_key in finished]
        commits = ", ".join(sorted({commit for result in own for commit in result.commits}))
        minutes = f"{median(result.seconds for result in own) / 60:.0f}" if own else ""
        counts = f"{len(own)} of {len(study.seeds_of(arm))}"
        given = f"`{' '.join(overrides)}`" if overrides else "none"
        lines.append(f"| {arm} | {given} | {counts} | {commits} | {minutes} |")
    failures = [(member, member.record()["failure"]) for member in members if member.run_key not in finished]
    return [*lines, "", *(f"- {one.arm}, seed {one.seed}, failed: {failure}" for one, failure in failures if failure)]

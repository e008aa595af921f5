"""Writer of a study's page and picture, `docs/studies/NAME.md`, and of all verdicts in `docs/studies/index.md`.

Arms are compared by their values after training, seed by seed; all evaluate the same held-out rows. Intervals and
Holm's correction are those of `rookworld_rlvr.evaluation`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean, median, stdev

from results import RESULTS, Result
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.evaluation.headline import LEVEL, gain_over_seeds, holm
from rookworld_rlvr.evaluation.intervals import EQUALITY_TOLERANCE, seeds_interval
from rookworld_rlvr.evaluation.keys import is_worse, lower_is_better
from rookworld_rlvr.files import make_folder, write_text
from rookworld_rlvr.report import learning_curve as curve
from study import DOCS, Member, RunKey, Study, declaration, names

BEGIN, END = "<!-- verdicts -->\n", "<!-- end of verdicts -->\n"
VERDICT = re.compile(r"^\*\*(Yes|No|Undecided)\.\*\* (.*)$", re.M)
NOT_RUN = "not run"
# Largest difference of the primary key before training between machines that evaluate the same model.
SAME_START = 0.001
COLORS = ("#1f5fa8", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#0e7490", "#be185d", "#475569", "#65a30d")
Interval = tuple[float, float, float]
"""Mean, low, high."""


@dataclass(frozen=True, slots=True)
class Results:
    """The finished runs of a study, by arm and seed."""

    study: Study
    runs: Mapping[str, Mapping[int, Result]]

    def differences(self, arm: str, key: str) -> list[float]:
        """Return the arm's value after training minus the control's, for each seed that both have."""
        one, two = self.runs[self.study.control], self.runs[arm]
        both = [seed for seed in one if seed in two]
        return [two[seed].after[key] - one[seed].after[key] for seed in both]

    def p_values(self) -> dict[str, float]:
        """Return the p-value of the primary key for each arm; 1 if it shares fewer than two seeds with the control.

        So an arm that has not run counts in Holm's correction, and its run cannot take back a significant difference.
        A removed arm counts with 1, too, so that its removal makes no difference significant.
        """
        differences = {arm: self.differences(arm, self.study.key) for arm in list(self.study.arms)[1:]}
        removed = {f"removed arm {number}": 1.0 for number in range(self.study.removed_arms)}
        return {arm: seeds_p(values) if len(values) > 1 else 1.0 for arm, values in differences.items()} | removed

    def verdict(self, arm: str) -> tuple[str, str]:
        """Return whether the arm is better than the control (Yes, No or Undecided), and the reason."""
        study, values = self.study, self.differences(arm, self.study.key)
        if len(values) < len(study.seeds_of(arm)):
            return "Undecided", f"{len(values)} of {len(study.seeds_of(arm))} paired seeds have finished."
        mean, low, high = seeds_interval(values)
        effect = -study.smallest_effect if lower_is_better(study.key) else study.smallest_effect
        lost = [key for key in study.guards if self._is_lost(arm, key)]
        measured = f"{_signed(seeds_interval(values))} in `{study.key}` over {len(values)} paired seeds"
        if arm in holm(self.p_values()) and is_worse(study.key, mean):
            return "No", f"`{arm}` is worse than `{study.control}`: {measured}."
        # Even the better end of the interval does not reach the smallest effect.
        if is_worse(study.key, (low if effect < 0 else high) - effect):
            return "No", f"`{arm}` is not better than `{study.control}` by {abs(effect):g} or more: {measured}."
        if arm in holm(self.p_values()) and not is_worse(study.key, mean - effect):
            if lost:
                return "No", f"`{arm}` is better than `{study.control}` ({measured}) and costs `{'`, `'.join(lost)}`."
            return "Yes", f"`{arm}` is better than `{study.control}`: {measured}."
        needed = self._seeds_needed(values, mean - effect)
        enough = f"about {needed} seeds would decide" if needed > len(values) else "the difference is near the smallest"
        return "Undecided", f"`{arm}` minus `{study.control}`: {measured}; {enough}."

    def _seeds_needed(self, values: Sequence[float], beyond_effect: float) -> int:
        """Return about how many seeds would decide, if the mean and the spread of `values` stay as they are.

        A gain of at least the smallest effect must become significant; the interval of a smaller one must exclude the
        effect. A mean close to that limit counts as half the effect away from it.
        """
        if is_worse(self.study.key, beyond_effect):
            half, level = abs(beyond_effect), LEVEL
        else:
            half, level = abs(fmean(values)), LEVEL / len(self.p_values())
        return seeds_needed(values, max(half, self.study.smallest_effect / 2), level)

    def _is_lost(self, arm: str, key: str) -> bool:
        values = self.differences(arm, key)
        return is_worse(key, fmean(values)) and seeds_p(values) < LEVEL


def seeds_p(values: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's t test that the mean over runs, at least two, is 0.

    Equal values have no spread for that test, but few runs can be equal by chance: a share of 49 rows has 50 possible
    values. So for them the result is that of the sign test, 2^(1 - runs), and 1 if they are 0.
    """
    from scipy.stats import ttest_1samp

    if max(values) - min(values) <= EQUALITY_TOLERANCE:
        return 2.0 ** (1 - len(values)) if abs(values[0]) > EQUALITY_TOLERANCE else 1.0
    return float(ttest_1samp(values, 0.0).pvalue)


def seeds_needed(values: Sequence[float], half: float, level: float = LEVEL, most: int = 1000) -> int:
    """Return the smallest number of runs whose interval of 1 - `level` reaches at most `half` to each side.

    The estimate uses the spread of `values`, at least two, and no `row_error`. It is `most` if more runs are needed.
    """
    from scipy.stats import t

    spread = stdev(values)
    enough = (n for n in range(2, most) if float(t.ppf(1 - level / 2, n - 1)) * spread / math.sqrt(n) <= half)
    return next(enough, most)


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
    if values[-1] - values[0] > SAME_START:
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
    word, why = results.verdict(study.comparison)
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
    return lines


def _more(study: Study, key: str) -> str:
    return " verdict | KL to the start | reward, last steps |" if key == study.key else ""


def _row(results: Results, arm: str, key: str) -> str:
    study, runs = results.study, list(results.runs[arm].values())
    before, after = fmean(run.before[key] for run in runs), fmean(run.after[key] for run in runs)
    differences = results.differences(arm, key)
    less = _signed(seeds_interval(differences)) if arm != study.control and len(differences) > 1 else ""
    cells = [arm, str(len(runs)), f"{before:.4f}", f"{after:.4f}", _signed(_gain(runs, key)), less]
    if key == study.key:
        reached = [run.kl for run in runs if run.kl is not None]
        word = results.verdict(arm)[0].lower() if arm != study.control else "control"
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


def _signed(interval: Interval) -> str:
    mean, low, high = interval
    return f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]"


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

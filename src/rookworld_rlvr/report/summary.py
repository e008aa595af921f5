"""Summary of a run in sentences: the match, gains, losses and warning signs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, variance
from typing import Any

from ..evaluation.headline import BY_MATERIAL, LEAST_ROWS, MATCH_ELO, headline_keys
from ..evaluation.keys import FEW_ROWS, has_few_rows
from ..training.health import PREFIX

# Number of steps at the beginning and at the end of a run whose mean rewards are compared.
ENDS = 20
# The reward counts as risen if the difference of these means is above this many standard errors.
RISE = 3.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Results of a run in words. Each sentence can be understood without the others."""

    match: str
    """Result of the match against the starting checkpoint; empty if none was played."""
    better: list[str]
    worse: list[str]
    perhaps_worse: list[str]
    """Losses that only a test without correction finds, each with the loss that this test finds 4 times in 5."""
    no_difference: str
    """Sentence about the tested keys without a measured difference and the number of rows, or about a missing test."""
    signs: list[str]
    """Warning signs, each with the steps that showed it."""
    few_rows: str = ""
    """Sentence about headline keys whose intervals may be too narrow; empty without any."""

    def sentences(self) -> list[str]:
        """Return all sentences: the match, losses, gains, keys without a difference, keys of few rows, and warnings."""
        match = [f"Match against the start: {self.match}."] if self.match else []
        worse = [f"Worse: {change}." for change in self.worse]
        better = [f"Better: {change}." for change in self.better]
        perhaps = [f"Perhaps worse: {change}." for change in self.perhaps_worse]
        warnings = [f"Warning: {sign}." for sign in self.signs]
        few = [self.few_rows] if self.few_rows else []
        return [*match, *worse, *perhaps, *better, self.no_difference, *few, *warnings]


def summarise_run(summary: Mapping[str, Any], metrics: Sequence[Mapping[str, float]]) -> Summary:
    """Return the summary of a run from its summary.json and its metrics per step. Both may be empty during the run."""
    return Summary(
        match=_match(summary),
        better=[_change(summary, key) for key in _keys(summary, "better")],
        worse=[_change(summary, key) for key in _keys(summary, "worse")],
        perhaps_worse=[_perhaps(summary, key) for key in _keys(summary, "perhaps_worse")],
        no_difference=_unchanged(summary),
        signs=[*_signs(metrics), *_reward_alone(summary, metrics)],
        few_rows=_few_rows(summary),
    )


def _keys(summary: Mapping[str, Any], part: str) -> list[str]:
    """Return the keys in one of the summary's lists, without the match, which has its own sentence."""
    return [key for key in summary.get(part, []) if key != MATCH_ELO]


def _match(summary: Mapping[str, Any]) -> str:
    """Return the match's result, such as `+8 Elo [+2, +14], better; …; 400 games: 90% adjudicated engine`, or ""."""
    match = summary.get("match", {})
    elo = match.get("elo")
    if not elo:
        return ""
    parts = ("better", "worse", "perhaps_worse")
    mark = next((part for part in parts if MATCH_ELO in summary.get(part, [])), _unmoved(summary))
    results = [f"{_measured(elo, 0, ' Elo')}, {mark.replace('_', ' ')}"]
    if "score" in match:
        rules = f", by the rules alone {float(match['rules_score']['value']):.3f}" if "rules_score" in match else ""
        results.append(f"score {float(match['score']['value']):.3f}{rules}")
    if "normalised_elo" in match:
        results.append(_measured(match["normalised_elo"], 0, " normalised Elo"))
    if "likelihood_of_superiority" in match:
        results.append(f"likelihood of superiority {float(match['likelihood_of_superiority']):.3f}")
    if "pentanomial" in match:
        counts = ", ".join(map(str, match["pentanomial"]))
        results.append(f"pairs with 0, ½, 1, 1½ and 2 points: {counts}")
    return "; ".join([*results, f"{elo['n']} games{_endings(match)}"])


def _unmoved(summary: Mapping[str, Any]) -> str:
    """Return why the match is neither better nor worse: not tested, not certain among all tested keys, or even."""
    match = summary["match"]
    if match.get(BY_MATERIAL.removeprefix("match/"), {}).get("value", 0.0) > 0.5:
        return "not tested, as material alone decided most games"
    if match["elo"]["n"] < LEAST_ROWS:
        return f"not tested below {LEAST_ROWS} games"
    if float(match["elo"]["low"]) <= 0 <= float(match["elo"]["high"]):
        return "no measured difference"
    return "ahead in a test of this match alone, but not certain when all headline keys are tested together"


def _endings(match: Mapping[str, Any]) -> str:
    """Return the shares of the endings that occurred, the most frequent first."""
    shares = {key.removeprefix("ended/"): match[key]["value"] for key in match if key.startswith("ended/")}
    listed = [f"{share:.0%} {name}" for name, share in sorted(shares.items(), key=lambda item: -item[1]) if share]
    return f": {', '.join(listed).replace('_', ' ')}" if listed else ""


def _change(summary: Mapping[str, Any], key: str) -> str:
    """Return a key's change, such as `policy/valid 0.900 → 0.950 (+0.050 [+0.030, +0.070])`."""
    before, after = (float(summary[part][key]["value"]) for part in ("before", "after"))
    return f"{key} {before:.3f} → {after:.3f} ({_measured(summary['gain'][key], 3)})"


def _perhaps(summary: Mapping[str, Any], key: str) -> str:
    seen = float(summary["detectable"][key])
    return f"{_change(summary, key)}, one-sided 5 % without correction; a loss of {seen:.3f} is found 4 times in 5"


def _measured(measure: Mapping[str, Any], digits: int, unit: str = "") -> str:
    return f"{signed(measure['value'], digits)}{unit} {interval_text(measure, digits)}"


def signed(value: float | str, digits: int) -> str:
    """Return a value with its sign; `∞` stands for infinity."""
    return f"{float(value):+.{digits}f}".replace("inf", "∞")


def interval_text(measure: Mapping[str, Any], digits: int) -> str:
    """Return the interval from `low` to `high`, such as `[-0.050, +0.030]`."""
    return f"[{signed(measure['low'], digits)}, {signed(measure['high'], digits)}]"


def _unchanged(summary: Mapping[str, Any]) -> str:
    shown = [key for key in headline_keys() if key in summary.get("gain", {})]
    shown += [MATCH_ELO] if summary.get("match", {}).get("elo") else []
    if not shown:
        return "The model was not evaluated after training, so it is not known whether it plays better."
    tested = [key for key in shown if key in summary.get("detectable", shown)]
    if not tested:
        return f"No headline key was tested for a difference: that needs {LEAST_ROWS} rows of a key."
    unchanged = len(set(tested) - {*summary["better"], *summary["worse"]})
    rows = max((summary["after"][key]["n"] for key in tested if key != MATCH_ELO), default=0)
    size = f"{rows} rows per task" if rows else f"{summary['match']['elo']['n']} games"
    if unchanged == len(tested):
        return f"No measured difference in {unchanged} tested headline keys: {size} are too few to show one."
    share = f"{unchanged} of {len(tested)} tested headline keys"
    return f"No measured difference in {share} when all are tested together ({size}, Holm's correction at 5 %)."


def _few_rows(summary: Mapping[str, Any]) -> str:
    after = summary.get("after", {})
    few = [key for key in headline_keys() if key in summary.get("gain", {}) and has_few_rows(key, after[key]["n"])]
    if not few:
        return ""
    return f"Means of at most {FEW_ROWS} rows, whose intervals are too narrow if values are skewed: {', '.join(few)}."


def _signs(metrics: Sequence[Mapping[str, float]]) -> list[str]:
    """Return a line for each warning sign, with the steps that showed it."""
    steps: dict[str, list[int]] = {}
    for step in metrics:
        for key, value in step.items():
            if key.startswith(PREFIX) and value:
                steps.setdefault(key.removeprefix(PREFIX), []).append(int(step["step"]))
    return [f"{sign}, shown after {len(at)} steps, first {at[0]}, last {at[-1]}" for sign, at in steps.items()]


def _reward_alone(summary: Mapping[str, Any], metrics: Sequence[Mapping[str, float]]) -> list[str]:
    """Return a warning if the reward rose while no headline key got better; otherwise an empty list."""
    rewards = [step["reward/mean"] for step in metrics if "reward/mean" in step]
    if summary.get("better") or not summary.get("gain") or len(rewards) < 2 * ENDS:
        return []
    first, last = rewards[:ENDS], rewards[-ENDS:]
    error = sqrt((variance(first) + variance(last)) / ENDS)
    if fmean(last) - fmean(first) <= RISE * error:
        return []
    rose = f"{fmean(first):.3f} in the first {ENDS} steps, {fmean(last):.3f} in the last"
    return [f"reward rose ({rose}) and no headline key got better"]

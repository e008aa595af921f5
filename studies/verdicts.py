"""Verdicts on the arms of a study: better, no better, worse or open, read from the interval of the difference.

Arms are compared by their values after training, seed by seed; all evaluate the same held-out rows. The comparison that
a study declares is one test. The other arms are tested together with the removed ones, by Holm's correction.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

from results import Result
from rookworld_rlvr.evaluation.headline import LEVEL, holm
from rookworld_rlvr.evaluation.intervals import EQUALITY_TOLERANCE, seeds_interval
from rookworld_rlvr.evaluation.keys import is_worse, lower_is_better
from study import Study

Interval = tuple[float, float, float]
"""Mean, low, high."""


class Verdict(StrEnum):
    """Reading of an interval of the difference, arm minus control, against 0 and against the smallest effect."""

    better = "better"
    """The interval lies wholly on the good side of 0, and its better end reaches the smallest effect."""
    no_better = "no better"
    """The better end of the interval is not on the bad side of 0 and does not reach the smallest effect."""
    worse = "worse"
    """The interval lies wholly on the bad side of 0."""
    open = "open"
    """The interval has 0, and its better end reaches the smallest effect: neither a gain nor its absence is shown."""


def read_interval(key: str, low: float, high: float, smallest_effect: float) -> Verdict:
    """Return the verdict that the interval of a difference in `key` gives; the verdicts exclude each other.

    An interval that ends at 0 has 0, and one whose better end is equal to the smallest effect reaches it.
    """
    # From here on a positive difference is a gain.
    if lower_is_better(key):
        low, high = -high, -low
    if high < 0:
        return Verdict.worse
    if high < smallest_effect:
        return Verdict.no_better
    return Verdict.better if low > 0 else Verdict.open


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

    def verdict(self, arm: str) -> Verdict:
        """Return the verdict on an arm; it is open until all paired seeds have finished.

        If the difference is not significant, the interval is read as if it reached 0. An arm that costs a guard is no
        better, whatever its gain.
        """
        study, values = self.study, self.differences(arm, self.study.key)
        if len(values) < len(study.seeds_of(arm)):
            return Verdict.open
        _, low, high = seeds_interval(values)
        if not self._is_significant(arm):
            low, high = min(low, 0.0), max(high, 0.0)
        word = read_interval(study.key, low, high, study.smallest_effect)
        return Verdict.no_better if word is Verdict.better and self.lost_guards(arm) else word

    def reason(self, arm: str) -> str:
        """Return the sentence that gives the reason of the verdict on an arm."""
        study, values = self.study, self.differences(arm, self.study.key)
        if len(values) < len(study.seeds_of(arm)):
            return f"{len(values)} of {len(study.seeds_of(arm))} paired seeds have finished."
        _, low, high = interval = seeds_interval(values)
        measured = f"{signed(interval)} in `{study.key}` over {len(values)} paired seeds"
        match self.verdict(arm):
            case Verdict.better:
                return f"`{arm}` is better than `{study.control}`: {measured}."
            case Verdict.worse:
                small = f", by less than {study.smallest_effect:g}" if max(-low, high) < study.smallest_effect else ""
                return f"`{arm}` is worse than `{study.control}`{small}: {measured}."
            case Verdict.open:
                needed = f"about {self._seeds_needed(values)} seeds would decide"
                return f"`{arm}` minus `{study.control}`: {measured}; {needed}."
        if read_interval(study.key, low, high, study.smallest_effect) is Verdict.better:
            lost = "`, `".join(self.lost_guards(arm))
            return f"`{arm}` is better than `{study.control}` ({measured}) and costs `{lost}`."
        return f"`{arm}` is not better than `{study.control}` by {study.smallest_effect:g} or more: {measured}."

    def corrected_arms(self) -> list[str]:
        """Return the arms beside the comparison whose interval excludes 0 but not after the correction."""
        values = {arm: self.differences(arm, self.study.key) for arm in self._others()}
        excluding = [arm for arm in values if len(values[arm]) > 1 and _excludes_0(seeds_interval(values[arm]))]
        return [arm for arm in excluding if not self._is_significant(arm)]

    def lost_guards(self, arm: str) -> list[str]:
        """Return the guards that got worse: their 95 % intervals lie wholly on the bad side of 0."""
        values = {key: self.differences(arm, key) for key in self.study.guards}
        return [key for key in values if is_worse(key, fmean(values[key])) and seeds_p(values[key]) < LEVEL]

    def _is_significant(self, arm: str) -> bool:
        if arm == self.study.comparison:
            return seeds_p(self.differences(arm, self.study.key)) < LEVEL
        return arm in holm(self._p_values_of_others())

    def _others(self) -> list[str]:
        return [arm for arm in self.study.arms if arm not in (self.study.control, self.study.comparison)]

    def _p_values_of_others(self) -> dict[str, float]:
        """Return the p-value of each arm beside the comparison; 1 if it shares fewer than two seeds with the control.

        So an arm that has not run counts in Holm's correction, and its run cannot take back a significant difference.
        A removed arm counts with 1, too, so that its removal makes no difference significant.
        """
        differences = {arm: self.differences(arm, self.study.key) for arm in self._others()}
        removed = {f"removed arm {number}": 1.0 for number in range(self.study.removed_arms)}
        return {arm: seeds_p(values) if len(values) > 1 else 1.0 for arm, values in differences.items()} | removed

    def _seeds_needed(self, values: Sequence[float]) -> int:
        """Return about how many seeds would decide, if the mean and the spread of `values` stay as they are.

        The interval must then exclude 0 or the smallest effect, whichever is easier.
        """
        mean, effect = fmean(values), self.study.smallest_effect
        short_of_effect = effect + mean if lower_is_better(self.study.key) else effect - mean
        return seeds_needed(values, max(abs(mean), short_of_effect))


def _excludes_0(interval: Interval) -> bool:
    return interval[1] > 0 or interval[2] < 0


def seeds_p(values: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's t test that the mean over runs, at least two, is 0.

    Equal values have no spread for that test, but few runs can be equal by chance: a share of 49 rows has 50 possible
    values. So for them the result is that of the sign test, 2^(1 - runs), and 1 if they are 0.
    """
    from scipy.stats import ttest_1samp

    if max(values) - min(values) <= EQUALITY_TOLERANCE:
        return 2.0 ** (1 - len(values)) if abs(values[0]) > EQUALITY_TOLERANCE else 1.0
    return float(ttest_1samp(values, 0.0).pvalue)


def seeds_needed(values: Sequence[float], half: float, most: int = 1000) -> int:
    """Return the smallest number of runs whose 95 % interval reaches at most `half` to each side.

    The estimate uses the spread of `values`, at least two, and no `row_error`. It is `most` if more runs are needed.
    """
    from scipy.stats import t

    spread = stdev(values)
    enough = (n for n in range(2, most) if float(t.ppf(1 - LEVEL / 2, n - 1)) * spread / math.sqrt(n) <= half)
    return next(enough, most)


def signed(interval: Interval) -> str:
    """Return mean, low and high with their signs."""
    mean, low, high = interval
    return f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]"

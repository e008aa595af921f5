"""How long something lasts where some are only known to have lasted so long: Kaplan and Meier's curve."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .intervals import Z_95, wilson_interval
from .table import Measure


@dataclass(frozen=True, slots=True)
class Duration:
    """What is known of one."""

    lasted: int
    """Steps it got through."""
    broke: bool
    """Whether the next step broke it; else nobody knows how long it would have lasted."""


@dataclass(frozen=True, slots=True)
class Point:
    """The curve behind a step."""

    step: int
    share: float
    """Estimated share that gets through it."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    at_risk: int
    """How many were there to take the step, at least 1."""
    broken: int
    """How many of them it broke."""


def survival_curve(durations: Sequence[Duration]) -> list[Point]:
    """A point for each step from 1 on to the last that anything took.

    share = Π (1 − broken/at risk). The interval is Greenwood's, on the scale of log(−log share). It does not exist if
    nothing or everything has broken; Wilson's interval of those at risk then takes its place. If everything has broken,
    its upper end is at most that of the step before. Source: Kaplan and Meier, JASA 53 (1958) 457-481;
    Kalbfleisch and Prentice, The Statistical Analysis of Failure Time Data (1980), 1.3.
    """
    points: list[Point] = []
    share, greenwood, at_risk = 1.0, 0.0, len(durations)
    taken = Counter(each.lasted + each.broke for each in durations)
    broken_at = Counter(each.lasted + 1 for each in durations if each.broke)
    for step in range(1, max(taken, default=0) + 1):
        at_risk -= taken[step - 1]
        broken = broken_at[step]
        share *= 1 - broken / at_risk
        greenwood += broken / (at_risk * (at_risk - broken)) if broken < at_risk else math.inf
        low, high = _interval(share, greenwood, at_risk)
        # No later share is above an earlier one.
        high = min([high, *(point.high for point in points[-1:])]) if share == 0 else high
        points.append(Point(step, share, low, high, at_risk, broken))
    return points


def _interval(share: float, greenwood: float, at_risk: int) -> tuple[float, float]:
    if share in (0.0, 1.0):
        return wilson_interval(int(share) * at_risk, at_risk)
    spread = Z_95 * math.sqrt(greenwood) / -math.log(share)
    return share ** math.exp(spread), share ** math.exp(-spread)


def survival_measures(durations: Sequence[Duration], steps: Sequence[int]) -> dict[int, Measure]:
    """The curve at some steps; none for a step that nothing took, unless all had broken before.

    `n`: those at risk, 0 where all had broken before.
    """
    curve = survival_curve(durations)
    found = {point.step: Measure(point.share, point.low, point.high, point.at_risk) for point in curve}
    if curve and curve[-1].share == 0:
        none_left = replace(found[curve[-1].step], n=0)
        found |= {step: none_left for step in steps if step > curve[-1].step}
    return {step: found[step] for step in steps if step in found}

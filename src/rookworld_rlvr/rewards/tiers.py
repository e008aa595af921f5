"""Three tiers of components and the quality computed from them. Only what the strict parser accepts can reach 1.

    quality = weighted mean of the tiers, each the weighted mean of its components

A completion that the parser refuses has a lower quality than every one that it accepts, however bad. Its quality is
structure × (weight of the first tier + weight of the second × mean quality of its content). All metrics count it as
invalid, and it gains nothing by hiding or replacing required content.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

TIERS = ("structure", "parse", "correctness")
Weights = Mapping[str, Mapping[str, float]]


@dataclass(slots=True)
class TierWeights:
    """Weights of the tiers, above 0. By default the format has little weight and correctness most of it."""

    structure: float = 0.1
    """Weight of the structure: markers and fields are present, in order and only once."""
    parse: float = 0.15
    """Weight of the syntax: moves are UCI, numbers are numbers, the FEN parses."""
    correctness: float = 0.75
    """Weight of correctness: moves are legal and good, the next state is the true one."""


def weights_of(tier: Any) -> dict[str, float]:
    """Return the weights of a tier's components, or of the tiers themselves, by name."""
    return {weight.name: float(getattr(tier, weight.name)) for weight in fields(tier)}


def quality(components: Mapping[str, float], weights: Weights, tiers: Mapping[str, float], *, refused: bool) -> float:
    """Return the quality in [0, 1] of components in [0, 1]: 1 exactly if all are 1, 0 exactly if no structure is found.

    `weights` holds the weights of each tier's components, `tiers` those of the tiers. Components that do not apply are
    absent, and the other weights are renormalised. A tier without an applicable component is left out in the same way.
    `refused` says that the strict parser found a failure. If it is False, the first tier's components must all be 1.
    """
    by_tier = {tier: {name: components[name] for name in weights[tier] if name in components} for tier in TIERS}
    values = {tier: mean(by_tier[tier], weights[tier]) for tier in TIERS if _counts(by_tier[tier], weights[tier])}
    if not refused:
        return mean(values, tiers)
    content = mean({tier: value for tier, value in values.items() if tier != "structure"}, tiers)
    return values["structure"] * mean(dict.fromkeys(values, 0.0) | {"structure": 1.0, "parse": content}, tiers)


def mean(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the mean of `values`, weighted by `weights` of the same names. The sum of these must be above 0."""
    total = sum(weights[name] for name in values)
    return sum(weights[name] * value for name, value in values.items()) / total


def _counts(values: Mapping[str, float], weights: Mapping[str, float]) -> bool:
    return any(weights[name] for name in values)

"""From parts to one quality: three rungs, of which the first gates the others.

    quality = weighted mean of the rungs, each the weighted mean of its parts

An answer whose structure is broken (extra or repeated text above all) stays below every answer that is
well-formed, however bad: it earns structure × (weight of the first rung + weight of the second × mean
quality of its content). So no text before, after or inside an answer can hide what the answer says.
"""

from collections.abc import Mapping

RUNGS = ("structure", "parse", "correctness")
Weights = Mapping[str, Mapping[str, float]]


def quality(parts: Mapping[str, float], weights: Weights, rungs: Mapping[str, float]) -> float:
    """Quality in [0, 1] of parts in [0, 1]: 1 exactly if all are 1, 0 exactly if no structure is found.

    `weights` has the weights of each rung's parts, `rungs` those of the rungs. Parts that did not apply are absent,
    and the other weights are renormalised. A rung without an applicable part is left out in the same way.
    """
    by_rung = {rung: {name: parts[name] for name in weights[rung] if name in parts} for rung in RUNGS}
    values = {
        rung: mean(by_rung[rung], weights[rung]) for rung in RUNGS if _counts(by_rung[rung], weights[rung])
    }
    if all(parts[name] == 1.0 for name, weight in weights["structure"].items() if weight):
        return mean(values, rungs)
    content = mean({rung: value for rung, value in values.items() if rung != "structure"}, rungs)
    return values["structure"] * mean(
        dict.fromkeys(values, 0.0) | {"structure": 1.0, "parse": content}, rungs
    )


def _counts(values: Mapping[str, float], weights: Mapping[str, float]) -> bool:
    return any(weights[name] for name in values)


def mean(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Mean of `values`, weighted by `weights` of the same names; their sum must be above 0."""
    total = sum(weights[name] for name in values)
    return sum(weights[name] * value for name, value in values.items()) / total

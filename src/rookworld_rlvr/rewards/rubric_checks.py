"""A rubric's configuration, checked once, with one clear line for what is wrong."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, cast

# Weights are shares; a larger one is a typing error, and without a bound sums could overflow.
MAX_WEIGHT = 1e6
MIN_POSITIVE = 1e-6
POSITIVE = (MIN_POSITIVE, MAX_WEIGHT)
SHARE = (0.0, 1.0)
# The closed interval of each knob that is not simply a weight, by its path.
BOUNDS = {
    "rungs.structure": POSITIVE,
    "rungs.parse": POSITIVE,
    "rungs.correctness": POSITIVE,
    "malformed_reward": (-MAX_WEIGHT, 0.0),
    "warmup_start": SHARE,
    "policy.eval_scale_pawns": POSITIVE,
    "policy.eval_tolerance": POSITIVE,
    "policy.halving_loss": POSITIVE,
    "policy.missed_mate": SHARE,
    "environment.similarity.board_share": SHARE,
    "environment.unparsable_fen_credit": (0.0, 0.99),
}
# Knobs that are no numbers, or check themselves.
OTHERS = ("source", "move_evals", "stockfish")


def check_config(config: Any) -> None:
    """Raises ValueError for a knob that is no finite number in its range, or a rung whose weights are all 0."""
    for path, value, kind in _leaves(config, ""):
        low, high = BOUNDS.get(path, (0.0, MAX_WEIGHT))
        if not _is_number(value, kind) or not low <= value <= high:
            noun = "an integer" if kind is int else "a number"
            raise ValueError(f"expected rubric.{path} to be {noun} from {low:g} to {high:g}, got {value!r}")
    for task in ("policy", "environment"):
        for rung in ("structure", "parse", "correctness"):
            if not sum(weights_of(getattr(getattr(config, task), rung)).values()):
                raise ValueError(f"expected a weight above 0 among those of rubric.{task}.{rung}, got none")


def weights_of(rung: Any) -> dict[str, float]:
    """The weights of a rung by part."""
    return {part.name: float(getattr(rung, part.name)) for part in fields(rung)}


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)


def _leaves(config: Any, path: str) -> Iterator[tuple[str, Any, type]]:
    for knob in (knob for knob in fields(config) if path + knob.name not in OTHERS):
        value, here, kind = getattr(config, knob.name), path + knob.name, cast(type, knob.type)
        if is_dataclass(kind):
            if not isinstance(value, kind):
                raise ValueError(f"expected rubric.{here} to be a {kind.__name__}, got {value!r}")
            yield from _leaves(value, here + ".")
        else:
            yield here, value, kind

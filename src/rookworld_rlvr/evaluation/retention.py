"""The suite `retention`: how much a model has kept of the knowledge of the checkpoint it began from.

Both models answer the same held-out rows of both tasks, and the probability of the labels is measured under both.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..board.fen import parse_fen
from ..tasks import Example, parse_prompt
from .held_out import Complete
from .label_loss import LabelLoss
from .parts import refined
from .run import CHUNK_ROWS
from .scales import BASELINE, CHANGE
from .suite import Suite, SuiteName, by_chunks
from .table import Row, difference, score_examples


@dataclass(slots=True)
class RetentionConfig:
    """What a model is compared with."""

    baseline: str = ""
    """The starting checkpoint: a model's folder, a hub name, or `tiny`. The suite needs it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A model, as this suite asks it."""

    complete: Complete
    losses: Callable[[Sequence[Example]], list[LabelLoss | None]]


def retention_suite(
    model: Asked, baseline: Asked, examples: Sequence[Example], *, facts: Mapping[str, Any] | None = None
) -> Suite:
    """Rows of the examples; of each value there is the model's, the baseline's and the change.

    Keys: `retention/<task>_loss`, nat a row, and `retention/<task>_loss_per_token`, the mean over rows of nat a
    token, in the model's own tokens; `retention/<task>_<metric>` for the metrics of `judge`. Each key also has
    `/baseline`, and `/change`, the model's value less the baseline's, row by row, with the interval of paired
    differences. The model's value and the change also have keys by the parts of the prompt's position, `…/white` and
    `…/change/white`. A loss change above 0 and a metric change below 0 are forgetting. A label that is missing, or too
    long for one of the models, has no loss in either.
    """

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        own, other = _values(model, chunk), _values(baseline, chunk)
        return [
            Row(first + i, example, _compared(own[i], other[i], example)) for i, example in enumerate(chunk)
        ]

    rows = by_chunks(examples, CHUNK_ROWS, answer)
    return Suite(SuiteName.retention, examples, rows, CHUNK_ROWS, facts or {})


def _values(asked: Asked, examples: Sequence[Example]) -> list[dict[str, float]]:
    """One model's values of each example, by `<task>_<name>`."""
    rows, losses = score_examples(examples, asked.complete(examples)), asked.losses(examples)
    found = []
    for example, row, loss in zip(examples, rows, losses, strict=True):
        values = {key.replace("/", "_"): value for key, value in row.values.items() if key.count("/") == 1}
        if loss is not None:
            values[f"{example.task}_loss"] = loss.nat
            values[f"{example.task}_loss_per_token"] = loss.nat_per_token
        found.append(values)
    return found


def _compared(own: Mapping[str, float], other: Mapping[str, float], example: Example) -> dict[str, float]:
    keys = {f"{SuiteName.retention}/{name}": name for name in sorted(own.keys() & other.keys())}
    told = {key: own[name] for key, name in keys.items()}
    told |= {f"{key}/{CHANGE}": difference(other[name], own[name]) for key, name in keys.items()}
    baseline = {f"{key}/{BASELINE}": other[name] for key, name in keys.items()}
    return refined(told, parse_fen(parse_prompt(example.prompt).fen)) | baseline

"""A small held-back set that decisions of a run may look at: never trained on, and never the final table's."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from ..evaluation import Row
from ..tasks import Example, Task
from ..tasks.corpus import example_key, exclude_positions

# The one number of each task that a decision looks at.
SCORED = {Task.policy: "policy/legal_best_move", Task.environment: "environment/next_state_accuracy"}


def hold_back(examples: Sequence[Example], rows_per_task: int) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Training rows and validation rows; no position is in both. The last rows of each task are held back."""
    held_back = tuple(
        row for task in Task for row in [example for example in examples if example.task is task][-rows_per_task:]
    )
    return exclude_positions(examples, {example_key(row) for row in held_back}), held_back


def validation_metrics(rows: Sequence[Row]) -> Mapping[str, float]:
    """`validation/score`, the mean of what counts of each task there is, and that of each."""
    values = {
        f"validation/{key}": fmean(row.values.get(key, 0.0) for row in rows if _is_of(row, task))
        for task, key in SCORED.items()
        if any(_is_of(row, task) for row in rows)
    }
    return {"validation/score": fmean(values.values()), **values}


def _is_of(row: Row, task: Task) -> bool:
    return any(key.startswith(f"{task}/") for key in row.values)

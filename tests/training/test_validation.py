"""Rows held back from training, and the one number that decisions look at."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rookworld_rlvr.evaluation import Row
from rookworld_rlvr.tasks import Example, Task
from rookworld_rlvr.tasks.corpus import example_key, read_corpus
from rookworld_rlvr.training.config import ValidationConfig
from rookworld_rlvr.training.data import Data, hold_back
from rookworld_rlvr.training.evaluations import validation_metrics


@pytest.fixture
def examples(corpus: Any) -> tuple[Example, ...]:
    rows: tuple[Example, ...] = tuple(read_corpus(corpus.train).examples)
    return rows


def test_the_last_rows_of_each_task_are_held_back_and_none_of_their_positions_is_trained(
    examples: tuple[Example, ...],
) -> None:
    data = hold_back(Data(examples, (), frozenset()), 3)
    train, held_back = data.train, data.validation
    of_task = {task: [row for row in examples if row.task is task] for task in Task}
    assert held_back == tuple(of_task[Task.policy][-3:] + of_task[Task.environment][-3:])
    keys = {example_key(row) for row in held_back}
    assert train and not keys & {example_key(row) for row in train}
    assert set(train) == {row for row in examples if example_key(row) not in keys}
    # A row of a position that is held back is not trained on, wherever it stands.
    again = hold_back(Data((held_back[0], *examples), (), frozenset()), 3)
    assert set(again.train) == set(train)


def rows(**values: list[float]) -> list[Row]:
    keys = {"policy": "policy/legal_best_move", "environment": "environment/next_state_accuracy"}
    return [
        Row(0, Example(Task(task), "", None), {keys[task]: value})
        for task, of_task in values.items()
        for value in of_task
    ]


def test_the_score_is_the_mean_over_tasks_not_over_rows() -> None:
    metrics = validation_metrics(rows(policy=[1.0, 0.0, 0.0, 0.0], environment=[1.0]))
    assert metrics == {
        "validation/score": 0.625,
        "validation/policy/legal_best_move": 0.25,
        "validation/environment/next_state_accuracy": 1.0,
    }
    assert validation_metrics(rows(policy=[1.0, 0.0]))["validation/score"] == 0.5


def test_a_row_whose_answer_broke_before_what_counts_is_wrong() -> None:
    broken = Row(0, Example(Task.policy, "", None), {"policy/valid": 0.0})
    assert validation_metrics([broken, *rows(policy=[1.0])])["validation/score"] == 0.5


@pytest.mark.parametrize("changes", [{"every": -1}, {"rows": 0}], ids=str)
def test_a_validation_without_rows_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="validation: expected every from 0 and rows from 1"):
        ValidationConfig(**changes)


def test_validation_is_a_metric_of_the_steps_where_it_is_due_and_marks_the_best(train: Callable[..., Path]) -> None:
    given = ("steps=3", "evaluation_rows=0", "validation.every=2", "validation.rows=2", "generator.max_new_tokens=8")
    folder = train(*given)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert ["validation/score" in row for row in lines] == [False, True, True]
    recovery = torch.load(folder / "checkpoints/step-3/trainer_state.pt", weights_only=True)["recovery"]
    assert recovery["best_score"] >= max(row["validation/score"] for row in lines[1:])
    assert (folder / "checkpoints/best").resolve().name == f"step-{recovery['best_step']}"

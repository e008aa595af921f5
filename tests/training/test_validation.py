"""Rows held back from training, and the validation score on which decisions are based."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chess
import pytest
import torch

from rookworld_rlvr.board.evals import win_probability
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.evaluation.config import EvaluationConfig
from rookworld_rlvr.evaluation.players import rule_losses
from rookworld_rlvr.evaluation.table import Row
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.tasks.corpus import example_key, read_corpus
from rookworld_rlvr.tasks.types import Example
from rookworld_rlvr.training.data import Data, hold_back
from rookworld_rlvr.training.evaluations import validation_metrics


@pytest.fixture
def examples(corpus: Any) -> tuple[Example, ...]:
    rows: tuple[Example, ...] = tuple(read_corpus(corpus.train).examples)
    return rows


def test_the_last_rows_of_each_task_are_held_back_with_their_positions(examples: tuple[Example, ...]) -> None:
    data = hold_back(Data(examples, (), frozenset()), 3)
    train, held_back = data.train, data.validation
    of_task = {task: [row for row in examples if row.task == task] for task in ("policy", "environment")}
    assert held_back == tuple(of_task["policy"][-3:] + of_task["environment"][-3:])
    keys = {example_key(row) for row in held_back}
    assert train and not keys & {example_key(row) for row in train}
    assert set(train) == {row for row in examples if example_key(row) not in keys}
    # A row with a held-back position is not trained on, wherever it is in the data.
    again = hold_back(Data((held_back[0], *examples), (), frozenset()), 3)
    assert set(again.train) == set(train)


def test_at_most_a_tenth_of_a_task_is_held_back(examples: tuple[Example, ...]) -> None:
    policy = tuple(row for row in examples if row.task == "policy")[:20]
    assert hold_back(Data(policy, (), frozenset()), 128).validation == policy[-2:]
    assert hold_back(Data(policy[:9], (), frozenset()), 128).validation == ()


def test_rows_held_back_must_leave_some_to_train_on(make_run: Callable[..., Any], tmp_path: Path) -> None:
    line = "P: 7k/8/8/8/8/8/8/K7 w - - 0 1 M: a1a2 E: 0.5 B: a1a2\n"
    (tmp_path / "one.txt").write_text(line * 10)
    with pytest.raises(UserError, match="expected to leave training rows of task policy"):
        make_run(f"data.train={tmp_path / 'one.txt'}", "data.tasks=[policy,environment:0]")


def rows(**values: list[float]) -> list[Row]:
    keys = {"policy": "policy/legal_best_move", "environment": "environment/next_state_accuracy"}
    return [
        Row(0, Example(task, "", None), {f"sampled/{keys[task]}": value})
        for task, of_task in values.items()
        for value in of_task
    ]


def test_validation_score_is_mean_over_tasks_not_over_rows() -> None:
    metrics = validation_metrics(rows(policy=[1.0, 0.0, 0.0, 0.0], environment=[1.0]))
    assert metrics == {
        "validation/score": 0.625,
        "validation/policy/legal_best_move": 0.25,
        "validation/environment/next_state_accuracy": 1.0,
    }
    assert validation_metrics(rows(policy=[1.0, 0.0]))["validation/score"] == 0.5


def test_validation_keys_with_few_rows_are_left_out() -> None:
    loss = "policy/win_probability_loss"
    many = [Row(place, Example("policy", "", None), {f"sampled/{loss}": 0.25}) for place in range(30)]
    scored = rows(policy=[1.0])
    assert validation_metrics([*scored, *many])[f"validation/{loss}"] == 0.25
    assert f"validation/{loss}" not in validation_metrics([*scored, *many[1:]])
    assert validation_metrics([]) == {}


@pytest.mark.parametrize("changes", [{"curve_every": -1}, {"curve_rows": 0}], ids=str)
def test_validation_options_out_of_range_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected curve_every from 0 and curve_rows from 1"):
        EvaluationConfig(**changes)


GIVEN = ("steps=3", "evaluation.rows=0", "evaluation.curve_rows=2", "generator.max_new_tokens=8")


def lines_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_start_every_nth_step_and_last_step_are_validated(train: Callable[..., Path]) -> None:
    folder = train(*GIVEN, "evaluation.curve_every=2", "checkpoint_every=1")
    lines = lines_of(folder)
    assert [line["step"] for line in lines if "validation/score" in line] == [0, 2, 3]
    recovery = torch.load(folder / "checkpoints/step-3/trainer_state.pt", weights_only=True)["recovery"]
    scores = {line["step"]: line["validation/score"] for line in lines if "validation/score" in line}
    assert recovery["best_score"] == max(scores.values()) == scores[recovery["best_step"]]
    assert (folder / "checkpoints/best").resolve().name == f"step-{recovery['best_step']}"


def test_newest_checkpoint_is_best_in_run_with_too_few_rows_to_validate(train: Callable[..., Path]) -> None:
    folder = train(*GIVEN, "evaluation.curve_every=1", "data.limit=8")
    assert [line["step"] for line in lines_of(folder)] == [1, 2, 3]
    assert "\n  curve_every: 1\n" in (folder / "config.yaml").read_text()
    assert (folder / "checkpoints/best").resolve().name == "step-3"


def test_validation_does_not_change_training(train: Callable[..., Path]) -> None:
    own = ("validation/", "time/", "throughput/", "memory/")
    steps, weights = [], []
    for every in (0, 1):
        folder = train(*GIVEN, f"evaluation.curve_every={every}", root=f"every-{every}")
        trained = [line for line in lines_of(folder) if line["step"]]
        steps.append([{key: value for key, value in line.items() if not key.startswith(own)} for line in trained])
        weights.append((folder / "checkpoints/step-3/model.safetensors").read_bytes())
    assert steps[0] == steps[1] and weights[0] == weights[1]


def test_rule_losses_are_win_probability_losses_of_their_moves() -> None:
    # White can take the queen or the pawn. Taking the queen is best.
    fen = "k7/8/8/3q1p2/4P3/8/8/K7 w - - 0 1"
    lines = [(move.uci(), 9.0 if move.uci() == "e4d5" else 0.0) for move in chess.Board(fen).legal_moves]
    losses = rule_losses({fen: Analysis(fen, tuple(lines))})
    assert losses["capture"] == losses["exchange"] == 0.0
    loss = win_probability(9.0) - win_probability(0.0)
    assert losses["random"] == pytest.approx(loss * (len(lines) - 1) / len(lines))
    assert rule_losses({}) == {}

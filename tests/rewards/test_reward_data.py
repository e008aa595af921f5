"""Scores of published completions."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.rewards import Rubric, RubricConfig, Score
from rookworld_rlvr.tasks.types import FailureReason

# Scores by labels and rules, without move evaluations.
score = Rubric(RubricConfig()).score

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"


def rows(name: str) -> list[dict[str, Any]]:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the shared data file {name} is not beside the project")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def scores(task: str) -> list[Score]:
    outputs = [row for row in rows("published_model_outputs.jsonl") if row["task"] == task]
    return [score(row["prompt"], row["completion"]) for row in outputs]


def test_published_environment_outputs_have_14_exact_and_7_malformed() -> None:
    judged = scores("A")
    assert Counter(one.failure and one.failure.reason for one in judged) == {
        None: 14,
        FailureReason.bad_fen: 7,
    }
    assert all(one.total == 1.0 for one in judged if one.failure is None)
    assert all(-0.3 < one.total < 0.4 for one in judged if one.failure is not None)


def test_published_policy_outputs_are_well_formed_and_legal() -> None:
    judged = scores("P")
    assert [one.failure for one in judged] == [None] * 3
    assert all(
        one.components["correctness/candidates"] == one.components["correctness/best_legal"] == 1.0 for one in judged
    )
    # The third answer's best move e7e6 is below d7d5 in its own evals: the model learned inverted labels of Black.
    assert [one.total == 1.0 for one in judged] == [True, True, False]


def test_opening_transition_earns_one_and_its_copy_less_than_half() -> None:
    openings = rows("opening_environment.jsonl")
    assert len(openings) == 698
    for row in openings:
        assert score(row["prompt"], f"{row['next_fen']}+0.001+0+0").total == 1.0
        copied = row["prompt"].removeprefix("A: ").split("+")[0]
        assert score(row["prompt"], f"{copied}+0.001+0+0").total < 0.5


def test_published_validation_labels_fully_match_themselves() -> None:
    path = DATA / "rook_val_250.txt"
    if not path.exists():
        pytest.skip("the shared data file rook_val_250.txt is not beside the project")
    for line in path.read_text(encoding="utf-8").splitlines():
        prompt, _, moves = line.partition("M:")
        judged = score(prompt, "M:" + moves, "M:" + moves)
        matched = {name: value for name, value in judged.components.items() if name.endswith("_match")}
        assert set(matched.values()) == {1.0} and len(matched) == 3, line

"""Values of an environment row, against hand computation and an independent edit distance."""

import json
from functools import cache
from pathlib import Path

import chess
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookworld_rlvr.tasks.environment.evaluation import score_environment_row
from rookworld_rlvr.tasks.types import Example, PromptError

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
LEGAL = f"A: {chess.STARTING_FEN}+e2e4+e2e4+"
ILLEGAL = f"A: {chess.STARTING_FEN}+e2e5+e2e5+"
WIN = "A: 7k/5Q2/6K1/8/8/8/8/8 w - - 0 1+f7g7+f7g7+"
DRAW = "A: 7k/8/5QK1/8/8/8/8/8 w - - 0 1+f6f7+f6f7+"
# Prompt, true completion, and the recall keys of the row.
CASES = {
    "legal": (LEGAL, f"{AFTER_E4}+0.001+0+0", {"recall_legal"}),
    "illegal": (ILLEGAL, f"{chess.STARTING_FEN}+-1.0+0+1", {"recall_illegal", "recall_truncated"}),
    "win": (WIN, "7k/6Q1/6K1/8/8/8/8/8 b - - 1 1+1.0+1+0", {"recall_win", "recall_terminated"}),
    "draw": (DRAW, "7k/5Q2/6K1/8/8/8/8/8 b - - 1 1+0.5+1+0", {"recall_draw", "recall_terminated"}),
}
ACCURACIES = {
    "valid",
    "next_state_accuracy",
    "next_state_nls",
    "reward_accuracy",
    "terminated_accuracy",
    "truncated_accuracy",
}


def row(prompt: str, completion: str, label: str | None = None) -> dict[str, float]:
    return score_environment_row(Example("environment", prompt, label), completion)


def edit_distance(a: str, b: str) -> int:
    """Return the edit distance by its recursive definition."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        replaced = distance(i - 1, j - 1) + (a[i - 1] != b[j - 1])
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, replaced)

    return distance(len(a), len(b))


@pytest.mark.parametrize("name", CASES)
def test_true_completion_scores_1_and_counts_only_for_its_own_recalls(name: str) -> None:
    prompt, truth, recalls = CASES[name]
    assert row(prompt, truth) == dict.fromkeys(ACCURACIES | recalls, 1.0) | {"reward_mae": 0.0}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("completion", ["", "no FEN+0.001+0+0", f"{AFTER_E4}+0.001+0", f"{AFTER_E4}+x+0+0"])
def test_unparsable_completion_scores_0_with_largest_reward_error(name: str, completion: str) -> None:
    prompt, _, recalls = CASES[name]
    assert row(prompt, completion) == dict.fromkeys(ACCURACIES | recalls, 0.0) | {"reward_mae": 2.0}


def test_values_of_half_right_completion_equal_hand_computation() -> None:
    judged = row(WIN, "7k/6Q1/6K1/8/8/8/8/8 b - - 2 1+0.001+0+0")
    assert judged == {
        "valid": 1.0,
        "next_state_accuracy": 0.0,
        "next_state_nls": pytest.approx(1 - 1 / 30),
        "reward_accuracy": 0.0,
        "reward_mae": pytest.approx(0.999),
        "terminated_accuracy": 0.0,
        "truncated_accuracy": 1.0,
        "recall_win": 0.0,
        "recall_terminated": 0.0,
    }


def test_copied_input_state_is_similar_but_not_exact() -> None:
    judged = row(LEGAL, f"{chess.STARTING_FEN}+0.001+0+0")
    # 8 becomes 4P3 (three edits), P becomes 1, w becomes b; the longer FEN has 58 characters.
    assert judged["next_state_accuracy"] == 0.0
    assert judged["next_state_nls"] == pytest.approx(1 - 5 / 58)


@given(st.sampled_from([case[1].split("+")[0] for case in CASES.values()]))
def test_next_state_similarity_is_one_minus_normalised_edit_distance(fen: str) -> None:
    expected = 1 - edit_distance(fen, AFTER_E4) / max(len(fen), len(AFTER_E4))
    assert row(LEGAL, f"{fen}+0.001+0+0")["next_state_nls"] == pytest.approx(expected)


@pytest.mark.parametrize(("reward", "error"), [("-1.0", 1.001), ("1", 0.999), ("999999", 2.0), ("-7", 2.0)])
def test_reward_error_is_absolute_and_capped_at_2(reward: str, error: float) -> None:
    assert row(LEGAL, f"{AFTER_E4}+{reward}+0+0")["reward_mae"] == pytest.approx(error)


def test_truth_comes_from_python_chess_and_not_from_the_label() -> None:
    recorded_as_legal = "rnbqkbnr/pppppppp/8/4P3/8/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1+0.001+0+0"
    judged = row(ILLEGAL, recorded_as_legal, recorded_as_legal)
    assert judged["recall_illegal"] == judged["recall_truncated"] == judged["next_state_accuracy"] == 0.0
    assert judged == row(ILLEGAL, recorded_as_legal)


def test_a_malformed_prompt_raises() -> None:
    with pytest.raises(PromptError, match="expected 'A: <FEN>"):
        row("A: nonsense", "")


def test_14_of_21_published_outputs_are_exact_and_7_invalid() -> None:
    path = DATA / "published_model_outputs.jsonl"
    if not path.exists():
        pytest.skip(f"the shared data file {path.name} is not beside the project")
    lines = path.read_text(encoding="utf-8").splitlines()
    outputs = [line for line in map(json.loads, lines) if line["task"] == "A"]
    judged = [row(line["prompt"], line["completion"]) for line in outputs]
    exact = dict.fromkeys(ACCURACIES | {"recall_legal"}, 1.0) | {"reward_mae": 0.0}
    assert len(judged) == 21
    assert [values for values in judged if values["valid"]] == [exact] * 14
    assert sum(values["next_state_accuracy"] for values in judged) == 14

"""Values of a policy row, against hand computation and counts of published rows."""

import json
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.evaluation.table import score_examples, summarise
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.policy.evaluation import score_policy_row
from rookworld_rlvr.tasks.types import Example, LabelError, PromptError

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
START = "P: " + chess.STARTING_FEN
LABEL = "M: e2e4 d2d4 g1f3 c2c4 g2g3 E: 0.3 0.3 0.2 0.1 0.0 B: e2e4"


def row(completion: str, *, prompt: str = START, label: str | None = LABEL) -> dict[str, float]:
    return score_policy_row(Example("policy", prompt, label), completion)


def data(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"the shared data file {name} is not beside the project")
    return DATA / name


def test_label_itself_scores_1_on_every_policy_key() -> None:
    assert row(LABEL) == {
        "valid": 1.0,
        "legal_best_move": 1.0,
        "legal_candidates": 1.0,
        "best_move_accuracy": 1.0,
        "top5_accuracy": 1.0,
        "top5_overlap": 1.0,
    }


def test_values_of_mixed_answer_equal_hand_count() -> None:
    # e2e4 twice and one illegal move: 3 distinct legal moves of 5. Of the label's 5, e2e4 and g1f3 are there.
    assert row("M: e2e4 e2e4 e2e5 g1f3 a2a3 E: 1 2 3 4 5 B: g1f3") == {
        "valid": 1.0,
        "legal_best_move": 1.0,
        "legal_candidates": 0.6,
        "best_move_accuracy": 0.0,
        "top5_accuracy": 1.0,
        "top5_overlap": 0.4,
    }


@pytest.mark.parametrize(
    "completion", ["", "M: e2e4 E: 0.3", LABEL + " e2e4", "x " + LABEL, LABEL.replace("0.3 0.3", "nan 0.3")]
)
def test_answer_refused_by_strict_parser_scores_0_on_every_key(completion: str) -> None:
    assert row(completion) == dict.fromkeys(row(LABEL), 0.0)


def test_any_mating_move_counts_for_mate_in_one() -> None:
    prompt = "P: 6k1/5ppp/8/8/8/8/8/RR2K3 w - - 0 1"
    for best, right in (("a1a8", 1.0), ("b1b8", 1.0), ("a1a7", 0.0), ("a1a9", 0.0)):
        example = Example("policy", prompt, "M: a1a8 E: 999.99 B: a1a8")
        assert score_policy_row(example, f"M: {best} E: 1.0 B: {best}")["mate_in_one"] == right
    assert "mate_in_one" not in row(LABEL)


@pytest.mark.parametrize(("best", "right"), [("e2e4", 1.0), ("d2d4", 1.0), ("g1f3", 0.0), ("a2a3", 0.0)])
def test_every_candidate_with_highest_eval_counts_as_best_move(best: str, right: float) -> None:
    assert row(f"M: e2e4 E: 0.3 B: {best}")["best_move_accuracy"] == right


def test_inverted_label_is_judged_by_its_candidate_with_highest_eval() -> None:
    inverted = LABEL.replace("B: e2e4", "B: g2g3")
    assert row(LABEL, label=inverted)["best_move_accuracy"] == 1.0
    assert row(inverted, label=inverted)["best_move_accuracy"] == 0.0
    assert row(inverted, label=inverted)["top5_accuracy"] == 1.0


def test_label_best_move_outside_candidates_is_best_but_not_in_top5() -> None:
    judged = row("M: a2a3 E: 0.0 B: a2a3", label="M: e2e4 E: 0.3 B: a2a3")
    assert judged["best_move_accuracy"] == 1.0
    assert judged["top5_accuracy"] == 0.0


def test_illegal_label_move_never_counts_as_correct() -> None:
    judged = row("M: e2e5 E: 9.0 B: e2e5", label="M: e2e5 e2e4 E: 9.0 0.3 B: e2e5")
    assert judged["best_move_accuracy"] == judged["top5_accuracy"] == judged["top5_overlap"] == 0.0


@pytest.mark.parametrize(("spelling", "legal"), [("e1g1", 1.0), ("e1h1", 0.0)])
def test_castling_is_legal_in_one_spelling(spelling: str, legal: float) -> None:
    judged = row(f"M: {spelling} E: 0.0 B: {spelling}", prompt="P: 4k3/8/8/8/8/8/8/4K2R w K - 0 1", label=None)
    assert judged["valid"] == 1.0
    assert judged["legal_best_move"] == legal


def test_only_legal_move_as_candidate_gets_full_score() -> None:
    prompt = "P: k7/8/1K6/8/8/8/8/7R b - - 0 1"
    assert [move.uci() for move in chess.Board(prompt[3:]).legal_moves] == ["a8b8"]
    assert row("M: a8b8 E: 0.0 B: a8b8", prompt=prompt, label=None)["legal_candidates"] == 1.0


def test_keys_that_need_a_label_or_legal_move_are_absent_without_it() -> None:
    assert row(LABEL, label=None).keys() == {"valid", "legal_best_move", "legal_candidates"}
    stalemate = "P: 7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"
    assert row(LABEL, prompt=stalemate) == row(LABEL, prompt=stalemate, label=None) == {"valid": 1.0}


def test_malformed_prompt_or_label_of_policy_row_raises() -> None:
    with pytest.raises(PromptError, match="expected 'P: <FEN>'"):
        row(LABEL, prompt="P: nonsense")
    with pytest.raises(LabelError, match="expected a label that parses"):
        row(LABEL, label="M: e2e4")


def test_the_3_published_outputs_are_valid_and_legal() -> None:
    lines = data("published_model_outputs.jsonl").read_text(encoding="utf-8").splitlines()
    outputs = [line for line in map(json.loads, lines) if line["task"] == "P"]
    judged = [row(line["completion"], prompt=line["prompt"], label=None) for line in outputs]
    assert judged == [{"valid": 1.0, "legal_best_move": 1.0, "legal_candidates": 1.0}] * 3


def test_published_labels_have_inverted_best_moves_for_black() -> None:
    examples = read_corpus(data("rook_val_250.txt")).examples
    table = summarise(score_examples(examples, [example.completion or "" for example in examples]))
    assert (table["policy/valid/white"].n, table["policy/valid/black"].n) == (134, 107)
    assert table["policy/best_move_accuracy/black"].value == (107 - 96) / 107
    assert table["policy/best_move_accuracy/white"].value == 133 / 134
    # The best move of the only black row with a mate is inverted, too.
    assert table["policy/mate_in_one"].value == table["policy/mate_in_one/black"].value == 0
    inverted = ("best_move_accuracy", "mate_in_one")
    others = {key: entry.value for key, entry in table.items() if not any(name in key for name in inverted)}
    assert others == dict.fromkeys(others, 1.0)

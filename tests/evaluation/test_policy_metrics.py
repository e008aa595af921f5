"""A policy row's values, by hand and by an independent count."""

import json
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.evaluation import score_examples, score_policy_row, summarise
from rookworld_rlvr.tasks import Example, PromptError, Task
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.types import LabelError

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
START = "P: " + chess.STARTING_FEN
LABEL = "M: e2e4 d2d4 g1f3 c2c4 g2g3 E: 0.3 0.3 0.2 0.1 0.0 B: e2e4"


def row(completion: str, *, prompt: str = START, label: str | None = LABEL) -> dict[str, float]:
    return score_policy_row(Example(Task.policy, prompt, label), completion)


def data(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"the shared data file {name} is not beside the project")
    return DATA / name


def test_the_label_itself_scores_1_on_all() -> None:
    assert row(LABEL) == {
        "valid": 1.0,
        "legal_best_move": 1.0,
        "legal_candidates": 1.0,
        "best_move_accuracy": 1.0,
        "top5_accuracy": 1.0,
        "top5_overlap": 1.0,
    }


def test_every_value_of_a_mixed_answer_is_the_one_counted_by_hand() -> None:
    # e2e4 twice, one illegal move: 3 distinct legal ones of 5; e2e4, g1f3 of the label's 5.
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
def test_what_the_strict_parser_refuses_scores_0_on_all(completion: str) -> None:
    assert row(completion) == dict.fromkeys(row(LABEL), 0.0)


def test_where_a_move_mates_any_mate_is_right() -> None:
    prompt = "P: 6k1/5ppp/8/8/8/8/8/RR2K3 w - - 0 1"
    for best, right in (("a1a8", 1.0), ("b1b8", 1.0), ("a1a7", 0.0), ("a1a9", 0.0)):
        example = Example(Task.policy, prompt, "M: a1a8 E: 999.99 B: a1a8")
        assert score_policy_row(example, f"M: {best} E: 1.0 B: {best}")["mate_in_one"] == right
    assert "mate_in_one" not in row(LABEL)


@pytest.mark.parametrize(("best", "right"), [("e2e4", 1.0), ("d2d4", 1.0), ("g1f3", 0.0), ("a2a3", 0.0)])
def test_every_candidate_of_the_highest_eval_is_a_best_move(best: str, right: float) -> None:
    assert row(f"M: e2e4 E: 0.3 B: {best}")["best_move_accuracy"] == right


def test_a_label_that_names_its_worst_candidate_is_answered_by_the_best_one() -> None:
    inverted = LABEL.replace("B: e2e4", "B: g2g3")
    assert row(LABEL, label=inverted)["best_move_accuracy"] == 1.0
    assert row(inverted, label=inverted)["best_move_accuracy"] == 0.0
    assert row(inverted, label=inverted)["top5_accuracy"] == 1.0


def test_a_labels_best_move_outside_its_candidates_counts_as_best_and_not_as_candidate() -> None:
    judged = row("M: a2a3 E: 0.0 B: a2a3", label="M: e2e4 E: 0.3 B: a2a3")
    assert judged["best_move_accuracy"] == 1.0
    assert judged["top5_accuracy"] == 0.0


def test_an_illegal_move_of_the_label_cannot_be_answered_right() -> None:
    judged = row("M: e2e5 E: 9.0 B: e2e5", label="M: e2e5 e2e4 E: 9.0 0.3 B: e2e5")
    assert judged["best_move_accuracy"] == judged["top5_accuracy"] == judged["top5_overlap"] == 0.0


@pytest.mark.parametrize(("spelling", "legal"), [("e1g1", 1.0), ("e1h1", 0.0)])
def test_castling_is_legal_in_one_spelling(spelling: str, legal: float) -> None:
    judged = row(f"M: {spelling} E: 0.0 B: {spelling}", prompt="P: 4k3/8/8/8/8/8/8/4K2R w K - 0 1", label=None)
    assert judged["valid"] == 1.0
    assert judged["legal_best_move"] == legal


def test_one_legal_candidate_is_all_where_the_position_allows_one() -> None:
    prompt = "P: k7/8/1K6/8/8/8/8/7R b - - 0 1"
    assert [move.uci() for move in chess.Board(prompt[3:]).legal_moves] == ["a8b8"]
    assert row("M: a8b8 E: 0.0 B: a8b8", prompt=prompt, label=None)["legal_candidates"] == 1.0


def test_without_a_label_or_a_legal_move_the_values_that_ask_for_one_are_absent() -> None:
    assert row(LABEL, label=None).keys() == {"valid", "legal_best_move", "legal_candidates"}
    stalemate = "P: 7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"
    assert row(LABEL, prompt=stalemate) == row(LABEL, prompt=stalemate, label=None) == {"valid": 1.0}


def test_our_own_mistakes_raise() -> None:
    with pytest.raises(PromptError, match="expected 'P: <FEN>'"):
        row(LABEL, prompt="P: nonsense")
    with pytest.raises(LabelError, match="expected a label that parses"):
        row(LABEL, label="M: e2e4")


def test_the_3_published_outputs_are_valid_and_legal() -> None:
    lines = data("published_model_outputs.jsonl").read_text(encoding="utf-8").splitlines()
    outputs = [line for line in map(json.loads, lines) if line["task"] == "P"]
    judged = [row(line["completion"], prompt=line["prompt"], label=None) for line in outputs]
    assert judged == [{"valid": 1.0, "legal_best_move": 1.0, "legal_candidates": 1.0}] * 3


def test_published_labels_show_their_black_inversion_and_nothing_else() -> None:
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

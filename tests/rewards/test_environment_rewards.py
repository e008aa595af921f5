"""Components and totals of the environment task, against values computed by hand from the default weights."""

import pytest

from rookworld_rlvr.rewards import Rubric, RubricConfig
from rookworld_rlvr.tasks.environment.reward import well_formed_share
from rookworld_rlvr.tasks.types import FailureReason, LabelError, PromptError

# Scores by labels and rules, without move evaluations.
score = Rubric(RubricConfig()).score

FEN = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
NEXT = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
LEGAL = f"A: {FEN}+e2e4+e2e4+"
ILLEGAL = f"A: {FEN}+e2e5+e2e5+"
MATE = "A: 7k/5Q2/6K1/8/8/8/8/8 w - - 0 1+f7g7++"
PERFECT = f"{NEXT}+0.001+0+0"


def total(completion: str, prompt: str = LEGAL) -> float:
    return score(prompt, completion).total


def test_correct_answer_earns_one_and_unrecognisable_text_the_minimum() -> None:
    assert total(PERFECT) == total(f"  {NEXT} + 0.001 + 0 + 0 \n") == 1.0
    assert total("7k/6Q1/6K1/8/8/8/8/8 b - - 1 1+1.0+1+0", MATE.replace("++", "+f7g7+")) == 1.0
    for text in ("", " ", "hello", "hello + world", "+++", "M: e2e4 E: 0.1 B: e2e4"):
        assert total(text) == -0.3, text


def test_answer_to_illegal_move_accepts_both_en_passant_spellings() -> None:
    assert total(f"{FEN}+-1.0+0+1", ILLEGAL) == 1.0
    spelled = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1"
    prompt = f"A: {spelled}+e7e4++"
    assert total(f"{spelled}+-1.0+0+1", prompt.replace("++", "+e7e4+")) == 1.0
    assert total(f"{spelled.replace('e3', '-')}+-1.0+0+1", prompt.replace("++", "+e7e4+")) == 1.0


def test_claim_that_illegal_move_was_played_earns_little() -> None:
    judged = score(ILLEGAL, f"{FEN.replace(' w ', ' b ')}+0.001+0+0")
    # quality = 0.25 + 0.75 * 0.1: only "not terminated" is right.
    assert judged.total == pytest.approx(1.3 * (0.25 + 0.75 * 0.1) - 0.3, abs=1e-12)
    assert judged.components["correctness/truncated"] == judged.components["correctness/reward"] == 0.0


@pytest.mark.parametrize(
    ("claim", "correctness"),
    [("-1.0+0+1", 1.0), ("0.001+0+0", 0.1), ("1.0+1+0", 0.0), ("0.001+0+1", 0.2), ("-1.0+0+0", 0.3)],
)
def test_copied_board_counts_only_if_reward_and_flag_say_illegal(claim: str, correctness: float) -> None:
    copy = score(ILLEGAL, f"{FEN}+{claim}")
    assert copy.total == pytest.approx(1.3 * (0.25 + 0.75 * correctness) - 0.3, abs=1e-12)


def test_true_board_called_illegal_earns_as_much_as_a_copy() -> None:
    assert score(LEGAL, f"{NEXT}+-1.0+0+1").total == total(f"{FEN}+-1.0+0+1") == pytest.approx(0.1225)


def test_copy_after_legal_move_earns_only_reward_and_flag_credit() -> None:
    # quality = 0.25 + 0.75 * (0.2 + 0.1 + 0.1)
    assert total(f"{FEN}+0.001+0+0") == pytest.approx(1.3 * 0.55 - 0.3, abs=1e-12)


def test_en_passant_square_without_legal_capture_is_not_exact() -> None:
    components = score(LEGAL, PERFECT.replace("KQkq -", "KQkq e3")).components
    assert components["correctness/next_state_exact"] == 0.0
    assert components["correctness/next_state_similarity"] == pytest.approx(0.85)


@pytest.mark.parametrize(
    ("completion", "fields", "nothing_else"),
    [
        (NEXT, 0.25, 0.25),
        (f"{NEXT}+0.001", 0.5, 0.5),
        (f"{NEXT}+0.001+0+", 0.75, 0.75),
        (f"{PERFECT}+0", 1.0, 0.8),
        (f"{PERFECT}+{PERFECT}+x", 1.0, 4 / 9),
        ("foo+0.001+0+0", 0.75, 0.75),
        # Excess inside fields: four words and a character; one word; two words; one character; six characters.
        (f"and so {NEXT} it is+0.001+0+10", 1.0, 4 / 9),
        (f"{NEXT}+0.001 pawns+0+0", 1.0, 0.8),
        (f"{NEXT} 7 8+0.001+0+0", 1.0, 4 / 6),
        (f"{NEXT}+0.001+01+0", 1.0, 0.8),
        (f"{PERFECT} and 1", 1.0, 4 / 10),
    ],
)
def test_structure_scores_the_four_fields_and_extra_text(completion: str, fields: float, nothing_else: float) -> None:
    components = score(LEGAL, completion).components
    assert components["structure/fields"] == pytest.approx(fields)
    assert components["structure/nothing_else"] == pytest.approx(nothing_else)


def test_incomplete_answer_is_scored_on_its_present_fields() -> None:
    judged = score(LEGAL, f"{NEXT}+0.001")
    assert judged.failure is not None
    assert judged.failure.reason is FailureReason.missing_field
    assert judged.components["parse/next_fen"] == judged.components["correctness/reward"] == 1.0
    # Without the flags nothing says whether the move was legal.
    assert judged.components["correctness/next_state_exact"] == 0.0
    assert judged.components["parse/terminated"] == judged.components["correctness/terminated"] == 0.0


def test_reward_and_flags_must_be_plain_numbers() -> None:
    components = score(LEGAL, f"{NEXT}+nan+2+False").components
    assert [components[f"parse/{name}"] for name in ("next_fen", "reward", "terminated", "truncated")] == [
        1.0,
        0.0,
        0.0,
        0.0,
    ]
    assert [components[f"correctness/{name}"] for name in ("reward", "terminated", "truncated")] == [0.0, 0.0, 0.0]
    assert total(f"{NEXT}+0.0010+0+0") == 1.0


@pytest.mark.parametrize(
    ("fen", "share"),
    [
        ("", 0.0),
        ("hello world", 0.0),
        # Seven of eight ranks are well-formed, and so are the other five fields.
        ("rnbqkbnr/pppppppp/8/8/8/1P6P/P1PPPP1P/RNBQKBNR b KQkq - 0 2", (7 / 8 + 5) / 6),
        ("8/8/8/8/8/8/8 w - -", (7 / 8 + 3) / 6),
        ("8/8/8/8/8/8/8/8/8 x KQkq e4 0 y", (8 / 9 + 2) / 6),
        ("8/8/8/8/8/8/8/8 w - - 0 1 and more", 6 / 8),
    ],
)
def test_malformed_fen_earns_credit_for_its_well_formed_fields(fen: str, share: float) -> None:
    assert well_formed_share(fen) == pytest.approx(share)
    assert score(LEGAL, f"{fen}+0.001+0+0").components["parse/next_fen"] == pytest.approx(share / 2)
    assert score(LEGAL, f"{fen}+0.001+0+0").components["correctness/next_state_similarity"] == 0.0


def test_python_chess_overrides_a_wrong_label() -> None:
    wrong = f"{FEN}+1.0+1+0"
    assert score(LEGAL, PERFECT, wrong).total == 1.0
    assert score(LEGAL, wrong, wrong).total < 0.5


@pytest.mark.parametrize("label", ["", "hello", f"{NEXT}+0.001+0", "8/8 w - - 0 1+0.001+0+0"])
def test_a_malformed_label_raises(label: str) -> None:
    with pytest.raises(LabelError, match="expected a label that parses"):
        score(LEGAL, PERFECT, label)


@pytest.mark.parametrize("prompt", [f"A: {FEN}+e2e4+", f"A: {FEN}+e2e4+d2d4+", "A: 8/8+e2e4++", f"{FEN}+e2e4++"])
def test_a_malformed_prompt_raises(prompt: str) -> None:
    with pytest.raises(PromptError):
        score(prompt, PERFECT)

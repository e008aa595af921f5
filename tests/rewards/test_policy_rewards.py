"""Components and totals of the policy task, against values computed by hand from the default weights."""

import pytest

from rookworld_rlvr.rewards import Rubric, RubricConfig
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.tasks.policy.reward import eval_agreement
from rookworld_rlvr.tasks.types import FailureReason, LabelError, PromptError

# Scores by labels and rules, without move evaluations.
score = Rubric(RubricConfig()).score

START = "P: rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
PERFECT = "  M: e2e4 d2d4 g1f3 c2c4 b1c3      E: 0.3 0.2 0.1 0.0 -0.1      B: e2e4"
# Fool's mate: White is mated and has no legal moves.
MATED = "P: rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3"
# White's king in the corner has a1b1, a1b2 and a1a2: three legal moves.
THREE_MOVES = "P: 8/8/8/8/8/8/7k/K7 w - - 0 1"


def total(completion: str, label: str | None = None, prompt: str = START) -> float:
    return score(prompt, completion, label).total


def test_perfect_answer_earns_one_and_unrecognisable_text_the_minimum() -> None:
    assert total(PERFECT) == 1.0
    assert total(PERFECT, PERFECT) == 1.0
    assert [total(text) for text in ("", "   ", "hello world", "e2e4", "M E B", "xM: e2e4")] == [-0.3] * 6


def test_label_adds_three_correctness_components() -> None:
    alone, labelled = score(START, PERFECT), score(START, PERFECT, PERFECT)
    assert set(labelled.components) - set(alone.components) == {
        "correctness/candidates_match",
        "correctness/best_match",
        "correctness/evals_match",
    }
    assert len(alone.components) == 10
    assert alone.failure is None


def test_illegal_best_move_loses_its_share_of_correctness() -> None:
    judged = score(START, PERFECT.replace("B: e2e4", "B: e2e5"))
    # quality = 0.10 + 0.15 + 0.75 * (0.22 + 0.04) / 0.46; total = 1.3 * quality - 0.3
    assert judged.total == pytest.approx(1.3 * (0.25 + 0.75 * 26 / 46) - 0.3, abs=1e-12)
    assert judged.failure is None
    assert judged.components["correctness/best_legal"] == 0.0


def test_repeated_move_counts_as_one_candidate() -> None:
    judged = score(START, "M: e2e4 e2e4 e2e4 e2e4 e2e4 E: 0.3 0.3 0.3 0.3 0.3 B: e2e4")
    assert judged.components["correctness/candidates"] == 0.2
    assert judged.components["correctness/candidates_clean"] == pytest.approx(0.04)
    # quality = 0.25 + 0.75 * (0.22 * 0.2 + 0.04 * 0.04 + 0.15 + 0.03 + 0.02) / 0.46
    assert judged.total == pytest.approx(1.3 * (0.25 + 0.75 * 0.2456 / 0.46) - 0.3, abs=1e-12)


def test_extra_text_removes_correctness_even_from_a_perfect_answer() -> None:
    judged = score(START, PERFECT + " and so on")
    # Three extra words: nothing_else = 1 / (1 + 3), and structure = (1 + 1/4) / 2.
    assert judged.components["structure/nothing_else"] == pytest.approx(1 / 4)
    assert judged.total == pytest.approx(1.3 * 0.625 * 0.25 - 0.3, abs=1e-12)
    assert judged.failure is not None
    assert judged.failure.reason is FailureReason.extra_text


@pytest.mark.parametrize(
    "evals",
    ["", "0.3 0.2 0.1 0.0", "0.3 0.2 0.1 0.0 -0.1 9.9", "0.3 0.2 well 0.0 -0.1", "0.3 0.2 0.1 0.0 -0.1" + " so" * 200],
)
def test_malformed_evals_earn_less_than_an_accepted_illegal_move(evals: str) -> None:
    refused = score(START, PERFECT.replace("0.3 0.2 0.1 0.0 -0.1", evals), PERFECT)
    assert refused.failure and refused.failure.reason in (FailureReason.bad_eval, FailureReason.unaligned_evals)
    assert refused.total < total("M: e2e5 E: 0.0 B: e2e5", PERFECT) == pytest.approx(1.3 * 0.25 - 0.3)


@pytest.mark.parametrize(
    ("completion", "markers", "nothing_else"),
    [
        ("M: e2e4", 1 / 3, 1 / 3),
        ("M: e2e4 E: 0.1", 2 / 3, 2 / 3),
        ("M: e2e4 B: e2e4", 2 / 3, 2 / 3),
        ("E: 0.1 M: e2e4 B: e2e4", 2 / 3, 2 / 3),
        ("B: e2e4 E: 0.1 M: e2e4", 1 / 3, 1 / 3),
        ("M: e2e4 E: 0.1 B: e2e4 M: e2e4", 1.0, 1 / 2),
        ("my answer M: e2e4 E: 0.1 B: e2e4", 1.0, 1 / 3),
        ("M: a b c d e f g E: 0.1 B: e2e4", 1.0, 1 / 3),
        ("M: E: B:", 1.0, 1.0),
    ],
)
def test_structure_scores_ordered_markers_and_extra_text(completion: str, markers: float, nothing_else: float) -> None:
    components = score(START, completion).components
    assert components["structure/markers"] == pytest.approx(markers)
    assert components["structure/nothing_else"] == pytest.approx(nothing_else)


def test_parse_scores_moves_numbers_and_alignment() -> None:
    components = score(START, "M: e2e4 0000 d2d9 E: 0.1 nan B: e9").components
    assert components["parse/moves"] == pytest.approx(1 / 3)
    assert components["parse/evals"] == pytest.approx(1 / 3)
    assert components["parse/best"] == 0.0
    assert score(START, "M: e2e4 E: 0.1 0.2 0.3 B: e2e4").components["parse/evals"] == pytest.approx(1 / 3)


def test_three_legal_moves_need_three_candidates_and_extra_ones_cost() -> None:
    answer = "M: a1b1 a1b2 a1a2 E: 0.0 0.0 0.0 B: a1b1"
    assert total(answer, prompt=THREE_MOVES) == 1.0
    padded = "M: a1b1 a1b2 a1a2 a1a2 a1h8 E: 0.0 0.0 0.0 0.0 0.0 B: a1b1"
    assert score(THREE_MOVES, padded).components["correctness/candidates"] == 1.0
    assert total(padded, prompt=THREE_MOVES) < 1.0


def test_checkmated_position_is_scored_on_format_alone() -> None:
    judged = score(MATED, "M: e2e4 E: 0.0 B: e2e4", "M: e2e4 E: 0.0 B: e2e4")
    assert {name.split("/")[0] for name in judged.components} == {"structure", "parse"}
    assert judged.total == 1.0
    assert total("M: e2e4 E: x B: e2e4", prompt=MATED) < 1.0


def test_best_move_must_be_argmax_of_its_own_evals_with_ties_allowed() -> None:
    def argmax(evals: str, best: str) -> float:
        return score(START, f"M: e2e4 d2d4 E: {evals} B: {best}").components["correctness/best_is_argmax"]

    assert (argmax("0.3 0.1", "e2e4"), argmax("0.3 0.1", "d2d4")) == (1.0, 0.0)
    assert (argmax("0.3 0.3", "e2e4"), argmax("0.3 0.3", "d2d4")) == (1.0, 1.0)
    assert argmax("inf 0.1", "e2e4") == argmax("nan 0.1", "d2d4") == argmax("0.1", "e2e4") == 0.0
    assert argmax("0.3 0.1", "g1f3") == 0.0


def test_evals_are_matched_by_move_not_by_index() -> None:
    label = "M: e2e4 d2d4 E: 0.3 -0.2 B: e2e4"
    swapped = score(START, "M: d2d4 e2e4 E: -0.2 0.3 B: e2e4", label).components
    by_index = score(START, "M: d2d4 e2e4 E: 0.3 -0.2 B: e2e4", label).components
    assert swapped["correctness/evals_match"] == 1.0
    # |0.3 / 3.3 - -0.2 / 3.2| = 0.15340909; 0.5 ** 1.5340909 = 0.34530
    assert by_index["correctness/evals_match"] == pytest.approx(0.34530, abs=1e-5)


def test_half_the_label_candidates_earn_half_and_nearest_eval_counts() -> None:
    label = "M: e2e4 d2d4 E: 0.3 -0.2 B: e2e4"
    for evals in ("5.0 0.3", "0.3 5.0"):
        components = score(START, f"M: e2e4 e2e4 E: {evals} B: e2e4", label).components
        assert components["correctness/evals_match"] == components["correctness/candidates_match"] == 0.5


# Black is in check and can only take the queen.
FORCED, FORCED_MOVE = "P: 7k/6Q1/8/8/8/8/8/K7 b - - 0 1", "h8g7"


def test_guesses_at_one_eval_earn_less_than_one_guess() -> None:
    values = Analysis(FORCED.removeprefix("P: "), ((FORCED_MOVE, -1.3),))
    label = f"M: {FORCED_MOVE} E: -1.3 B: {FORCED_MOVE}"

    def both(count: int, evals: str) -> tuple[float, float]:
        text = f"M: {' '.join([FORCED_MOVE] * count)} E: {evals} B: {FORCED_MOVE}"
        return score(FORCED, text, analysis=values).total, score(FORCED, text, label).total

    five, off_by_a_pawn, right = both(5, "0.0 1.0 -1.0 5.0 -5.0"), both(1, "-2.3"), both(1, "-1.3")
    for guesses, guess, truth in zip(five, off_by_a_pawn, right, strict=True):
        assert guesses < guess - 0.01 and guess < truth == 1.0
    # Neither a copy of the only move with the right eval nor an illegal candidate beside it raises the mean.
    for extra in (FORCED_MOVE, "a1a2"):
        text = f"M: {FORCED_MOVE} {extra} E: -1.3 -1.3 B: {FORCED_MOVE}"
        assert score(FORCED, text, analysis=values).components["correctness/evals_value"] == 0.5


def test_legal_candidate_beside_a_short_label_costs_no_agreement_of_evals() -> None:
    label = "M: e2e4 d2d4 E: 0.3 -0.2 B: e2e4"
    text = "M: e2e4 d2d4 {} E: 0.3 -0.2 0.1 B: e2e4"
    for third, match in (("g1f3", 1.0), ("e2e5", 2 / 3), ("e2e4", 2 / 3)):
        assert score(START, text.format(third), label).components["correctness/evals_match"] == pytest.approx(match)


def test_best_match_scales_with_distinct_legal_candidates() -> None:
    for moves, share in (("e2e4 d2d4 g1f3 c2c4 b1c3", 1.0), ("e2e4 e2e4 e2e5 d2d4 d2d4", 0.4)):
        components = score(START, f"M: {moves} E: 0.3 0.2 0.1 0.0 -0.1 B: e2e4", PERFECT).components
        assert components["correctness/best_match"] == pytest.approx(share)


def test_illegal_best_move_earns_no_candidate_or_argmax_credit() -> None:
    components = score(START, "M: e2e5 d2d4 E: 0.3 0.1 B: e2e5").components
    assert components["correctness/best_among_candidates"] == components["correctness/best_is_argmax"] == 0.0


def test_answer_without_label_moves_gets_no_match_credit() -> None:
    components = score(START, PERFECT, "M: a2a3 E: 0.3 B: a2a3").components
    assert components["correctness/evals_match"] == components["correctness/candidates_match"] == 0.0
    assert components["correctness/best_match"] == 0.0


def test_illegal_label_moves_are_ignored() -> None:
    components = score(START, PERFECT, "M: e2e4 e2e5 E: 0.3 9.0 B: e2e5").components
    assert components["correctness/candidates_match"] == components["correctness/evals_match"] == 1.0
    assert "correctness/best_match" not in components


def test_eval_agreement_distinguishes_mates_and_stays_positive() -> None:
    assert eval_agreement(999.99, 999.98) < eval_agreement(999.99, 999.99) == 1.0
    assert 0.0 < eval_agreement(-999999.999999, 999999.999999) < 1e-5


@pytest.mark.parametrize("prompt", ["", "P:", "P: hello", "e4", "P: 8/8/8/8/8/8/8/K1k5 w - -"])
def test_a_malformed_prompt_raises(prompt: str) -> None:
    with pytest.raises(PromptError):
        score(prompt, PERFECT)


@pytest.mark.parametrize("label", ["", "hello", "M: e2e4 E: nan B: e2e4", "M: e2e4 B: e2e4"])
def test_a_malformed_label_raises(label: str) -> None:
    with pytest.raises(LabelError, match="expected a label that parses"):
        score(START, PERFECT, label)

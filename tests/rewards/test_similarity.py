"""Similarity over the changed parts of a position, against values counted by hand."""

import pytest

from rookworld_rlvr.tasks.environment.reward import changed_similarity, expand_placement

BEFORE = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
# After 1. e4: two squares change (e2, e4) and one field (turn): clock, number, castling stay.
AFTER = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"


def similarity(predicted: str, before: str = BEFORE, after: str = AFTER) -> float:
    return changed_similarity(before, after, predicted)


def test_similarity_of_truth_is_one_and_of_copy_is_zero() -> None:
    assert similarity(AFTER) == 1.0
    assert similarity(BEFORE) == 0.0


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        # Only the turn is right.
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR b KQkq - 0 1", 0.3),
        # e2 is empty, the pawn stands on e3: one of two squares right, one altered.
        ("rnbqkbnr/pppppppp/8/8/8/4P3/PPPP1PPP/RNBQKBNR b KQkq - 0 1", 0.7 * (1 / 2) / 2 + 0.3),
        # The board is right, the clock and the number are altered.
        ("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 1 2", 0.7 + 0.3 / 3),
        # A wrong piece on a changed square is simply not right.
        ("rnbqkbnr/pppppppp/8/8/4N3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1", 0.7 / 2 + 0.3),
        # Some published data has the en-passant square after any double step. python-chess does not write it here.
        ("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1", 0.7 + 0.3 / 2),
    ],
)
def test_partly_right_prediction_has_partial_similarity(predicted: str, expected: float) -> None:
    assert similarity(predicted) == pytest.approx(expected, abs=1e-12)


def test_copy_of_unchanged_position_earns_one_and_edits_earn_less() -> None:
    assert similarity(BEFORE, after=BEFORE) == 1.0
    turned = BEFORE.replace(" w ", " b ")
    # First only the turn is altered, then two squares and the turn.
    assert similarity(turned, after=BEFORE) == pytest.approx(0.7 + 0.3 / 2)
    assert similarity(AFTER, after=BEFORE) == pytest.approx(0.7 / 3 + 0.3 / 2)


def test_placement_expands_to_64_squares_with_promotion_marks() -> None:
    assert "".join(expand_placement("8/8/8/8/8/8/8/K1k5")) == "." * 56 + "K.k....."
    marked = expand_placement("Q~7/8/8/8/8/8/8/K1k5")
    assert (len(marked), marked[0], marked[1]) == (64, "Q~", ".")

"""Similarity of what changed, by literals counted by hand."""

import pytest

from rookworld_rlvr.rewards.similarity import changed_similarity, expand_placement

BEFORE = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
# After 1. e4: two squares change (e2, e4) and one field (turn): clock, number, castling stay.
AFTER = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"


def similarity(predicted: str, before: str = BEFORE, after: str = AFTER) -> float:
    return changed_similarity(before, after, predicted)


def test_the_truth_earns_one_and_a_copy_nothing() -> None:
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
        # A published habit that python-chess does not share: the en-passant square of any double step.
        ("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1", 0.7 + 0.3 / 2),
    ],
)
def test_partly_right_predictions_earn_their_share(predicted: str, expected: float) -> None:
    assert similarity(predicted) == pytest.approx(expected, abs=1e-12)


def test_where_nothing_changes_the_copy_earns_one_and_each_alteration_lowers_it() -> None:
    assert similarity(BEFORE, after=BEFORE) == 1.0
    turned = BEFORE.replace(" w ", " b ")
    # Turn altered; then two squares and the turn.
    assert similarity(turned, after=BEFORE) == pytest.approx(0.7 + 0.3 / 2)
    assert similarity(AFTER, after=BEFORE) == pytest.approx(0.7 / 3 + 0.3 / 2)


def test_a_placement_expands_to_sixty_four_squares_promotion_marks_included() -> None:
    assert "".join(expand_placement("8/8/8/8/8/8/8/K1k5")) == "." * 56 + "K.k....."
    marked = expand_placement("Q~7/8/8/8/8/8/8/K1k5")
    assert (len(marked), marked[0], marked[1]) == (64, "Q~", ".")

import pytest
from chess.engine import Cp, Mate
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.board.evals import from_pawns, to_pawns, win_probability

CENTIPAWNS = st.integers(-89_999, 89_999)
MATES = st.integers(1, 500).flatmap(lambda n: st.sampled_from([n, -n]))


@pytest.mark.parametrize(
    ("score", "printed"),
    [
        (Cp(0), "0.0"),
        (Cp(-200), "-2.0"),
        (Cp(-267), "-2.67"),
        (Cp(7), "0.07"),
        (Mate(1), "999.99"),
        (Mate(-1), "-999.99"),
        (Mate(3), "999.97"),
        (Mate(-12), "-999.88"),
    ],
)
def test_scores_print_as_in_the_published_data(score: Cp | Mate, printed: str) -> None:
    assert str(to_pawns(score)) == printed
    assert from_pawns(float(printed)) == score


@settings(derandomize=True, max_examples=200)
@given(CENTIPAWNS)
def test_every_centipawn_score_survives_printing(centipawns: int) -> None:
    assert from_pawns(float(str(to_pawns(Cp(centipawns))))) == Cp(centipawns)


@settings(derandomize=True, max_examples=200)
@given(MATES)
def test_every_mate_survives_printing(moves: int) -> None:
    assert from_pawns(float(str(to_pawns(Mate(moves))))) == Mate(moves)


def test_a_mated_side_has_no_eval() -> None:
    with pytest.raises(ValueError, match="mate in 0"):
        to_pawns(Mate(0))


@pytest.mark.parametrize("pawns", [float("nan"), float("inf"), float("-inf"), 1000.0, -1000.0, 5e9])
def test_pawns_out_of_range_are_refused(pawns: float) -> None:
    with pytest.raises(ValueError, match="between -1000 and 1000"):
        from_pawns(pawns)


def test_win_probability_equals_lichess_logistic() -> None:
    # One pawn is 1 / (1 + exp(-0.00368208 * 100)).
    assert win_probability(1.0) == pytest.approx(0.591, abs=1e-3)
    # python-chess counts in thousandths and leaves at least one to the other side.
    assert win_probability(999.99) == 0.999


@settings(derandomize=True, max_examples=100)
@given(CENTIPAWNS, CENTIPAWNS)
def test_win_probability_rises_with_eval_and_both_sides_sum_to_one(first: int, second: int) -> None:
    low, high = sorted((first / 100, second / 100))
    assert 0 <= win_probability(low) <= win_probability(high) <= 1
    assert win_probability(low) + win_probability(-low) == pytest.approx(1)

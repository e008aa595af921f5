"""Errors in the fields of the next FEN, against hand computation."""

import chess
import pytest

from rookworld_rlvr.tasks.environment.evaluation import score_next_fen
from rookworld_rlvr.tasks.types import Example, PromptError

EXAMPLE = Example("environment", f"A: {chess.STARTING_FEN}+e2e4+e2e4+", None)
TRUE = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
FIELDS = ["placement", "turn", "castling", "en_passant", "halfmove_clock", "fullmove_number"]
# Completion, strict match, lenient match, wrong fields.
CASES = {
    "the truth": (f"{TRUE}+0.001+0+0", 1, 1, []),
    "the truth and then nonsense": (f"{TRUE}+what", 1, 1, []),
    "the truth alone": (TRUE, 1, 1, []),
    "blanks around": (f" {TRUE} +0.001+0+0", 1, 1, []),
    "counters": (TRUE.replace("0 1", "1 2") + "+0.001+0+0", 0, 1, ["halfmove_clock", "fullmove_number"]),
    "an en-passant square without a capture": (TRUE.replace(" - ", " e3 "), 0, 1, ["en_passant"]),
    "rights in an order that is none": (TRUE.replace("KQkq", "kqKQ"), 0, 0, ["castling"]),
    "a right lost": (TRUE.replace("KQkq", "KQk"), 0, 0, ["castling"]),
    "the state before": (chess.STARTING_FEN, 0, 0, ["placement", "turn"]),
    "cut short": ("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq", 0, 0, FIELDS[3:]),
    "a field too many": (f"{TRUE} 7+0.001+0+0", 0, 0, []),
    "nothing": ("", 0, 0, FIELDS),
}


@pytest.mark.parametrize("name", CASES)
def test_fen_matches_and_field_errors_equal_hand_computation(name: str) -> None:
    completion, strict, lenient, wrong = CASES[name]
    errors = {f"fen_error_{field}": float(field in wrong) for field in FIELDS}
    assert score_next_fen(EXAMPLE, completion) == {"fen_strict": strict, "fen_lenient": lenient, **errors}


def test_fen_scoring_of_malformed_prompt_raises_prompt_error() -> None:
    with pytest.raises(PromptError):
        score_next_fen(Example("environment", "A: nothing", None), "")

"""Comparison of the next state that an `A:` completion claims with the true one."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import chess

from ..numbers import parse_number
from ..types import EnvironmentPrompt
from .text import environment_fields, environment_truth

FEN_FIELDS = ("turn", "castling", "en passant", "halfmove clock", "move number")
FLAGS = ("reward", "terminated", "truncated")
NO_BOARD = "no board could be read"
MISSING = "nothing"
EXTRA = "extra text"


@dataclass(frozen=True, slots=True)
class StateComparison:
    """Comparison of a completion with the truth, square by square and field by field."""

    predicted: chess.BaseBoard | None
    """The pieces on the board that the completion describes; None if no board can be read."""
    expected: chess.BaseBoard
    squares: tuple[chess.Square, ...]
    """Squares that differ, in the order a1, b1, …, h8."""
    fields: tuple[str, ...]
    """Errors other than squares, as text: FEN fields and flags, or NO_BOARD and flags if no board can be read."""

    @property
    def wrong(self) -> list[str]:
        """All errors: the names of the wrong squares, then the wrong fields."""
        return [*map(chess.square_name, self.squares), *self.fields]


def compare_next_state(prompt: EnvironmentPrompt, completion: str) -> StateComparison:
    """Compare the completion's next state with that of python-chess. Any text is accepted as a completion.

    >>> prompt = EnvironmentPrompt(chess.STARTING_FEN, "e2e4", ())
    >>> completion = "rnbqkbnr/pppppppp/8/8/3P4/8/PPPP1PPP/RNBQKBNR w KQkq - 0 1+0.001+0+0"
    >>> compare_next_state(prompt, completion).wrong
    ['d4', 'e4', 'turn: wrote w, true b']
    """
    truth, written = environment_truth(prompt), environment_fields(completion)
    true_fen, fen = truth.next_fen.split(" "), written[0].split(" ")
    flags = (str(truth.reward), str(int(truth.terminated)), str(int(truth.truncated)))
    values = written[1:]
    if values and parse_number(values[0]) == truth.reward:
        # Other digits of the same number are right.
        values = (flags[0], *values[1:])
    flag_errors = _differences(FLAGS, values, flags)
    predicted, expected = _pieces(fen[0]), chess.BaseBoard(true_fen[0])
    if predicted is None:
        return StateComparison(None, expected, (), (NO_BOARD, *flag_errors))
    squares = tuple(square for square in chess.SQUARES if predicted.piece_at(square) != expected.piece_at(square))
    return StateComparison(
        predicted, expected, squares, (*_differences(FEN_FIELDS, fen[1:], true_fen[1:]), *flag_errors)
    )


def _pieces(placement: str) -> chess.BaseBoard | None:
    try:
        return chess.BaseBoard(placement)
    except ValueError:
        return None


def _differences(names: Sequence[str], written: Sequence[str], true: Sequence[str]) -> list[str]:
    """Describe each wrong field. A missing one is written as MISSING; all behind the last are one error, EXTRA."""
    pairs = zip_longest(names, written[: len(names)], true, fillvalue=MISSING)
    errors = [f"{name}: wrote {mine}, true {theirs}" for name, mine, theirs in pairs if mine != theirs]
    extra = " ".join(written[len(names) :])
    return [*errors, f"{EXTRA}: {extra[:40]}"] if written[len(names) :] else errors

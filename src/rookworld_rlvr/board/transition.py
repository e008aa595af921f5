"""One step of the chess environment: state, action → next state, reward, flags."""

from collections.abc import Sequence
from dataclasses import dataclass

import chess

from .fen import parse_fen
from .moves import is_legal_uci
from .repetition import occurrences

REWARD_LEGAL = 0.001
REWARD_WIN = 1.0
REWARD_DRAW = 0.5
REWARD_ILLEGAL = -1.0
FIVEFOLD = 5
# Minimum number of plies, all reversible, between the first and the fifth occurrence of a position.
FIVEFOLD_PLIES = 16


@dataclass(frozen=True, slots=True)
class Transition:
    """Outcome of one action."""

    next_fen: str
    """The position after the move as python-chess prints it; after an illegal move, the one before it."""
    reward: float
    """0.001 for a legal move, 1.0 if the side that moved has won, 0.5 for a draw, -1.0 for an illegal move."""
    terminated: bool
    """True if the game ended by rule: mate, stalemate, insufficient material, 75 moves or fivefold repetition."""
    truncated: bool
    """True if an illegal move ended the episode (the term is Gymnasium's)."""


def step(fen: str, uci: str, history: Sequence[str] = ()) -> Transition:
    """Return the transition of the move `uci` from `fen`.

    `uci` is used without stripping or case folding. Anything but the exact spelling of a legal move is illegal.
    `history` holds the game's last moves and ends with `uci`, as in a prompt; empty means unknown. It is used only to
    prove a fivefold repetition, and moves that do not fit the position prove nothing.
    Raises ValueError if `fen` does not parse or `history` ends with another move.

    >>> step("7k/5Q2/6K1/8/8/8/8/8 w - - 0 1", "f7g7")
    Transition(next_fen='7k/6Q1/6K1/8/8/8/8/8 b - - 1 1', reward=1.0, terminated=True, truncated=False)
    """
    if history and history[-1] != uci:
        raise ValueError(f"expected a history that ends with {uci!r}, got {history[-1]!r}")
    board = parse_fen(fen)
    if not is_legal_uci(board, uci):
        return Transition(board.fen(), REWARD_ILLEGAL, terminated=False, truncated=True)
    board.push_uci(uci)
    provable = min(len(history), board.halfmove_clock) >= FIVEFOLD_PLIES
    return _transition(board, fivefold=provable and occurrences(board, history) >= FIVEFOLD)


def _transition(board: chess.Board, *, fivefold: bool) -> Transition:
    outcome = board.outcome(claim_draw=False)
    if outcome is None and not fivefold:
        return Transition(board.fen(), REWARD_LEGAL, terminated=False, truncated=False)
    won = outcome is not None and outcome.winner is not None
    return Transition(board.fen(), REWARD_WIN if won else REWARD_DRAW, terminated=True, truncated=False)

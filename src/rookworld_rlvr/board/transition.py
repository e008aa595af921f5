"""One step of the chess environment: state, action → next state, reward, flags."""

from dataclasses import dataclass

from .fen import parse_fen
from .moves import is_legal_uci

REWARD_LEGAL = 0.001
REWARD_WIN = 1.0
REWARD_DRAW = 0.5
REWARD_ILLEGAL = -1.0


@dataclass(frozen=True, slots=True)
class Transition:
    """Outcome of one action."""

    next_fen: str
    """The position after the move as python-chess prints it; after an illegal move, the one before it."""
    reward: float
    """0.001 for a legal move, 1.0 if the side that moved has won, 0.5 for a draw, -1.0 for an illegal move."""
    terminated: bool
    """True if the game ended by rule: mate, stalemate, insufficient material or 75 moves. A prompt's ten moves cannot
    prove a fivefold repetition, which takes sixteen."""
    truncated: bool
    """True if an illegal move ended the episode (the term is Gymnasium's)."""


def step(fen: str, uci: str) -> Transition:
    """Return the transition of the move `uci` from `fen`.

    `uci` is used without stripping or case folding. Anything but the exact spelling of a legal move is illegal.
    Raises ValueError if `fen` does not parse.

    >>> step("7k/5Q2/6K1/8/8/8/8/8 w - - 0 1", "f7g7")
    Transition(next_fen='7k/6Q1/6K1/8/8/8/8/8 b - - 1 1', reward=1.0, terminated=True, truncated=False)
    """
    board = parse_fen(fen)
    if not is_legal_uci(board, uci):
        return Transition(board.fen(), REWARD_ILLEGAL, terminated=False, truncated=True)
    board.push_uci(uci)
    outcome = board.outcome(claim_draw=False)
    if outcome is None:
        return Transition(board.fen(), REWARD_LEGAL, terminated=False, truncated=False)
    reward = REWARD_DRAW if outcome.winner is None else REWARD_WIN
    return Transition(board.fen(), reward, terminated=True, truncated=False)

"""What each move of a position is worth, by an engine's evals: the win probability that it keeps.

    value(move) = 1 − (win probability of the best move − that of the move), an illegal move 0

The loss is absolute: it is not divided by what could be lost in the position. Of three scales it is the one in
which a short search's verdict is least noise (docs/judging.md), and where all moves are equally hopeless it asks
for nothing. The win model and its source: `board.evals.win_probability`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ..board.evals import win_probability
from ..tasks.policy import MAX_CANDIDATES
from .engine import Analysis

# The positions of a step and more; an entry takes about 10 kB.
CACHED_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class MoveWorth:
    """The legal moves of a position, of which there is at least one."""

    evals_pawns: Mapping[str, float]
    """Side to move's view."""
    wins: Mapping[str, float]
    """Expected result in [0, 1] for the side to move."""
    best_win: float
    best_set: float
    """The sum of the values of the best five moves, or all if fewer; at least 1."""

    def loss(self, move: str) -> float:
        """Win probability given away, in [0, 1]; by what is no legal move all that the best one has."""
        return self.best_win - self.wins.get(move, 0.0)

    def value(self, move: str) -> float:
        """In [0, 1]; 1 for the best moves, 0 for what is no legal move."""
        return 1 - self.loss(move) if move in self.wins else 0.0

    def share(self, moves: Iterable[str]) -> float:
        """Value of the distinct legal moves among at most five, over that of the best five: in [0, 1]."""
        return min(1.0, sum(map(self.value, sorted(set(moves)))) / self.best_set)


@lru_cache(maxsize=CACHED_POSITIONS)
def move_worth(analysis: Analysis) -> MoveWorth:
    """Of an analysis of all moves. Raises ValueError in mate and stalemate.

    >>> kept = move_worth(Analysis("", (("e2e4", 0.0), ("a2a3", -999.99))))
    >>> kept.value("e2e4"), kept.value("a2a3"), kept.loss("a2a3"), kept.value("e2e5")
    (1.0, 0.501, 0.499, 0.0)
    """
    evals = dict(analysis.lines)
    if not evals:
        raise ValueError(f"expected the analysis of a position with a legal move, got {analysis}")
    wins = {move: win_probability(pawns) for move, pawns in evals.items()}
    best = max(wins.values())
    top = sorted(wins.values(), reverse=True)[:MAX_CANDIDATES]
    return MoveWorth(evals, wins, best, sum(1 - (best - win) for win in top))

"""Value of each move of a position by an engine's evals: how much of the win probability it keeps.

    loss(move)  = win probability of the best move − that of the move
    value(move) = 2 ^ (−loss(move) / halving_loss), an illegal move 0

The loss is absolute: it is not divided by what could be lost in the position. Of three scales that were compared, this
one is the least affected by the noise of a short search (docs/rewards.md), and equally hopeless moves all have the full
value. A random legal move has a loss of about 0.15. So the halving makes the difference between a good and a fair move
matter as well as the difference between legal and illegal.
`board.evals.win_probability` documents the win model and its source.

A mate in one has the same win probability as other near mates, 0.999, and many won positions have hardly less.
`misses_mate` distinguishes the moves that end the game at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from chess.engine import Mate

from ..board.evals import to_pawns, win_probability
from .analysis import Analysis

# More than the positions of a step; an entry takes about 10 kB.
CACHED_POSITIONS = 1024
MATE_IN_ONE = to_pawns(Mate(1))
# Number of moves that `MoveValues.share` compares with: as many as a `P:` completion has candidates.
TOP_MOVES = 5


@dataclass(frozen=True, slots=True)
class MoveValues:
    """Values of the legal moves of a position that has at least one."""

    evals_pawns: Mapping[str, float]
    """Evals by move, from the side to move's view."""
    wins: Mapping[str, float]
    """Expected result by move, in [0, 1], for the side to move."""
    best_win: float
    top_wins: tuple[float, ...]
    """Expected results of the best five moves, or of all if there are fewer."""

    def misses_mate(self, move: str) -> bool:
        """Return True if some move mates at once and this one does not."""
        return self.evals_pawns.get(move) != MATE_IN_ONE and MATE_IN_ONE in self.evals_pawns.values()

    def loss(self, move: str) -> float:
        """Return a move's win-probability loss, in [0, 1]. Anything but a legal move loses all that the best has."""
        return self.best_win - self.wins.get(move, 0.0)

    def value(self, move: str, halving_loss: float) -> float:
        """Return the value of a move in [0, 1]: 1 for the best moves, 0 for anything but a legal move."""
        return _value(self.loss(move), halving_loss) if move in self.wins else 0.0

    def share(self, moves: Iterable[str], halving_loss: float) -> float:
        """Return the summed value of the distinct legal moves among `moves`, divided by that of the best five moves, in
        [0, 1]. At most five moves may be given."""
        named = sum(self.value(move, halving_loss) for move in sorted(set(moves)))
        return min(1.0, named / sum(_value(self.best_win - win, halving_loss) for win in self.top_wins))


@lru_cache(maxsize=CACHED_POSITIONS)
def move_values(analysis: Analysis) -> MoveValues:
    """Return the values of the moves of an analysis. Raises ValueError in mate and stalemate.

    >>> kept = move_values(Analysis("", (("e2e4", 0.0), ("a2a3", -999.99))))
    >>> [kept.value(move, halving_loss=0.499) for move in ("e2e4", "a2a3", "e2e5")], kept.loss("a2a3")
    ([1.0, 0.5, 0.0], 0.499)
    """
    evals = dict(analysis.lines)
    if not evals:
        raise ValueError(f"expected the analysis of a position with a legal move, got {analysis}")
    wins = {move: win_probability(pawns) for move, pawns in evals.items()}
    best = max(wins.values())
    return MoveValues(evals, wins, best, tuple(sorted(wins.values(), reverse=True)[:TOP_MOVES]))


def _value(loss: float, halving_loss: float) -> float:
    return float(0.5 ** (loss / halving_loss))

"""Results of an engine: the evaluations of a position, and counts of the work behind them."""

from dataclasses import astuple, dataclass
from operator import add, sub

Lines = tuple[tuple[str, float], ...]
"""Moves as UCI with their evals, in the engine's order. Evals are in pawns from the view of the side to move, mates
included (see `board.evals`). If a search ended between two depths, some moves were searched deeper than others."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """An engine's evaluations of the moves of a position."""

    position: str
    """The position as it was searched; see `engine.engine_position`."""
    lines: Lines
    """Moves with their evals, in the engine's order; empty in checkmate and stalemate."""
    origin: str = "engine"
    """Source of the evaluations: `engine`, or the name of the evaluation cache."""


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """The work of a pool since it was opened."""

    positions: int = 0
    """Analyses that were returned; in one call each position counts once."""
    searched: int = 0
    """Analyses among `positions` that an engine had to search; the others were in memory or in the cache."""
    restarts: int = 0
    """Engine processes that were replaced."""
    wait_s: float = 0.0
    """Seconds that callers waited."""

    def __sub__(self, other: "EngineCounts") -> "EngineCounts":
        return EngineCounts(*map(sub, astuple(self), astuple(other)))

    def __add__(self, other: "EngineCounts") -> "EngineCounts":
        return EngineCounts(*map(add, astuple(self), astuple(other)))

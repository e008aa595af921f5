"""Whether an answer is right in the one thing that matters, apart from how well it is written.

A graduated reward also moves with shaping: format, similarity, evals. The outcome does not: it is the
verifiable core of the task, and the outcome gate trains a group only where it differs.
"""

from .rubric import Score

# The part of each task that is right or wrong by the rules alone; an answer has one of them, or neither.
OUTCOME_PARTS = ("correctness/best_legal", "correctness/next_state_exact")
# Where a verdict judges, a legal best move is right if it is worth this much: by the default scale it gives away at
# most 0.05 of the win probability. A move that misses a mate in one is worth `missed_mate` at most, by default too
# little.
GOOD = 0.5**0.5


def outcome(score: Score) -> bool:
    """True where the best move is legal and, if a verdict judges it, good (`P:`), or the next state exact (`A:`).

    Where neither part applies (a `P:` prompt in mate or stalemate) a well-formed answer is right. An answer
    that broke before that part is wrong.
    """
    if score.failure is not None:
        return False
    parts = score.parts
    # The part is what the move is worth, times the share of distinct legal candidates.
    good = GOOD * parts.get("correctness/candidates", 0.0)
    if parts.get("correctness/best_value", good) < good:
        return False
    return all(parts.get(part, 1.0) == 1.0 for part in OUTCOME_PARTS)

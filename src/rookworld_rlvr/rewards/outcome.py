"""Whether an answer is right in the one thing that matters, apart from how well it is written.

A graduated reward also moves with shaping: format, similarity, evals. The outcome does not: it is the
verifiable core of the task, and the outcome gate trains a group only where it differs.
"""

from .rubric import Score

# The part of each task that is right or wrong by the rules alone; an answer has one of them, or neither.
OUTCOME_PARTS = ("correctness/best_legal", "correctness/next_state_exact")


def outcome(score: Score) -> bool:
    """True where the best move is legal (`P:`) or the next state exact (`A:`).

    Where neither part applies (a `P:` prompt in mate or stalemate) a well-formed answer is right. An answer
    that broke before that part is wrong.
    """
    if score.failure is not None:
        return False
    return all(score.parts.get(part, 1.0) == 1.0 for part in OUTCOME_PARTS)

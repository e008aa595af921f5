"""How much win probability a model's best move gives away, by an engine's verdict: a measure beside the labels.

A verdict is of all legal moves and comes from a book, or from engines that run beside the model; both tables of a run
are judged by the same ones. Where it should see deeper than the judge that was trained on, ask engines for more nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chess.engine import Mate

from ..board.evals import to_pawns, win_probability
from ..rewards.evaluation_cache import EvaluationCache
from ..rewards.move_values import move_values
from ..stockfish.engine import Analysis
from ..stockfish.pool import EnginePool
from ..tasks import policy_fens
from ..tasks.policy import MAX_CANDIDATES, parse_policy, parse_policy_prompt
from ..tasks.types import Example, ParseFailure, PolicyCompletion, Task

MATE_IN_ONE = to_pawns(Mate(1))


@dataclass(frozen=True, slots=True)
class MoveEvaluator:
    """Whose verdicts measure: with engines theirs alone, else a book's, of the positions that it has."""

    book: EvaluationCache
    pool: EnginePool | None = None
    nodes: int = 0
    """Nodes that the engines search a position with; 0: as the pool's configuration has it."""

    def prepare(self, examples: Sequence[Example]) -> None:
        """Have the engines begin with the positions of the policy task; returns at once."""
        if self.pool is not None:
            self.pool.prepare(policy_fens(example.prompt for example in examples).values(), nodes=self.nodes)

    def analyses(self, examples: Sequence[Example]) -> dict[str, Analysis]:
        """By FEN, of the policy task; positions without evaluations are missing. Raises ScorerError."""
        fens = list(policy_fens(example.prompt for example in examples).values())
        if self.pool is None:
            return {fen: analysis for fen in fens if (analysis := self.book.get(fen))}
        return dict(zip(fens, self.pool.analyse(fens, nodes=self.nodes), strict=True))

    def facts(self, examples: Sequence[Example]) -> dict[str, str | int]:
        """What a result should say of it."""
        if self.pool is not None:
            return {"engine": self.pool.name, "engine_nodes": self.nodes}
        return {"verdicts": self.book.name, "rows_with_verdict": len(self.analyses(examples))}

    def close(self) -> None:
        """End the engines."""
        if self.pool is not None:
            self.pool.close()


def score_engine_loss(completion: str, analysis: Analysis) -> dict[str, float]:
    """`win_probability_loss` and `eval_error` in [0, 1], nothing in mate and stalemate.

    The loss is the expected result of the best move less that of the answer's `B:`. An answer that the strict parser
    refuses, or whose `B:` is illegal, loses all that the best move has; in a lost position that is nothing.

    The error is the mean over five candidates (or as many as there are legal moves) of the distance between the win
    probability of a candidate's `E:` and that of the verdict; a candidate that is illegal, repeated or missing
    counts 1.
    """
    if not analysis.lines:
        return {}
    parsed = parse_policy(completion)
    answer = None if isinstance(parsed, ParseFailure) else parsed
    loss = move_values(analysis).loss(answer.best if answer else "")
    return {"win_probability_loss": loss, "eval_error": _eval_error(answer, dict(analysis.lines))}


def _eval_error(answer: PolicyCompletion | None, verdict_pawns: Mapping[str, float]) -> float:
    told = dict(reversed(list(zip(answer.moves, answer.evals_pawns, strict=True)))) if answer else {}
    asked = min(MAX_CANDIDATES, len(verdict_pawns))
    legal = [move for move in told if move in verdict_pawns]
    # What is beyond a mate in one counts as one.
    wins = {move: win_probability(min(max(told[move], -MATE_IN_ONE), MATE_IN_ONE)) for move in legal}
    off = sum(abs(wins[move] - win_probability(verdict_pawns[move])) for move in legal)
    return (off + asked - len(legal)) / asked


def analysis_of(example: Example, analyses: Mapping[str, Analysis]) -> Analysis | None:
    """The analysis of a policy example's position; None for the other task, or if there is none."""
    return analyses.get(parse_policy_prompt(example.prompt).fen) if example.task is Task.policy else None

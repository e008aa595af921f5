"""How much win probability a model's best move gives away, by an engine's verdict: a measure beside the labels.

A verdict is of all legal moves and comes from a book, or from engines that run beside the model; both tables of a run
are judged by the same ones. Where it should see deeper than the judge that was trained on, ask engines for more nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..rewards.engine import Analysis
from ..rewards.engine_pool import EnginePool
from ..rewards.move_worth import move_worth
from ..rewards.verdict_book import VerdictBook
from ..tasks import policy_fens
from ..tasks.policy import parse_policy, parse_policy_prompt
from ..tasks.types import Example, ParseFailure, Task


@dataclass(frozen=True, slots=True)
class VerdictMeasure:
    """Whose verdicts measure: with engines theirs alone, else a book's, of the positions that it has."""

    book: VerdictBook
    pool: EnginePool | None = None
    nodes: int = 0
    """Of the engines, a position; 0: as the pool's configuration has it."""

    def prepare(self, examples: Sequence[Example]) -> None:
        """Have the engines begin with the positions of the policy task; returns at once."""
        if self.pool is not None:
            self.pool.prepare(policy_fens(example.prompt for example in examples).values(), nodes=self.nodes)

    def analyses(self, examples: Sequence[Example]) -> dict[str, Analysis]:
        """By FEN, of the policy task; a position without a verdict is missing. Raises JudgeError if an engine fails."""
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


def judge_engine_loss(completion: str, analysis: Analysis) -> dict[str, float]:
    """`win_probability_loss` in [0, 1], nothing in mate and stalemate.

    The expected result of the best move there is, less that of the answer's `B:`. What the strict parser refuses,
    and an illegal `B:`, lose all that the best move has: nothing in a position that is lost anyway.
    """
    if not analysis.lines:
        return {}
    answer = parse_policy(completion)
    best = "" if isinstance(answer, ParseFailure) else answer.best
    return {"win_probability_loss": move_worth(analysis).loss(best)}


def analysis_of(example: Example, analyses: Mapping[str, Analysis]) -> Analysis | None:
    """That of a policy example's position, None where there is none."""
    return analyses.get(parse_policy_prompt(example.prompt).fen) if example.task is Task.policy else None

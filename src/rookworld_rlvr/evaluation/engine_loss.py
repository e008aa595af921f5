"""How much win probability a model's best move gives away, by an engine: a measure beside the labels.

The engine is that of `rewards.engine_pool`, whose verdict is of all legal moves, so both tables of a run are judged by
one and the same. Where it should see deeper than the judge that was trained on, give it more nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..rewards.engine import Analysis
from ..rewards.engine_pool import EnginePool
from ..rewards.move_worth import move_worth
from ..tasks.policy import parse_policy, parse_policy_prompt
from ..tasks.types import Example, ParseFailure, Task


@dataclass(frozen=True, slots=True)
class EngineMeasure:
    """An engine, and how hard it looks."""

    pool: EnginePool
    nodes: int
    """A position; 0: as the pool's configuration has it."""

    def prepare(self, examples: Sequence[Example]) -> None:
        """Begin with the positions of the policy task; returns at once."""
        self.pool.prepare(_fens(examples), nodes=self.nodes)

    def analyses(self, examples: Sequence[Example]) -> dict[str, Analysis]:
        """By FEN, of the policy task. Raises JudgeError where the engine fails."""
        fens = _fens(examples)
        return dict(zip(fens, self.pool.analyse(fens, nodes=self.nodes), strict=True))


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


def _fens(examples: Sequence[Example]) -> list[str]:
    prompts = (example.prompt for example in examples if example.task is Task.policy)
    return list(dict.fromkeys(parse_policy_prompt(prompt).fen for prompt in prompts))

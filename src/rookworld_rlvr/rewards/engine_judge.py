"""A judge that asks an engine about each position once, and another judge about every completion."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..stockfish.pool import EngineCounts, EnginePool
from ..tasks import policy_fens
from .judge_pool import Judge, Question
from .rubric import Score


class EngineJudge:
    """Adds the engine's verdicts to the questions of `judge`, a rubric here or in processes of its own. See `Judge`.

    The engines belong to this process, so a position is analysed once, wherever its completions are judged. Closing
    this judge also closes `judge` and the engines.
    """

    def __init__(self, judge: Judge, pool: EnginePool) -> None:
        self._judge, self._pool = judge, pool

    @property
    def restarts(self) -> int:
        return self._judge.restarts

    def prepare(self, prompts: Iterable[str]) -> None:
        self._pool.prepare(policy_fens(prompts).values())

    def score_all(self, questions: Sequence[Question]) -> list[Score]:
        fens = policy_fens(question.prompt for question in questions)
        analyses = dict(zip(fens, self._pool.analyse(list(fens.values())), strict=True))
        asked = [replace(question, analysis=analyses.get(question.prompt)) for question in questions]
        return self._judge.score_all(asked)

    def engine_counts(self) -> EngineCounts | None:
        return self._pool.counts()

    def close(self) -> None:
        try:
            self._judge.close()
        finally:
            self._pool.close()

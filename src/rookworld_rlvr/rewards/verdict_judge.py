"""A judge that looks verdicts up, and asks an engine only about positions that it finds none for."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..stockfish.engine import Analysis, EngineUnusableError
from ..stockfish.pool import EngineCounts, EnginePool
from ..tasks import policy_fens
from .judge_pool import Judge, Question
from .rubric import Score
from .verdict_book import VerdictBook


class VerdictJudge:
    """Adds the book's verdicts, or else an engine's, to the questions of `judge`, a rubric. See `Judge`.

    The engine is opened at the first position that the book lacks. Without an engine, such a position is judged by
    its label, or by the rules if it has no label; `Score.verdict` names who judged.
    """

    def __init__(self, judge: Judge, book: VerdictBook, open_pool: Callable[[], EnginePool]) -> None:
        self._judge, self._book, self._open_pool = judge, book, open_pool
        self._pool: EnginePool | None = None
        self._no_engine = False

    @property
    def restarts(self) -> int:
        return self._judge.restarts

    def prepare(self, prompts: Iterable[str]) -> None:
        missing = self._missing(policy_fens(prompts).values())
        if missing and (pool := self._engine()):
            pool.prepare(missing)

    def score_all(self, questions: Sequence[Question]) -> list[Score]:
        fens = policy_fens(question.prompt for question in questions)
        analyses = self._analyses(fens.values())
        found = {prompt: analyses.get(fen) for prompt, fen in fens.items()}
        return self._judge.score_all([replace(asked, analysis=found.get(asked.prompt)) for asked in questions])

    def engine_counts(self) -> EngineCounts | None:
        return self._pool.counts() if self._pool else None

    def close(self) -> None:
        try:
            self._judge.close()
        finally:
            if self._pool is not None:
                self._pool.close()

    def _analyses(self, fens: Iterable[str]) -> dict[str, Analysis]:
        asked = list(fens)
        known = {fen: analysis for fen in asked if (analysis := self._book.get(fen))}
        missing = self._missing(asked)
        if missing and (pool := self._engine()):
            known |= zip(missing, pool.analyse(missing), strict=True)
        return known

    def _missing(self, fens: Iterable[str]) -> list[str]:
        return [fen for fen in dict.fromkeys(fens) if self._book.get(fen) is None]

    def _engine(self) -> EnginePool | None:
        """None where there is no engine, which is asked for once."""
        if self._pool is None and not self._no_engine:
            try:
                self._pool = self._open_pool()
            except EngineUnusableError:
                self._no_engine = True
        return self._pool

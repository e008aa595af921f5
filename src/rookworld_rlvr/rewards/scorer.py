"""Scorer of many completions at once: a rubric with move evaluations from a file, from Stockfish or from neither."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ..errors import UserError
from ..stockfish.engine import Analysis, EngineUnusableError
from ..stockfish.pool import EngineCounts, EnginePool
from ..tasks import policy_fens
from .evaluation_cache import EvaluationCache, load_cache
from .rubric import MoveSource, Rubric, RubricConfig, Score


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Completion to score, with the arguments of `Rubric.score`."""

    prompt: str
    completion: str
    label: str | None


class Scorer:
    """Rubric with move evaluations, from the cache or, for positions that it lacks, from an engine.

    Each position is searched once, however many completions it has. Closing the scorer closes the engines.
    """

    def __init__(
        self,
        rubric: Rubric,
        cache: EvaluationCache,
        *,
        pool: EnginePool | None = None,
        open_pool: Callable[[], EnginePool] | None = None,
    ) -> None:
        """Create a scorer. `pool` holds running engines. `open_pool` starts engines at the first position that the
        cache lacks, or raises EngineUnusableError if there are none."""
        self._rubric, self._cache, self._pool, self._open_pool = rubric, cache, pool, open_pool
        self._scored_last: Mapping[str, Analysis] = {}

    def prepare(self, prompts: Iterable[str]) -> None:
        """Announce prompts whose completions will be scored soon, so that the engines search their positions meanwhile.

        The first call may start the engines. A search that fails is repeated by `score_all`. Raises PromptError for a
        malformed prompt, UserError if the cache of analyses cannot be opened, and ScorerError if it cannot be read.
        """
        if self._pool is None and self._open_pool is None:
            return
        missing = self._missing(policy_fens(prompts).values())
        if missing and (pool := self._engine()):
            pool.prepare(missing)

    def score_all(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        """Return a score for each request, in order. Raises ScorerError if the scorer itself fails.

        The first call may start the engines, and raises UserError if their cache of analyses cannot be opened.
        """
        fens = policy_fens(request.prompt for request in requests)
        by_fen = self._analyses(list(fens.values()))
        self._scored_last = {prompt: by_fen[fen] for prompt, fen in fens.items() if fen in by_fen}
        return [
            self._rubric.score(
                request.prompt, request.completion, request.label, analysis=self._scored_last.get(request.prompt)
            )
            for request in requests
        ]

    def move_values(self, prompts: Iterable[str]) -> Mapping[str, Mapping[str, float]]:
        """Return `Rubric.best_move_values` of those prompts that are in the last scored batch and have evaluations."""
        analyses = {prompt: self._scored_last[prompt] for prompt in prompts if prompt in self._scored_last}
        return {prompt: self._rubric.best_move_values(each) for prompt, each in analyses.items() if each.lines}

    def engine_counts(self) -> EngineCounts | None:
        """Return counts of the engines' work so far; None without engines."""
        return self._pool.counts() if self._pool else None

    def close(self) -> None:
        """Close the engines."""
        if self._pool is not None:
            self._pool.close()

    def _analyses(self, fens: Sequence[str]) -> dict[str, Analysis]:
        known = {fen: analysis for fen in fens if (analysis := self._cache.get(fen))}
        missing = self._missing(fens)
        if missing and (pool := self._engine()):
            known |= zip(missing, pool.analyse(missing), strict=True)
        return known

    def _missing(self, fens: Iterable[str]) -> list[str]:
        return [fen for fen in dict.fromkeys(fens) if self._cache.get(fen) is None]

    def _engine(self) -> EnginePool | None:
        """Return the engines, or None if there are none. They are looked for only once. Raises UserError."""
        if self._pool is None and self._open_pool is not None:
            try:
                self._pool = self._open_pool()
            except EngineUnusableError:
                self._open_pool = None
            except UserError as error:
                raise UserError(f"rubric.stockfish: {error}; rubric.stockfish.cache=false does without it") from error
        return self._pool


def make_scorer(config: RubricConfig | None = None, pool: EnginePool | None = None) -> Scorer:
    """Return the scorer of a rubric, by default that of `rookworld train`.

    Training runs, `rewards.score` and the interfaces of other libraries all use this function.

    `pool` holds running engines for source=engine, which the scorer then owns; without it the scorer starts its own.
    Raises UserError for a file of move evaluations that cannot be read and for source=engine without a working engine,
    and another ValueError for an option out of its range.
    """
    config = config or RubricConfig()
    rubric = Rubric(config)
    if config.source is MoveSource.engine:
        return Scorer(rubric, load_cache(""), pool=pool or EnginePool(config.stockfish))
    if config.source is MoveSource.cached:
        return Scorer(rubric, load_cache(config.move_evals), open_pool=partial(EnginePool, config.stockfish))
    return Scorer(rubric, load_cache(""))

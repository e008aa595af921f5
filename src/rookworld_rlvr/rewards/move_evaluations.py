"""Move evaluations of positions, from a cache or from engines, as rewards and evaluations look them up."""

from collections.abc import Callable, Iterable
from hashlib import sha256

from ..stockfish.analysis import Analysis, EngineCounts
from ..stockfish.engine import EngineUnusableError
from ..stockfish.pool import EnginePool
from .evaluation_cache import EvaluationCache


class MoveEvaluations:
    """Move evaluations from a cache or, for positions that it lacks, from engines.

    Each position is searched once. Closing the evaluations closes the engines.
    """

    def __init__(
        self,
        cache: EvaluationCache,
        pool: EnginePool | None = None,
        *,
        open_pool: Callable[[], EnginePool] | None = None,
        nodes: int = 0,
    ) -> None:
        """Create evaluations. `pool` holds running engines. `open_pool` starts engines at the first position that the
        cache lacks, or raises EngineUnusableError if there are none. `nodes` above 0 replaces the engines' number of
        nodes per position."""
        self._cache, self._pool, self._open_pool, self._nodes = cache, pool, open_pool, nodes

    def prepare(self, fens: Iterable[str]) -> None:
        """Let the engines start to search positions, and return at once. The first call may start the engines."""
        missing = self._missing(fens)
        if missing and (pool := self._engines()):
            pool.prepare(missing, nodes=self._nodes)

    def analyses(self, fens: Iterable[str]) -> dict[str, Analysis]:
        """Return the evaluations by FEN, without those of positions that the cache lacks if there are no engines.

        The first call may start the engines. Raises ScorerError if an engine fails.
        """
        fens = list(dict.fromkeys(fens))
        known = {fen: analysis for fen in fens if (analysis := self._cache.get(fen))}
        missing = self._missing(fens)
        if missing and (pool := self._engines()):
            known |= zip(missing, pool.analyse(missing, nodes=self._nodes), strict=True)
        return known

    def facts(self, fens: Iterable[str]) -> dict[str, str | int]:
        """Return facts for a result: the engine and its nodes, or the cache, its coverage and a digest of its evals."""
        if self._pool is not None:
            return {"engine": self._pool.name, "engine_nodes": self._nodes}
        analyses = self.analyses(fens)
        lines = "\n".join(f"{fen}: {analysis.lines}" for fen, analysis in analyses.items())
        return {
            "move_evals": self._cache.name,
            "rows_with_move_evals": len(analyses),
            "move_evals_digest": sha256(lines.encode()).hexdigest()[:16],
        }

    def engine_counts(self) -> EngineCounts | None:
        """Return counts of the engines' work so far; None without engines."""
        return self._pool.counts() if self._pool else None

    def close(self) -> None:
        """Close the engines."""
        if self._pool is not None:
            self._pool.close()

    def _missing(self, fens: Iterable[str]) -> list[str]:
        if self._pool is None and self._open_pool is None:
            return []
        return [fen for fen in dict.fromkeys(fens) if self._cache.get(fen) is None]

    def _engines(self) -> EnginePool | None:
        """Return the engines, or None if there are none. They are looked for only once."""
        if self._pool is None and self._open_pool is not None:
            try:
                self._pool = self._open_pool()
            except EngineUnusableError:
                self._open_pool = None
        return self._pool

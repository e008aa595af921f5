"""The scorer of completions and the measure of held-out rows, which may share engines and a file of evaluations."""

from ..errors import UserError
from ..evaluation import MoveEvaluator
from ..rewards import Rubric
from ..rewards.evaluation_cache import EvaluationCache, EvaluationCacheError, load_cache
from ..rewards.rubric import MoveSource
from ..rewards.scorer import Scorer, make_scorer
from ..stockfish.engine import EngineConfig
from ..stockfish.pool import EnginePool
from ..training.config import RunConfig


def make_scorers(config: RunConfig) -> tuple[Scorer, MoveEvaluator]:
    """The scorer, and what measures held-out rows. Raises UserError.

    With source=engine the engines run when this returns; with source=cached one begins where it is needed.
    """
    rubric = config.rubric
    try:
        Rubric(rubric)
    except ValueError as error:
        raise UserError(f"rubric: {error}") from error
    cache = _cache(rubric.move_evals, "rubric.move_evals")
    if rubric.source is MoveSource.engine:
        pool = open_pool(rubric.stockfish, "rubric.stockfish")
        return make_scorer(rubric, pool), MoveEvaluator(cache, pool, config.evaluation_nodes)
    measure = make_measure(rubric.stockfish, config.evaluation_nodes, "rubric.stockfish", rubric.move_evals)
    return make_scorer(rubric), measure


def make_measure(config: EngineConfig, nodes: int, where: str, move_evals: str) -> MoveEvaluator:
    """Engines for `nodes` above 0, else a file of evaluations alone; the caller closes it.

    `where` is the place of the engine's options, `stockfish` or `rubric.stockfish`. Raises UserError.
    """
    if nodes < 0:
        raise UserError(f"evaluation_nodes: expected 0 or more, got {nodes}")
    cache = _cache(move_evals, f"{where.removesuffix('stockfish')}move_evals")
    return MoveEvaluator(cache, open_pool(config, where), nodes) if nodes else MoveEvaluator(cache)


def open_pool(config: EngineConfig, where: str) -> EnginePool:
    """Engines that are there and new enough. Raises UserError."""
    try:
        return EnginePool(config)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def _cache(source: str, where: str) -> EvaluationCache:
    try:
        return load_cache(source)
    except EvaluationCacheError as error:
        raise UserError(f"{where}: {error}") from error

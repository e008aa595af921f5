"""Scorer of many completions at once: a rubric with move evaluations from a file, from Stockfish or from neither."""

from collections.abc import Iterable, Sequence
from functools import partial

from ..errors import UserError
from ..stockfish.analysis import Analysis, EngineCounts
from ..stockfish.engine import EngineConfig, EngineUnusableError, engine_config
from ..stockfish.pool import EnginePool
from ..tasks import fens_of_moves
from .evaluation_cache import load_cache
from .move_evaluations import MoveEvaluations
from .rubric import MoveSource, Rubric, RubricConfig
from .score import MoveChoice, Score, ScoreRequest


class RubricScorer:
    """Rubric with move evaluations. Each position is looked up once, however many completions it has."""

    def __init__(self, rubric: Rubric, evaluations: MoveEvaluations) -> None:
        """Create a scorer. Closing it closes the engines of the evaluations."""
        self._rubric, self._evaluations = rubric, evaluations

    def prepare(self, prompts: Iterable[str]) -> None:
        """Announce prompts whose completions will be scored soon, so that the engines search their positions meanwhile.

        The first call may start the engines. A search that fails is repeated by `score_all`. Raises PromptError for a
        malformed prompt, UserError if the cache of analyses cannot be opened, and ScorerError if it cannot be read.
        """
        self._evaluations.prepare(fens_of_moves(prompts).values())

    def score_all(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        """Return a score for each request, in order. Raises ScorerError if the scorer itself fails.

        The first call may start the engines, and raises UserError if their cache of analyses cannot be opened.
        """
        fens = fens_of_moves(request.prompt for request in requests)
        by_fen = self._evaluations.analyses(fens.values())
        analyses = {prompt: by_fen[fen] for prompt, fen in fens.items() if fen in by_fen}
        return [
            self._rubric.score(
                request.prompt,
                request.completion,
                request.label,
                analysis=analyses.get(request.prompt),
                finished=request.finished,
            )
            for request in requests
        ]

    def move_choice(self, prompt: str, completion: str, analysis: Analysis) -> MoveChoice | None:
        """Return the legal moves where `completion` names one; see `Rubric.move_choice`."""
        return self._rubric.move_choice(prompt, completion, analysis)

    def engine_counts(self) -> EngineCounts | None:
        """Return counts of the engines' work so far; None without engines."""
        return self._evaluations.engine_counts()

    def close(self) -> None:
        """Close the engines."""
        self._evaluations.close()


def make_scorer(config: RubricConfig | None = None, pool: EnginePool | None = None) -> RubricScorer:
    """Return the scorer of a rubric, by default that of `rookworld train`.

    Training runs, `rewards.score` and the interfaces of other libraries all use this function.

    `pool` holds running engines for source=engine, which the scorer then owns; without it the scorer starts its own.
    Raises UserError for a file of move evaluations that cannot be read and for source=engine without a working engine,
    and another ValueError for an option out of its range.
    """
    config = config or RubricConfig()
    rubric = Rubric(config)
    if config.source is MoveSource.engine:
        return RubricScorer(
            rubric, MoveEvaluations(load_cache(""), pool or EnginePool(engine_config(config.stockfish)))
        )
    if config.source is MoveSource.cached:
        cache = load_cache(config.move_evals)
        return RubricScorer(
            rubric, MoveEvaluations(cache, open_pool=partial(_open_pool, engine_config(config.stockfish)))
        )
    return RubricScorer(rubric, MoveEvaluations(load_cache("")))


def _open_pool(config: EngineConfig) -> EnginePool:
    """Start the engines. Raises EngineUnusableError without any, and UserError for their cache."""
    try:
        return EnginePool(config)
    except EngineUnusableError:
        raise
    except UserError as error:
        raise UserError(f"rubric.stockfish: {error}; XDG_CACHE_HOME names another folder") from error

"""Who judges completions and who measures held-out rows, with the engines and the book that both may ask."""

from ..errors import UserError
from ..evaluation import MoveEvaluator
from ..rewards import Rubric
from ..rewards.engine_judge import EngineJudge
from ..rewards.judge_pool import InlineJudge, Judge, JudgePool
from ..rewards.rubric import JudgeKind
from ..rewards.verdict_book import VerdictBook, VerdictBookError, load_book
from ..rewards.verdict_judge import VerdictJudge
from ..stockfish.engine import EngineConfig
from ..stockfish.pool import EnginePool
from .config import RunConfig


def make_judges(config: RunConfig) -> tuple[Judge, MoveEvaluator]:
    """The judge, and what measures held-out rows. Raises UserError.

    Engines that were asked for are running when this returns; with judge=verdicts one begins where it is needed.
    """
    rubric, judge = config.rubric, _rubric_judge(config)
    if rubric.judge is JudgeKind.engine:
        pool = open_pool(rubric.engine, "rubric.engine")
        book = _book(rubric.verdicts, "rubric.verdicts")
        return EngineJudge(judge, pool), MoveEvaluator(book, pool, config.evaluation_nodes)
    measure = make_measure(rubric.engine, config.evaluation_nodes, "rubric.engine", rubric.verdicts)
    if rubric.judge is JudgeKind.verdicts:
        judge = VerdictJudge(judge, measure.book, lambda: EnginePool(rubric.engine))
    return judge, measure


def make_measure(config: EngineConfig, nodes: int, where: str, verdicts: str) -> MoveEvaluator:
    """Engines for `nodes` above 0, else a book alone; whoever asked closes it.

    `where` is the place of the engine's knobs, `engine` or `rubric.engine`. Raises UserError.
    """
    if nodes < 0:
        raise UserError(f"evaluation_nodes: expected 0 or more, got {nodes}")
    book = _book(verdicts, f"{where.removesuffix('engine')}verdicts")
    return MoveEvaluator(book, open_pool(config, where), nodes) if nodes else MoveEvaluator(book)


def _book(source: str, where: str) -> VerdictBook:
    try:
        return load_book(source)
    except VerdictBookError as error:
        raise UserError(f"{where}: {error}") from error


def open_pool(config: EngineConfig, where: str) -> EnginePool:
    """Engines that are there and new enough. Raises UserError."""
    try:
        return EnginePool(config)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def _rubric_judge(config: RunConfig) -> Judge:
    if config.judge_processes < 0:
        raise UserError(f"judge_processes: expected 0 or more, got {config.judge_processes}")
    try:
        if config.judge_processes:
            return JudgePool(config.rubric, config.judge_processes, config.judge_timeout_s)
        return InlineJudge(Rubric(config.rubric))
    except ValueError as error:
        raise UserError(f"rubric: {error}") from error

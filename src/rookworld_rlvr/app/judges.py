"""Who judges completions and who measures held-out rows, with the engines that both may ask."""

from ..evaluation import EngineMeasure
from ..rewards import Rubric
from ..rewards.engine import EngineConfig
from ..rewards.engine_judge import EngineJudge
from ..rewards.engine_pool import EnginePool
from ..rewards.judge_pool import InlineJudge, Judge, JudgePool
from ..rewards.rubric import JudgeKind
from ..training.errors import UserError
from .config import RunConfig


def make_judges(config: RunConfig) -> tuple[Judge, EngineMeasure | None]:
    """The judge, and the measure where one is asked for. Engines are running when this returns. Raises UserError."""
    judge = _rubric_judge(config)
    if config.rubric.judge is JudgeKind.engine:
        pool = open_pool(config.rubric.engine, "rubric.engine")
        return EngineJudge(judge, pool), EngineMeasure(pool, config.evaluation_nodes)
    return judge, make_measure(config.rubric.engine, config.evaluation_nodes, "rubric.engine")


def make_measure(config: EngineConfig, nodes: int, where: str) -> EngineMeasure | None:
    """None for 0 nodes. Whoever asked closes its pool. Raises UserError; `where` is the knobs' place."""
    if nodes < 0:
        raise UserError(f"evaluation_nodes: expected 0 or more, got {nodes}")
    return EngineMeasure(open_pool(config, where), nodes) if nodes else None


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
            return JudgePool(config.rubric, config.judge_processes)
        return InlineJudge(Rubric(config.rubric))
    except ValueError as error:
        raise UserError(f"rubric: {error}") from error

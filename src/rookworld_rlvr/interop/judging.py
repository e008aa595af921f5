"""The judge of a default run, for those who train with another library."""

from importlib import resources
from pathlib import Path

from ..rewards import Rubric, RubricConfig
from ..rewards.judge_pool import InlineJudge, Judge
from ..rewards.rubric import JudgeKind
from ..rewards.verdict_book import load_book
from ..rewards.verdict_judge import VerdictJudge
from ..stockfish.pool import EnginePool
from ..tasks import Example
from ..tasks.corpus import read_corpus


def make_judge(config: RubricConfig | None = None) -> Judge:
    """The judge that `rookworld train` has with this rubric; without one, the default.

    Raises ValueError for `judge=engine`, which needs processes that only a run looks after.
    """
    config = config or RubricConfig()
    if config.judge is JudgeKind.engine:
        raise ValueError("expected judge=verdicts, labels or rules, got engine")
    judge = InlineJudge(Rubric(config))
    if config.judge is not JudgeKind.verdicts:
        return judge
    return VerdictJudge(judge, load_book(config.verdicts), lambda: EnginePool(config.engine))


def shipped_examples() -> tuple[Example, ...]:
    """The training rows that ship with the package, labels included."""
    return read_corpus(Path(str(resources.files("rookworld_rlvr") / "assets" / "data" / "train.txt"))).examples

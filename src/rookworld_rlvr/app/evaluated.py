"""A model under evaluation."""

from dataclasses import dataclass

from ..evaluation import EngineMeasure
from ..rollout.generator import Generator
from ..training.data import EvaluationData
from ..training.policy import Policy
from .config import EvaluateConfig


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model, and what it is evaluated with."""

    config: EvaluateConfig
    data: EvaluationData
    policy: Policy
    generator: Generator
    """In step with the policy."""
    engine: EngineMeasure | None = None
    """What also judges best moves, where it is asked for."""

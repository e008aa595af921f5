"""A model under evaluation."""

from dataclasses import dataclass

from ..evaluation import MoveEvaluator
from ..model.device import select_device
from ..model.policy import ModelConfig, Policy, load_policy
from ..rollout.generator import Generator
from ..training.data import EvaluationData
from .config import EvaluateConfig


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model, and what it is evaluated with."""

    config: EvaluateConfig
    data: EvaluationData
    policy: Policy
    generator: Generator
    """In step with the policy."""
    engine: MoveEvaluator | None = None
    """What also judges best moves, where it is asked for."""


def load_model(config: EvaluateConfig, path: str) -> Policy:
    """A model as this evaluation asks it. Raises UserError."""
    model = ModelConfig(path=path, attention=config.model.attention)
    return load_policy(model, select_device(config.device), config.precision)

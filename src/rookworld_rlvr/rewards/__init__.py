"""Judging a completion: named, weighted components on three tiers, and one reward of them."""

from ..errors import ScorerError
from .rubric import Rubric, RubricConfig, Score, outcome

__all__ = ["ScorerError", "Rubric", "RubricConfig", "Score", "outcome", "score"]

_DEFAULT = Rubric(RubricConfig())


def score(prompt: str, completion: str, label: str | None = None) -> Score:
    """The reward of a completion by the default rubric; see `Rubric.score` for what is asked and raised.

    `label` is the reference completion's text, None where there is none. The total is from -0.3,
    nothing recognised, to 1.0, perfect.
    """
    return _DEFAULT.score(prompt, completion, label)

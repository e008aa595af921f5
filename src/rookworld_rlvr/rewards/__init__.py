"""Rewards of completions. `score` returns the reward that a completion gets in training.

>>> prompt = "P: 2Q3bk/1B2N3/7p/3p4/P5p1/8/3bR3/qR5K w - - 11 95"
>>> text = "M: c8g8 b1a1 e7g6 h1g2 c8f5 E: 999.99 999.97 13.92 8.31 8.14 B: "
>>> mate, slower = score(prompt, text + "c8g8"), score(prompt, text + "b1a1")
>>> mate.total, slower.total < 0.8, mate.source
(1.0, True, 'shipped')
"""

from functools import cache

from ..errors import ScorerError
from .rubric import Rubric, RubricConfig
from .score import Score, Scorer, ScoreRequest
from .scorer import make_scorer

__all__ = [
    "Rubric",
    "RubricConfig",
    "Score",
    "ScoreRequest",
    "Scorer",
    "ScorerError",
    "make_scorer",
    "score",
]


def score(prompt: str, completion: str, label: str | None = None) -> Score:
    """Return the reward of a completion, the same as in a training run with the default rubric.

    The moves of a `P:` completion are scored by the evaluations that ship with the package. For a position that they
    lack, Stockfish is used if it is installed, else `label`, the reference completion's text, else legality alone.
    `Score.source` names the source that was used. The total ranges from -0.3 (nothing recognised) to 1.0 (perfect).
    For another rubric use `make_scorer(RubricConfig(...))`.
    Raises PromptError for a malformed prompt or a `P:` prompt of an impossible position, LabelError for a malformed
    label (both are ValueErrors), and ScorerError if Stockfish fails.
    """
    [result] = _scorer().score_all([ScoreRequest(prompt, completion, label)])
    return result


@cache
def _scorer() -> Scorer:
    return make_scorer()

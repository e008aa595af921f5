"""Scores of completions, and what a trainer asks of the scorer that gives them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..stockfish.analysis import Analysis, EngineCounts
from ..tasks.types import ParseFailure


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Completion to score, with the arguments of `Rubric.score`."""

    prompt: str
    completion: str
    label: str | None
    finished: bool = True


@dataclass(frozen=True, slots=True)
class Score:
    """Score of a completion."""

    total: float
    """The reward: `malformed_reward` if nothing is recognised, 1.0 if perfect."""
    components: dict[str, float]
    """Value in [0, 1] of each component that applied, as `tier/component`, before weighting."""
    failure: ParseFailure | None
    """First error that the strict parser found; None for a well-formed completion."""
    source: str = ""
    """Source of the move values of a completion that names a move: `shipped` or `file` (move evaluations), `engine`,
    `label` or `rules`; otherwise empty."""
    analysis: Analysis | None = field(default=None, repr=False)
    """Evaluations behind the move values; None if none were used."""


@dataclass(frozen=True, slots=True)
class MoveChoice:
    """The legal moves at the place where a completion names its move, or its first candidate."""

    begun: str
    """The completion up to that place."""
    values: Mapping[str, float]
    """Value in [0, 1] of each legal move, by the text that names it there."""
    after: str | None = None
    """Text that ends the move; see `Task.after_move`."""


class Scorer(Protocol):
    """Scorer of many completions at once. `scorer.RubricScorer` is the one that a run uses."""

    def prepare(self, prompts: Iterable[str]) -> None:
        """Announce prompts whose completions will be scored soon, so that engines can search their positions."""

    def score_all(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        """Return a score for each request, in order. Raises ScorerError if the scorer itself fails."""

    def move_choice(self, prompt: str, completion: str, analysis: Analysis) -> MoveChoice | None:
        """Return the legal moves of the analysed position where `completion` names one; None if it names none."""

    def engine_counts(self) -> EngineCounts | None:
        """Return counts of the engines' work so far; None without engines."""

    def close(self) -> None:
        """End the engines."""

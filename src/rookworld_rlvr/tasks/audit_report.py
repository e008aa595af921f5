"""Findings of an audit: counts by kind and colour, and the sentences that name a defect."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..board.positions import PgnCounts
from .types import Task

# Of the rows whose evals differ, more than this share with `B:` at the very lowest is no accident.
INVERTED_FRACTION = 0.5
# Fewer such rows prove no habit.
INVERTED_ROWS = 3


@dataclass(frozen=True, slots=True)
class PolicyAudit:
    """The labelled `P:` rows of one colour to move, counted by finding."""

    rows: int
    illegal_candidate: int
    """A candidate is no legal move."""
    repeated_candidate: int
    illegal_best: int
    """`B:` is no legal move."""
    best_not_candidate: int
    """`B:` is none of the candidates, so the row says nothing about its eval."""
    below_best: int
    """Another candidate's eval is higher than that of `B:`."""
    lowest: int
    """Rows among `below_best` where no candidate's eval is lower than that of `B:`."""
    decided: int
    """Rows whose evals differ, so that `B:` could be below the best."""
    mates: int
    """Rows in which a candidate mates."""
    mate_misjudged: int
    """Rows among `mates` where a candidate that does not mate has as high an eval: evals of another view, or none."""

    @property
    def inverted(self) -> bool:
        """True if `B:` is taken from the wrong end by habit: see `INVERTED_FRACTION`, `INVERTED_ROWS`."""
        return self.lowest >= INVERTED_ROWS and self.lowest > INVERTED_FRACTION * self.decided

    @property
    def defects(self) -> int:
        """Findings of all kinds; a row may have several."""
        illegal = self.illegal_candidate + self.illegal_best
        return illegal + self.repeated_candidate + self.best_not_candidate + self.below_best + self.mate_misjudged

    def lines(self, color: str) -> Iterator[str]:
        """The findings as sentences about `color`'s rows; none where there are no rows."""
        if self.rows:
            yield (
                f"{color}: {self.rows} P: rows; {self.illegal_candidate} have an illegal candidate, "
                f"{self.repeated_candidate} a repeated one, {self.illegal_best} an illegal B:, "
                f"{self.best_not_candidate} a B: that is no candidate"
            )
            below = f"{self.below_best} of {self.rows} {color} rows have a B: below their best eval"
            prefix = f"{color}'s B: is inverted: " if self.inverted else ""
            yield f"{prefix}{below} ({self.lowest} at their lowest)"
        if self.mates:
            mates = f"{self.mate_misjudged} of {self.mates} {color} rows with a mate in one"
            yield f"{mates} hold another candidate as good"


@dataclass(frozen=True, slots=True)
class EnvironmentAudit:
    """The labelled `A:` rows, counted by the field in which they differ from python-chess."""

    rows: int
    next_fen: int
    reward: int
    terminated: int
    """A fivefold repetition that the prompt's history is too short to prove counts as a difference."""
    truncated: int
    illegal_as_legal: int
    """The move is illegal and the row is not truncated."""
    differing: int
    """Rows that differ in any field."""
    impossible: int
    """The position breaks the rules of chess, as one without a king."""

    @property
    def defects(self) -> int:
        """Findings of all kinds; a row may have two."""
        return self.differing + self.impossible

    def lines(self) -> Iterator[str]:
        """The findings as a sentence; none where there are no rows."""
        if self.rows:
            yield (
                f"{self.rows} A: rows; {self.differing} differ from python-chess (next_fen {self.next_fen}, "
                f"reward {self.reward}, terminated {self.terminated}, truncated {self.truncated}); "
                f"{self.illegal_as_legal} record an illegal move as legal"
            )
        if self.impossible:
            yield f"{self.impossible} of {self.rows} A: rows begin in an impossible position"


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Findings of `audit` in a source of rows."""

    source: str
    rows: int
    valid: int
    unlabelled: int
    """Valid rows without a completion; nothing in them to check."""
    malformed: Counter[str]
    """Rows by the name of their `FailureReason`."""
    duplicate_positions: Counter[Task]
    """Valid rows whose position stood in an earlier row of the same task."""
    white: PolicyAudit
    black: PolicyAudit
    environment: EnvironmentAudit
    malformed_rows: tuple[str, ...] = ()
    """The first malformed rows of each reason, as lines for people: the row's number from 1, the reason, the text."""
    games: PgnCounts | None = None
    """The games of a PGN file."""

    @property
    def is_clean(self) -> bool:
        """True if no row is malformed and no label wrong; duplicates and missing labels are no defects."""
        wrong = self.white.defects + self.black.defects + self.environment.defects
        return not (self.malformed or wrong or (self.games and self.games.without_result))

    def lines(self) -> Iterator[str]:
        """The report for people, most general first; a defect is named where there is one."""
        malformed = self.malformed.total()
        yield f"{self.source}: {self.rows} rows, {self.valid} valid, {malformed} malformed"
        if malformed:
            reasons = sorted(self.malformed.items())
            yield "Malformed: " + ", ".join(f"{name} {count}" for name, count in reasons)
            yield from self.malformed_rows
        yield from self._game_lines()
        if self.unlabelled:
            yield f"{self.unlabelled} rows have no label"
        yield "Duplicate positions: " + ", ".join(f"{task} {self.duplicate_positions[task]}" for task in Task)
        yield from self.white.lines("White")
        yield from self.black.lines("Black")
        yield from self.environment.lines()
        if self.is_clean:
            yield "No defect found"

    def _game_lines(self) -> Iterator[str]:
        """The games of a PGN file, and those that were cut off."""
        if self.games:
            yield f"Games: {self.games.games}; each position is a row, and the moves that were played are no labels"
            yield from self.games.warnings()

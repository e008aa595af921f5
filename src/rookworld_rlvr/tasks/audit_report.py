"""Result of an audit: counts by kind of defect and by colour, and the sentences that report them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..board.positions import PgnCounts
from .types import Task

# `B:` counts as inverted only if it has the lowest eval in more than this share of the rows whose evals differ.
INVERTED_FRACTION = 0.5
# `B:` counts as inverted only if it has the lowest eval in at least this many rows.
INVERTED_ROWS = 3


@dataclass(slots=True)
class _Counts:
    """Counts of labelled rows by finding."""

    rows: int = 0

    def add(self, findings: Iterable[str]) -> None:
        """Add a row to the counts of these names."""
        for finding in findings:
            setattr(self, finding, getattr(self, finding) + 1)


@dataclass(slots=True)
class PolicyAudit(_Counts):
    """Counts of the findings in the labelled `P:` rows in which one colour moves."""

    illegal_candidate: int = 0
    """Rows with a candidate that is not a legal move."""
    repeated_candidate: int = 0
    illegal_best: int = 0
    """Rows whose `B:` is not a legal move."""
    best_not_candidate: int = 0
    """Rows whose `B:` is not among the candidates, so that its eval is unknown."""
    below_best: int = 0
    """Rows in which another candidate's eval is higher than that of `B:`."""
    lowest: int = 0
    """Rows among `below_best` in which no candidate's eval is lower than that of `B:`."""
    decided: int = 0
    """Rows whose evals differ, so that `B:` could be below the best."""
    mates: int = 0
    """Rows with a candidate that mates."""
    mate_misjudged: int = 0
    """Rows among `mates` in which a candidate that does not mate has as high an eval. The evals of such a row are from
    the other side's view, or are not evals at all."""

    @property
    def inverted(self) -> bool:
        """True if `B:` is systematically taken from the wrong end: see `INVERTED_FRACTION` and `INVERTED_ROWS`."""
        return self.lowest >= INVERTED_ROWS and self.lowest > INVERTED_FRACTION * self.decided

    @property
    def defects(self) -> int:
        """Number of findings of all kinds. One row may have several."""
        illegal = self.illegal_candidate + self.illegal_best
        return illegal + self.repeated_candidate + self.best_not_candidate + self.below_best + self.mate_misjudged

    def lines(self, color: str) -> Iterator[str]:
        """Yield the findings about `color`'s rows as sentences; nothing if there are no rows."""
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


@dataclass(slots=True)
class EnvironmentAudit(_Counts):
    """Counts of the labelled `A:` rows by the field in which they differ from python-chess."""

    next_fen: int = 0
    reward: int = 0
    terminated: int = 0
    """A fivefold repetition, which no prompt can prove, counts as a difference."""
    truncated: int = 0
    illegal_as_legal: int = 0
    """Rows with an illegal move that are not marked as truncated."""
    differing: int = 0
    """Rows that differ in any field."""
    impossible: int = 0
    """Rows whose position breaks the rules of chess, for example without a king."""

    @property
    def defects(self) -> int:
        """Number of findings of all kinds. One row may have two."""
        return self.differing + self.impossible

    def lines(self) -> Iterator[str]:
        """Yield the findings as sentences; nothing if there are no rows."""
        if self.rows:
            yield (
                f"{self.rows} A: rows; {self.differing} differ from python-chess (next_fen {self.next_fen}, "
                f"reward {self.reward}, terminated {self.terminated}, truncated {self.truncated}); "
                f"{self.illegal_as_legal} record an illegal move as legal"
            )
        if self.impossible:
            yield f"{self.impossible} of {self.rows} A: rows begin in an impossible position"


@dataclass(slots=True)
class AuditReport:
    """Findings of `audit` about a source of rows."""

    source: str
    valid: int = 0
    unlabelled: int = 0
    """Valid rows without a completion, in which there is nothing to check."""
    malformed: Counter[str] = field(default_factory=Counter)
    """Number of malformed rows by the name of their `FailureReason`."""
    duplicate_positions: Counter[Task] = field(default_factory=Counter)
    """Number of valid rows, by task, whose position occurred in an earlier row of the same task."""
    white: PolicyAudit = field(default_factory=PolicyAudit)
    black: PolicyAudit = field(default_factory=PolicyAudit)
    environment: EnvironmentAudit = field(default_factory=EnvironmentAudit)
    malformed_rows: list[str] = field(default_factory=list)
    """First malformed rows of each reason as lines to print: the row's number from 1, the reason, the text."""
    games: PgnCounts | None = None
    """Counts of the games of a PGN file; None for other sources."""

    @property
    def rows(self) -> int:
        return self.valid + self.malformed.total()

    @property
    def is_clean(self) -> bool:
        """True if no row is malformed, no label is wrong and no game lacks its result. Duplicates and missing labels
        are not defects."""
        wrong = self.white.defects + self.black.defects + self.environment.defects
        return not (self.malformed or wrong or (self.games and self.games.without_result))

    def lines(self) -> Iterator[str]:
        """Yield the report as lines to print, the most general first."""
        yield f"{self.source}: {self.rows} rows, {self.valid} valid, {self.malformed.total()} malformed"
        if self.malformed:
            reasons = sorted(self.malformed.items())
            yield "Malformed: " + ", ".join(f"{name} {count}" for name, count in reasons)
            yield from self.malformed_rows
        if self.games:
            yield f"Games: {self.games.games}; each position is a row, and the moves that were played are no labels"
            yield from self.games.warnings()
        if self.unlabelled:
            yield f"{self.unlabelled} rows have no label"
        yield "Duplicate positions: " + ", ".join(f"{task} {self.duplicate_positions[task]}" for task in Task)
        yield from self.white.lines("White")
        yield from self.black.lines("Black")
        yield from self.environment.lines()
        if self.is_clean:
            yield "No defect found"

"""Collection of rows for a file: duplicates and excluded positions are dropped, others held out."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...board.fen import parse_fen, position_key
from ...tasks.corpus import example_key, is_held_out, split_line
from ...tasks.generate import policy_line
from ...tasks.move_evals import MoveEvals, parse_move_evals
from ...tasks.types import ParseFailure
from .workers import Game

# Seed of the held-out positions, so that they are the same in every file.
HELD_OUT_SEED = 0


@dataclass(frozen=True, slots=True)
class CollectedRow:
    """A row of either task."""

    source: str
    """Source of the position; for transitions followed by their class: `random illegal blocked`."""
    position: str
    """Identity of the position, see `position_key`."""
    identity: str
    """Identity of the row: of two rows with the same identity the second is dropped."""
    line: str
    """The row in its published format."""
    move_evals: str = ""
    """Evaluations of all legal moves of a `P:` row, as `tasks.move_evals` writes them."""


def row_of_move_evals(line: str) -> CollectedRow:
    """The `P:` row of a line of move evaluations. Raises ValueError on another line."""
    evals: MoveEvals = parse_move_evals(line)
    # A position has one evaluation.
    position = position_key(parse_fen(evals.fen))
    return CollectedRow(evals.source, position, position, policy_line(evals), line)


def row_of_transition(line: str) -> CollectedRow:
    """The row of source, class and `A:` line, separated by tabs. Raises ValueError on another line."""
    source, kind, row = line.split("\t")
    example = split_line(row)
    if isinstance(example, ParseFailure):
        raise ValueError(f"expected a valid row, got {row!r}: {example}")
    # A position has many moves with an outcome.
    return CollectedRow(f"{source} {kind}", example_key(example), example.prompt, row)


class Rows:
    """Rows that are kept, in order, up to the wanted number, and counts of the dropped ones."""

    def __init__(self, excluded: frozenset[str], wanted: int, held_out_fraction: float) -> None:
        self.kept: list[CollectedRow] = []
        self.held_out: list[CollectedRow] = []
        self.dropped: Counter[str] = Counter(duplicate=0, excluded=0)
        self.games = self.restarts = 0
        self._wanted, self._excluded, self._fraction = wanted, excluded, held_out_fraction
        self._seen: set[str] = set()

    @property
    def full(self) -> bool:
        return len(self.kept) >= self._wanted

    def add_games(
        self, games: Iterator[Game], read: Callable[[str], CollectedRow], progress: Callable[[], None]
    ) -> None:
        """Add the games' rows until there are enough; `progress` is called after each game."""
        while not self.full and (game := next(games, None)) is not None:
            self.games += 1
            self.restarts += game.restarts
            for line in game.lines:
                if not self.full:
                    self.add(read(line))
            progress()

    def add(self, row: CollectedRow) -> None:
        """Keep a row, or hold it out by its position, unless it is a duplicate or its position is excluded."""
        if row.position in self._excluded:
            self.dropped["excluded"] += 1
        elif row.identity in self._seen:
            self.dropped["duplicate"] += 1
        else:
            self._seen.add(row.identity)
            held_out = is_held_out(row.position, self._fraction, HELD_OUT_SEED)
            (self.held_out if held_out else self.kept).append(row)

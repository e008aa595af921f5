"""Collection of the rows of a file. Duplicates and excluded positions are dropped; some positions are held out."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..board.fen import parse_fen, position_key
from ..stockfish.move_evals import MoveEvals, parse_move_evals
from ..tasks.corpus import example_key, is_held_out, split_line
from ..tasks.policy.text import MAX_CANDIDATES, render_policy, render_policy_prompt
from ..tasks.types import ParseFailure, PolicyCompletion
from .workers import Game

# Seed that selects the held-out positions. It is fixed, so that they are the same in every file.
HELD_OUT_SEED = 0


@dataclass(frozen=True, slots=True)
class CollectedRow:
    """A row of either task."""

    source: str
    """Source of the position; for a transition followed by its class, such as `random illegal blocked`."""
    position: str
    """Identity of the position, see `position_key`."""
    identity: str
    """Identity of the row. A row whose identity was seen before is dropped."""
    line: str
    """The row in its published format."""
    move_evals: str = ""
    """Evaluations of all legal moves of a `P:` row, as `stockfish.move_evals` writes them."""


def row_of_move_evals(line: str) -> CollectedRow:
    """Return the `P:` row of a line of move evaluations. Raises ValueError for any other line."""
    evals: MoveEvals = parse_move_evals(line)
    # A position is labelled once, so its identity is also that of the row.
    position = position_key(parse_fen(evals.fen))
    return CollectedRow(evals.source, position, position, policy_line(evals), line)


def policy_line(position: MoveEvals) -> str:
    """Return a line in the published `P:` format with the best five moves, best first, or with all if there are fewer.

    >>> position = MoveEvals("8/8/8/8/8/8/8/K1k5 w - - 0 1", "ending", {"a1a2": 0.5, "a1b1": -1.0})
    >>> policy_line(position).split("M: ")[1].split()
    ['a1a2', 'a1b1', 'E:', '0.5', '-1.0', 'B:', 'a1a2']
    """
    ranked = sorted(position.evals_pawns.items(), key=lambda item: -item[1])[:MAX_CANDIDATES]
    moves, evals = zip(*ranked, strict=True)
    return render_policy_prompt(position.fen) + render_policy(PolicyCompletion(moves, evals, moves[0]), position.fen)


def row_of_transition(line: str) -> CollectedRow:
    """Return the row of a line with source, class and `A:` line, separated by tabs. Raises ValueError for any other."""
    source, kind, row = line.split("\t")
    example = split_line(row)
    if isinstance(example, ParseFailure):
        raise ValueError(f"expected a valid row, got {row!r}: {example}")
    # A position has many moves, each with a row of its own, so the identity is the prompt.
    return CollectedRow(f"{source} {kind}", example_key(example), example.prompt, row)


class Rows:
    """Rows that are kept, in order and up to the wanted number, held-out rows, and counts of dropped rows."""

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
        """Keep a row or hold it out, depending on its position. Duplicates and excluded positions are dropped."""
        if row.position in self._excluded:
            self.dropped["excluded"] += 1
        elif row.identity in self._seen:
            self.dropped["duplicate"] += 1
        else:
            self._seen.add(row.identity)
            held_out = is_held_out(row.position, self._fraction, HELD_OUT_SEED)
            (self.held_out if held_out else self.kept).append(row)

"""Rows that are collected for a file: told apart, left out or held out by their position."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...board.fen import parse_fen, position_key
from ...tasks.corpus import example_key, is_held_out, split_line
from ...tasks.generate import policy_line
from ...tasks.move_evals import MoveEvals, parse_move_evals
from ...tasks.types import ParseFailure, Task
from .workers import Game

# Seeds which positions are held out: those of one file are those of every other.
HELD_OUT_SEED = 0


@dataclass(frozen=True, slots=True)
class Made:
    """A row of either task."""

    source: str
    """Where the position comes from; for transitions with their class behind it: `random illegal blocked`."""
    position: str
    """Its identity, see `position_key`."""
    identity: str
    """What tells rows apart: of two rows with the same identity the second is dropped."""
    line: str
    """As it is published."""
    verdict: str = ""
    """A `P:` row's, as `tasks.move_evals` writes it."""


def made_of_move_evals(line: str) -> Made:
    """Raises ValueError if it is none."""
    verdict: MoveEvals = parse_move_evals(line)
    # A position has one verdict.
    position = position_key(parse_fen(verdict.fen))
    return Made(verdict.source, position, position, policy_line(verdict), line)


def made_of_row(line: str, source: str = "") -> Made:
    """A published line of either task. Raises ValueError if it is none."""
    example = split_line(line)
    if isinstance(example, ParseFailure):
        raise ValueError(f"expected a valid row, got {line!r}: {example}")
    position = example_key(example)
    # A position has one best answer, but many moves whose outcome can be asked for.
    return Made(source, position, position if example.task is Task.policy else example.prompt, line)


def made_of_transition(line: str) -> Made:
    """Read a row from source, class and `A:` line, separated by tabs. Raises ValueError on another line."""
    source, kind, row = line.split("\t")
    return made_of_row(row, f"{source} {kind}")


class Rows:
    """The rows kept so far, in order, and why others were dropped; as many as there are unless so many are wanted."""

    def __init__(
        self, excluded: frozenset[str], wanted: float = math.inf, held_out_fraction: float = 0.0
    ) -> None:
        self.made: list[Made] = []
        self.held_out: list[Made] = []
        self.dropped: Counter[str] = Counter(duplicate=0, excluded=0)
        self.games = self.restarts = 0
        self._wanted, self._excluded, self._fraction = wanted, excluded, held_out_fraction
        self._seen: set[str] = set()

    @property
    def full(self) -> bool:
        return len(self.made) >= self._wanted

    def add_games(
        self, games: Iterator[Game], read: Callable[[str], Made], progress: Callable[[], None]
    ) -> None:
        """The games' rows, until there are enough; `progress` is called behind each game."""
        while not self.full and (game := next(games, None)) is not None:
            self.games += 1
            self.restarts += game.restarts
            for line in game.lines:
                if not self.full:
                    self.add(read(line))
            progress()

    def add(self, made: Made) -> None:
        """Keep a row unless its position is excluded or it is there already; hold it out by its position."""
        if made.position in self._excluded:
            self.dropped["excluded"] += 1
        elif made.identity in self._seen:
            self.dropped["duplicate"] += 1
        else:
            self._seen.add(made.identity)
            held_out = is_held_out(made.position, self._fraction, HELD_OUT_SEED)
            (self.held_out if held_out else self.made).append(made)

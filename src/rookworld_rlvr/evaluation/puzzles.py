"""The suite `puzzles`: lines of Lichess's puzzles, in which the player makes the solver's moves.

As on Lichess, the opponent has played the first move of a line, a wrong move ends the puzzle, and every mate solves it.
Source: https://database.lichess.org/#puzzles.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..board.fen import parse_fen, position_key
from ..board.moves import is_legal_uci, is_mate
from ..board.puzzles import Puzzle, read_puzzles
from ..tasks.policy.text import render_policy_prompt
from .completions import CHUNK_ROWS
from .keys import with_slices
from .players import Player
from .suite import Suite, SuiteName, by_chunks
from .table import PromptAndCompletion, Row

BANDS = {"below_1000": 1000.0, "1000_1500": 1500.0, "1500_2000": 2000.0, "2000_up": float("inf")}
"""Suffixes of keys: the rating that the puzzles of a band stay below. They fit the published bands of small models."""


@dataclass(frozen=True, slots=True)
class PuzzleChoice:
    """Puzzles of a file."""

    puzzles: Sequence[Puzzle]
    left_out: int
    """Number of puzzles that were left out because their first position is in the training data."""


def choose_puzzles(path: str, trained: Collection[str], most: int) -> PuzzleChoice:
    """Return the first `most` puzzles of a file that begin in none of the positions `trained`, without duplicates.

    The file is read only so far. Raises ValueError and OSError as `read_puzzles` does, and ValueError if there are no
    puzzles.
    """
    kept: dict[Puzzle, None] = {}
    left_out = 0
    for puzzle in read_puzzles(path):
        if position_key(parse_fen(puzzle.fen)) in trained:
            left_out += 1
        else:
            kept[puzzle] = None
        if len(kept) == most:
            break
    if not kept and not left_out:
        raise ValueError(f"expected puzzles in {path}, got none")
    return PuzzleChoice(list(kept), left_out)


def band_of(rating: int) -> str:
    """Return the band of a rating.

    >>> [band_of(rating) for rating in (999, 1000, 1999, 2000)]
    ['below_1000', '1000_1500', '1500_2000', '2000_up']
    """
    return next(name for name, end in BANDS.items() if rating < end)


class Attempt:
    """A player's attempt at a puzzle. It ends with a wrong move, a mate or the last move of the solution."""

    def __init__(self, number: int, puzzle: Puzzle) -> None:
        self.number, self.puzzle = number, puzzle
        self.board = parse_fen(puzzle.fen)
        """Position of the next move; after the end, of the last one."""
        self.expected = puzzle.moves[0]
        """The solution's move in `board`."""
        self.moves: list[str] = []
        """Moves of the player as raw texts."""
        self.solved = self.over = False

    def play(self, text: str) -> None:
        """Play the next move and, unless the attempt is over, the opponent's reply."""
        self.expected, reply = (*self.puzzle.moves, "")[2 * len(self.moves) :][:2]
        self.moves.append(text)
        right = text == self.expected
        self.solved = is_mate(self.board, text) or (right and not reply)
        self.over = self.solved or not right
        if not self.over:
            self.board.push_uci(text)
            self.board.push_uci(reply)


def puzzle_suite(
    player: Player,
    puzzles: Sequence[Puzzle],
    *,
    prompt: Callable[[str], str] = render_policy_prompt,
    facts: Mapping[str, Any] | None = None,
) -> Suite:
    """Return the suite, with a row per puzzle. The puzzles of a chunk are played side by side.

    Values are 1.0 or 0.0, also by the puzzle's band of rating and by the slices of its first position:
    `puzzles/first_move`, the solver's first move is the solution's or mates; `puzzles/solved`, so is each of the
    solver's moves; `puzzles/legal`, the first move is legal. `prompt` makes the row's prompt from the FEN of the
    position in which the last move was made.
    """

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        attempts = [Attempt(number, puzzle) for number, puzzle in enumerate(chunk, start=first)]
        while unfinished := [one for one in attempts if not one.over]:
            texts = player.choose([one.board for one in unfinished], [one.number for one in unfinished])
            for one, text in zip(unfinished, texts, strict=True):
                one.play(text)
        return [_row(attempt, prompt) for attempt in attempts]

    return Suite(SuiteName.puzzles, puzzles, by_chunks(puzzles, CHUNK_ROWS, answer), CHUNK_ROWS, facts or {})


def _row(attempt: Attempt, prompt: Callable[[str], str]) -> Row:
    puzzle, first = attempt.puzzle, attempt.moves[0]
    start = parse_fen(puzzle.fen)
    values = {
        "puzzles/first_move": float(first == puzzle.moves[0] or is_mate(start, first)),
        "puzzles/solved": float(attempt.solved),
        "puzzles/legal": float(is_legal_uci(start, first)),
    }
    by_band = {f"{key}/{band_of(puzzle.rating)}": value for key, value in values.items()}
    written = PromptAndCompletion(prompt(attempt.board.fen()), attempt.expected, attempt.moves[-1])
    return Row(attempt.number, puzzle, with_slices(values, start) | by_band, written=written)

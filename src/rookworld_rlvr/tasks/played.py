"""Rows from played games: the positions reached with their outcome, the transitions, the winner's completions."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import chess

from ..board.moves import is_uci
from .generate import environment_line
from .policy import legal_candidates, parse_policy, render_policy, render_policy_prompt
from .types import PolicyCompletion


@dataclass(frozen=True, slots=True)
class Turn:
    """One ply of a game."""

    answer: str
    """The policy completion."""
    written: str
    """The move it names, as it stands there; perhaps illegal or empty."""
    played: str
    """The legal move that was played; empty where the game ended instead."""


@dataclass(frozen=True, slots=True)
class GameRecord:
    """A played game from the standard starting position."""

    opening: tuple[str, ...]
    """UCI moves before the first turn."""
    turns: tuple[Turn, ...]
    end: str
    """Why the game ended."""
    winner: chess.Color | None
    """Who mated; None if nobody did."""
    drawn: bool
    """True if it ended drawn by rule. Neither won nor drawn: it was stopped, and has no outcome."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "GameRecord":
        values = json.loads(text)
        turns = tuple(Turn(**turn) for turn in values.pop("turns"))
        return cls(tuple(values.pop("opening")), turns, **values)

    def outcome(self, color: chess.Color) -> float | None:
        """1 won, ½ drawn, 0 lost; None where the game was stopped."""
        if self.winner is None:
            return 0.5 if self.drawn else None
        return float(self.winner == color)

    def states(self) -> Iterator[tuple[chess.Board, Turn]]:
        """Each turn with its position, all moves on the stack (the same board object, changed in place)."""
        board = chess.Board()
        for uci in self.opening:
            board.push_uci(uci)
        for turn in self.turns:
            yield board, turn
            if turn.played:
                board.push_uci(turn.played)


def position_rows(record: GameRecord, number: int) -> Iterator[dict[str, Any]]:
    """Each position with its game's outcome for the side to move; as a row of a corpus, a prompt without a label."""
    for board, turn in record.states():
        yield {
            "fen": board.fen(),
            "outcome": record.outcome(board.turn),
            "game": number,
            "ply": board.ply(),
            "written": turn.written,
        }


def transition_lines(record: GameRecord) -> Iterator[str]:
    """`A:` rows of the moves written, illegal ones included, and played; python-chess writes the completions."""
    for board, turn in record.states():
        yield from transitions(board, turn.written, turn.played)


def transitions(board: chess.Board, written: str, played: str) -> Iterator[str]:
    """The rows of one ply: of the move written and, where it is another, of that played.

    Text that is no move has none. The moves on the board's stack are their history.
    """
    history = [move.uci() for move in board.move_stack]
    for uci in dict.fromkeys((written, played)):
        if is_uci(uci):
            yield environment_line(board.fen(), uci, [*history, uci])


def winner_lines(record: GameRecord) -> Iterator[str]:
    """`P:` rows: the winner's own well-formed completions whose move was played, in published columns.

    Illegal and repeated candidates are left out. So is a completion whose move is then no candidate. Evals and the best
    move are the model's, right or wrong. A game that was not won by mate has no row. Source: the self-play
    filter of RookWorld's evolution, https://github.com/jorahn/RookWorld.
    """
    for board, turn in record.states():
        parsed = parse_policy(turn.answer)
        if board.turn != record.winner or turn.written != turn.played or not isinstance(parsed, PolicyCompletion):
            continue
        kept = legal_candidates(board, parsed)
        if parsed.best in kept:
            legal = PolicyCompletion(tuple(kept), tuple(kept.values()), parsed.best)
            yield render_policy_prompt(board.fen()) + render_policy(legal, board.fen())

"""What the page asks of the models: a game so far, a model's answer to it, and the board that it believes in.

The page keeps the game and sends all of it with each question, so nothing is remembered here.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import chess

from ..board.fen import parse_fen
from ..board.moves import is_legal_uci
from ..evaluation.players import DecodingConfig
from ..tasks.belief import compare_belief
from ..tasks.environment import parse_environment_prompt, render_environment_prompt
from .choice import Mover

MOST_MOVES = 1000
ATTEMPTS = 3
MOST_TEMPERATURE = 2.0
# A model answers in less than a second; who waits longer than this waits behind too many others.
WAIT_S = 30


class AskedWronglyError(ValueError):
    """A question that has no answer; one line."""


class BusyError(RuntimeError):
    """The models are still answering others."""


@dataclass(frozen=True, slots=True)
class Game:
    """A game so far."""

    board: chess.Board
    """Its moves on the stack."""
    moves: tuple[str, ...]
    """Legal ones, UCI."""


def read_game(asked: Mapping[str, Any]) -> Game:
    """`start`, a FEN or empty, and `moves`. Raises AskedWronglyError."""
    start, moves = asked.get("start", ""), asked.get("moves", [])
    if not isinstance(start, str) or not isinstance(moves, list) or len(moves) > MOST_MOVES:
        raise AskedWronglyError(f"expected start, a FEN, and moves, at most {MOST_MOVES}")
    try:
        board = parse_fen(start) if start.strip() else chess.Board()
    except ValueError as error:
        raise AskedWronglyError(f"expected a FEN, got {start[:100]!r}: {error}") from error
    for move in moves:
        if not isinstance(move, str) or not is_legal_uci(board, move):
            raise AskedWronglyError(f"expected a legal move in {board.fen()}, got {str(move)[:10]!r}")
        board.push_uci(move)
    return Game(board, tuple(moves))


class Table:
    """The models, asked one at a time."""

    def __init__(self, models: Sequence[tuple[str, Mover]]) -> None:
        """Each with the name that the page shows."""
        self._models, self._turn = models, threading.Lock()

    def models(self, _asked: Mapping[str, Any]) -> dict[str, Any]:
        """The names of the models, in their order."""
        return {"models": [name for name, _ in self._models]}

    def position(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The position behind the game's moves."""
        board = read_game(asked).board
        outcome = board.outcome(claim_draw=False)
        ended = f"{outcome.result()} {outcome.termination.name.lower().replace('_', ' ')}" if outcome else ""
        start = board.root()
        return {
            "fen": board.fen(),
            "turn": "w" if board.turn else "b",
            "legal": [move.uci() for move in board.legal_moves],
            "check": chess.square_name(king) if board.is_check() and (king := board.king(board.turn)) else "",
            "ended": ended,
            "first": start.fullmove_number,
            "begins": "w" if start.turn else "b",
            "san": _san(start, board.move_stack),
        }

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A model's answer to the position: its text, its candidates, and the move that is made."""
        game, mover = read_game(asked), self._mover(asked)
        temperature = _number(asked.get("temperature", 0), "temperature", MOST_TEMPERATURE)
        with self._my_turn():
            choice = mover.choose(
                game.board, DecodingConfig(temperature), attempts=ATTEMPTS, number=len(game.moves)
            )
        return {
            "move": choice.move,
            "candidates": [{"move": move, "eval": pawns} for move, pawns in choice.candidates.items()],
            "text": choice.text,
            "illegal": list(choice.illegal),
            "replaced": choice.replaced,
        }

    def believe(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What a model says comes of the game's last move, or of `move`, which may be illegal; and what is true."""
        game, mover = read_game(asked), self._mover(asked)
        board, history = game.board, list(game.moves)
        move = asked.get("move")
        if move is None:
            if not history:
                raise AskedWronglyError("expected a move to ask about, got a game without one")
            move = history.pop()
            board.pop()
        if not isinstance(move, str) or not 4 <= len(move) <= 5 or not move.isalnum() or not move.isascii():
            raise AskedWronglyError(f"expected a move in UCI, got {str(move)[:10]!r}")
        prompt = render_environment_prompt(board.fen(), move, [*history, move])
        with self._my_turn():
            text = mover.next_state(prompt)
        belief = compare_belief(parse_environment_prompt(prompt), text)
        return {
            "move": move,
            "text": text,
            "believed": None if belief.believed is None else belief.believed.board_fen(),
            "true": belief.true.board_fen(),
            "squares": [chess.square_name(square) for square in belief.squares],
            "wrong": belief.wrong,
        }

    def _mover(self, asked: Mapping[str, Any]) -> Mover:
        number = asked.get("model", 0)
        if type(number) is not int or not 0 <= number < len(self._models):
            raise AskedWronglyError(f"expected model from 0 to {len(self._models) - 1}, got {str(number)[:10]}")
        return self._models[number][1]

    def _my_turn(self) -> "_Turn":
        return _Turn(self._turn)


class _Turn:
    """A lock that is waited for no longer than WAIT_S. Raises BusyError."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=WAIT_S):
            raise BusyError("the models are busy: ask again")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _san(start: chess.Board, moves: Sequence[chess.Move]) -> list[str]:
    board = start.copy()
    return [board.san_and_push(move) for move in moves]


def _number(value: Any, name: str, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise AskedWronglyError(f"expected {name} from 0 to {most:g}, got {str(value)[:10]}")
    return float(value)

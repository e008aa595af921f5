"""Request handlers of the play page: the position, a model's answer to it, and the board that the model predicts.

The page keeps the game and sends the whole game with each request, so the server keeps no state.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import chess
import chess.pgn

from ..board.fen import lenient_fen, parse_fen
from ..board.moves import lenient_move
from ..evaluation.players import DecodingConfig
from ..tasks.environment.comparison import compare_next_state
from ..tasks.environment.text import parse_environment_prompt, render_environment_prompt
from .choice import MoveChooser

MAX_MOVES = 1000
ATTEMPTS = 3
MAX_TEMPERATURE = 2.0
# A model answers in less than a second, so a request that waits longer than this has too many others before it.
WAIT_S = 30


class BadRequestError(ValueError):
    """A request that cannot be answered; the message is one line."""


class BusyError(RuntimeError):
    """The models were busy with other requests for WAIT_S seconds."""


def read_game(request: Mapping[str, Any]) -> chess.Board:
    """Return the position after the game of a request, whose moves are on its move stack. Raises BadRequestError.

    The game is `start`, a FEN or empty, and `moves`, a list of moves; both may be written as other programs do.
    """
    start, moves = request.get("start", ""), request.get("moves", [])
    if not isinstance(start, str) or not isinstance(moves, list) or len(moves) > MAX_MOVES:
        raise BadRequestError(f"expected start, a FEN, and moves, at most {MAX_MOVES}")
    try:
        board = lenient_fen(start) if start.strip() else chess.Board()
    except ValueError as error:
        raise BadRequestError(f"start: {error}"[:200]) from error
    for move in moves:
        try:
            board.push(lenient_move(board, str(move)))
        except ValueError as error:
            raise BadRequestError(str(error)) from error
    try:
        # Its counters may have become too long for a prompt.
        parse_fen(board.fen())
    except ValueError as error:
        raise BadRequestError(f"moves: {error}"[:200]) from error
    return board


class PlayApi:
    """Handlers of the page's requests. The models compute one request at a time."""

    def __init__(self, models: Sequence[tuple[str, MoveChooser]]) -> None:
        """`models` has each model with the name that the page shows."""
        self._models, self._lock = models, threading.Lock()

    def models(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the names of the models, in their order."""
        return {"models": [name for name, _ in self._models]}

    def position(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the position after the game's moves, with its legal moves and result, and the game as PGN and SAN."""
        board = read_game(request)
        outcome = board.outcome(claim_draw=False)
        ended = f"{outcome.result()} {outcome.termination.name.lower().replace('_', ' ')}" if outcome else ""
        start, replayed, king = board.root(), board.root(), board.king(board.turn)
        return {
            "fen": board.fen(),
            "pgn": str(chess.pgn.Game.from_board(board)),
            "turn": "w" if board.turn else "b",
            "legal": [move.uci() for move in board.legal_moves],
            "check": chess.square_name(king) if king is not None and board.is_check() else "",
            "ended": ended,
            "first": start.fullmove_number,
            "begins": "w" if start.turn else "b",
            "san": [replayed.san_and_push(move) for move in board.move_stack],
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a model's answer to the position: its text, its candidates with evals, and the move that is made."""
        board, chooser = read_game(request), self._chooser(request)
        temperature = _number(request.get("temperature", 0), "temperature", MAX_TEMPERATURE)
        with self._one_at_a_time():
            number = len(board.move_stack)
            choice = chooser.choose(board, DecodingConfig(temperature), attempts=ATTEMPTS, number=number)
        evals = choice.candidates.items()
        san = {move.uci(): board.san(move) for move in board.legal_moves}
        return {
            "move": choice.move,
            "san": san.get(choice.move, ""),
            "number": board.fullmove_number,
            "side": "White" if board.turn else "Black",
            "candidates": [{"move": move, "san": san[move], "eval": pawns} for move, pawns in evals],
            "text": choice.text,
            "written": choice.written,
            "illegal": list(choice.illegal),
            "replaced": choice.replaced,
        }

    def predict_board(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a model's prediction of the position after a move, and the true position.

        The move is `move`, which may be illegal, or else the game's last move.
        """
        board, chooser = read_game(request), self._chooser(request)
        history, move = [made.uci() for made in board.move_stack], request.get("move")
        if move is None:
            if not history:
                raise BadRequestError("expected a move to predict, got a game without one")
            move = history.pop()
            board.pop()
        if not isinstance(move, str) or not 4 <= len(move) <= 5 or not move.isalnum() or not move.isascii():
            raise BadRequestError(f"expected a move in UCI, got {str(move)[:10]!r}")
        with suppress(ValueError):
            move = lenient_move(board, move).uci()
        try:
            prompt = render_environment_prompt(board.fen(), move, [*history, move])
        except ValueError as error:
            raise BadRequestError(f"start: {error}"[:200]) from error
        with self._one_at_a_time():
            text = chooser.next_state(prompt)
        comparison = compare_next_state(parse_environment_prompt(prompt), text)
        return {
            "move": move,
            "text": text,
            "predicted": None if comparison.predicted is None else comparison.predicted.board_fen(),
            "true": comparison.expected.board_fen(),
            "squares": [chess.square_name(square) for square in comparison.squares],
            "wrong": comparison.wrong,
        }

    def _chooser(self, request: Mapping[str, Any]) -> MoveChooser:
        number = request.get("model", 0)
        if type(number) is not int or not 0 <= number < len(self._models):
            raise BadRequestError(f"expected model from 0 to {len(self._models) - 1}, got {str(number)[:10]}")
        return self._models[number][1]

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Wait at most WAIT_S seconds for the other requests. Raises BusyError."""
        if not self._lock.acquire(timeout=WAIT_S):
            raise BusyError("the models are busy: try again")
        try:
            yield
        finally:
            self._lock.release()


def _number(value: Any, name: str, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise BadRequestError(f"expected {name} from 0 to {most:g}, got {str(value)[:10]}")
    return float(value)

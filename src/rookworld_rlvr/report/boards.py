"""Transcripts as boards: the model's moves, its predicted position, and the squares where the prediction is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

import chess

from ..board.moves import is_legal_uci
from ..tasks.environment import parse_environment_prompt
from ..tasks.policy import parse_policy_prompt, policy_fields
from ..tasks.state_comparison import compare_next_state
from ..tasks.types import Task
from .transcripts import Transcript

ILLEGAL_BEST, WRONG = "illegal best move", "wrong prediction"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A move in a completion."""

    text: str
    eval: str
    """Text of the move's eval; empty if there is none."""
    legal: bool
    best: bool
    repeated: bool
    """True if the same move stands earlier in the list."""


class Kind(StrEnum):
    """Meaning of an arrow: the best move, another legal move or an illegal move."""

    best = "best"
    legal = "legal"
    illegal = "illegal"


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow that shows a move on a board."""

    tail: chess.Square
    head: chess.Square
    kind: Kind
    eval: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """A position to be drawn."""

    title: str
    pieces: chess.BaseBoard
    turn: chess.Color
    """Side from which the board is seen."""
    arrows: Sequence[Arrow] = ()
    wrong: Sequence[chess.Square] = ()
    """Squares to mark as wrong."""


@dataclass(frozen=True, slots=True)
class TranscriptBoards:
    """A transcript as boards and a list of moves."""

    boards: list[Board]
    candidates: list[Candidate]
    wrong: list[str]
    """Squares on which the predicted board differs from the true one, and errors in the fields after the board."""
    problem: str
    """Kind of mistake: the transcript's failure, otherwise ILLEGAL_BEST or WRONG; empty if there is none."""


def draw(transcript: Transcript) -> TranscriptBoards:
    """Return the boards of a transcript, with its list of moves and its mistakes."""
    drawn = _draw_policy(transcript) if transcript.task is Task.policy else _draw_environment(transcript)
    if transcript.failure is None:
        return drawn
    return TranscriptBoards(drawn.boards, drawn.candidates, drawn.wrong, transcript.failure.partition(":")[0])


def _draw_policy(transcript: Transcript) -> TranscriptBoards:
    board = chess.Board(parse_policy_prompt(transcript.prompt).fen)
    fields = policy_fields(transcript.completion)
    best = fields.best[0] if fields.best else ""
    named = list(zip_longest(fields.moves, fields.evals[: len(fields.moves)], fillvalue=""))
    if best and best not in fields.moves:
        named.append((best, ""))
    moves = [
        Candidate(text, written, is_legal_uci(board, text), text == best, text in fields.moves[:place])
        for place, (text, written) in enumerate(named)
    ]
    # The best move comes last, so that its arrow is on top.
    shown = sorted((move for move in moves if not move.repeated), key=lambda move: move.best)
    side = "White" if board.turn else "Black"
    drawn = Board(f"{side} to move", board, board.turn, [arrow for move in shown for arrow in _arrows(move)])
    return TranscriptBoards([drawn], moves, [], "" if is_legal_uci(board, best) else ILLEGAL_BEST)


def _arrows(move: Candidate) -> list[Arrow]:
    """Return the arrow of a move as a list; empty if the move's text does not name two squares."""
    tail, head = move.text[:2], move.text[2:4]
    if tail not in chess.SQUARE_NAMES or head not in chess.SQUARE_NAMES:
        return []
    kind = Kind.illegal if not move.legal else Kind.best if move.best else Kind.legal
    return [Arrow(chess.parse_square(tail), chess.parse_square(head), kind, move.eval)]


def _draw_environment(transcript: Transcript) -> TranscriptBoards:
    prompted = parse_environment_prompt(transcript.prompt)
    board = chess.Board(prompted.fen)
    move = Candidate(prompted.uci, "", is_legal_uci(board, prompted.uci), best=False, repeated=False)
    comparison = compare_next_state(prompted, transcript.completion)
    boards = [Board(f"move: {prompted.uci}", board, board.turn, _arrows(move))]
    if comparison.predicted is not None:
        boards.append(
            Board("board that the model predicts", comparison.predicted, board.turn, wrong=comparison.squares)
        )
    boards.append(Board("true next board", comparison.expected, board.turn))
    return TranscriptBoards(boards, [], comparison.wrong, WRONG if comparison.wrong else "")

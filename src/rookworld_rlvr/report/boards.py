"""Transcripts as boards: the model's moves, its predicted position, and the squares where that is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

import chess

from ..board.moves import is_legal_uci
from ..tasks import Task
from ..tasks.belief import compare_belief
from ..tasks.environment import parse_environment_prompt
from ..tasks.policy import parse_policy_prompt, policy_fields
from .transcripts import Transcript

ILLEGAL_BEST, WRONG = "illegal best move", "wrong prediction"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A move that the model named."""

    text: str
    eval: str
    """As it was written; empty if there is none for this move."""
    legal: bool
    best: bool
    again: bool
    """True if it was named before."""


class Kind(StrEnum):
    """The meaning of an arrow."""

    best = "best"
    legal = "legal"
    illegal = "illegal"


@dataclass(frozen=True, slots=True)
class Arrow:
    """A move on a board."""

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
    """From whose side it is seen."""
    arrows: Sequence[Arrow] = ()
    wrong: Sequence[chess.Square] = ()
    """Squares to be marked."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A transcript as boards and a list of moves."""

    boards: list[Board]
    candidates: list[Candidate]
    wrong: list[str]
    """Squares on which the predicted board differs from the true one; fields behind the board that are wrong."""
    problem: str
    """The mistake: the parser's reason, else ILLEGAL_BEST or WRONG; empty if there is none."""


def draw(transcript: Transcript) -> Drawn:
    """The boards of a transcript."""
    drawn = _draw_policy(transcript) if transcript.task is Task.policy else _draw_environment(transcript)
    if transcript.failure is None:
        return drawn
    return Drawn(drawn.boards, drawn.candidates, drawn.wrong, transcript.failure.partition(":")[0])


def _draw_policy(transcript: Transcript) -> Drawn:
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
    # The best move last, on top of the others.
    shown = sorted((move for move in moves if not move.again), key=lambda move: move.best)
    side = "White" if board.turn else "Black"
    drawn = Board(f"{side} to move", board, board.turn, [arrow for move in shown for arrow in _arrows(move)])
    return Drawn([drawn], moves, [], "" if is_legal_uci(board, best) else ILLEGAL_BEST)


def _arrows(move: Candidate) -> list[Arrow]:
    """The arrow of a move; none if its text names no two squares."""
    tail, head = move.text[:2], move.text[2:4]
    if tail not in chess.SQUARE_NAMES or head not in chess.SQUARE_NAMES:
        return []
    kind = Kind.illegal if not move.legal else Kind.best if move.best else Kind.legal
    return [Arrow(chess.parse_square(tail), chess.parse_square(head), kind, move.eval)]


def _draw_environment(transcript: Transcript) -> Drawn:
    prompted = parse_environment_prompt(transcript.prompt)
    board = chess.Board(prompted.fen)
    move = Candidate(prompted.uci, "", is_legal_uci(board, prompted.uci), best=False, again=False)
    belief = compare_belief(prompted, transcript.completion)
    boards = [Board(f"move: {prompted.uci}", board, board.turn, _arrows(move))]
    if belief.believed is not None:
        boards.append(Board("board that the model predicts", belief.believed, board.turn, wrong=belief.squares))
    boards.append(Board("true next board", belief.true, board.turn))
    return Drawn(boards, [], belief.wrong, WRONG if belief.wrong else "")

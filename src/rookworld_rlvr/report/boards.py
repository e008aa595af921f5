"""Transcripts as boards: what the model asked for, what it believes, and where the belief is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

import chess

from ..board.moves import is_legal_uci
from ..tasks import Task
from ..tasks.environment import environment_fields, environment_truth, parse_environment_prompt
from ..tasks.policy import parse_policy_prompt, policy_fields
from .transcripts import Transcript

ILLEGAL_BEST, WRONG = "illegal best move", "wrong answer"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A move that the model named."""

    text: str
    eval: str
    """As it was written; empty if there is none for this move."""
    legal: bool
    best: bool
    again: bool
    """Whether it was named before."""


class Kind(StrEnum):
    """What an arrow stands for."""

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
    men: chess.BaseBoard
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
    """What went wrong: the parser's reason, else ILLEGAL_BEST or WRONG; empty if nothing did."""


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
    asked = parse_environment_prompt(transcript.prompt)
    board, truth = chess.Board(asked.fen), environment_truth(asked)
    move = Candidate(asked.uci, "", is_legal_uci(board, asked.uci), best=False, again=False)
    fields = environment_fields(transcript.completion)
    true_fields = (str(truth.reward), str(int(truth.terminated)), str(int(truth.truncated)))
    behind = _differences(("reward", "terminated", "truncated"), fields[1:], true_fields)
    before = Board(f"asked: {asked.uci}", board, board.turn, _arrows(move))
    believed, true_men = _men(fields[0]), chess.BaseBoard(truth.next_fen.split(" ")[0])
    after = Board("true next board", true_men, board.turn)
    if believed is None:
        return Drawn([before, after], [], ["no board could be read", *behind], WRONG)
    squares = [square for square in chess.SQUARES if believed.piece_at(square) != true_men.piece_at(square)]
    names = ("turn", "castling", "en passant", "half-moves", "full move")
    of_fen = _differences(names, fields[0].split(" ")[1:], truth.next_fen.split(" ")[1:])
    wrong = [*map(chess.square_name, squares), *of_fen, *behind]
    boards = [before, Board("board the model believes in", believed, board.turn, wrong=squares), after]
    return Drawn(boards, [], wrong, WRONG if wrong else "")


def _men(fen: str) -> chess.BaseBoard | None:
    try:
        return chess.BaseBoard(fen.split(" ")[0])
    except ValueError:
        return None


def _differences(names: Sequence[str], written: Sequence[str], true: Sequence[str]) -> list[str]:
    """Which of the named fields are wrong; one that is missing is told as such."""
    pairs = zip_longest(names, written[: len(names)], true, fillvalue="nothing")
    return [f"{name}: wrote {mine}, true {theirs}" for name, mine, theirs in pairs if mine != theirs]

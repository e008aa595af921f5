"""Transcripts as boards: what the model asked for, what it believes, and where the belief is wrong."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import chess
import chess.svg

from ..board.moves import is_legal_uci
from ..tasks import Task
from ..tasks.environment import environment_fields, environment_truth, parse_environment_prompt
from ..tasks.policy import parse_policy_prompt, policy_fields

BEST, LEGAL, ILLEGAL = "#15781bcc", "#003088aa", "#b31b1bcc"
WRONG = "#d0453acc"
# What python-chess says twice, and the name that would stand before every element.
REPEATED = re.compile(r' xlink:href="[^"]*"| xmlns(:xlink)?="[^"]*"')
LEFT_OUT = ("desc", "defs")
# Of python-chess's boards, in their own unit.
MARGIN, SQUARE = 15, 45
ROUNDED = re.compile(r"(\d+\.\d\d)\d+")


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


@dataclass(frozen=True, slots=True)
class Board:
    """A drawn position."""

    title: str
    svg: str
    """An `<svg>` element, which takes squares and pieces from `shared_shapes`."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A transcript as boards and a list of moves."""

    boards: list[Board]
    candidates: list[Candidate]
    wrong: list[str]
    """Squares on which the predicted board differs from the true one; fields behind the board that are wrong."""


def draw(transcript: Mapping[str, Any]) -> Drawn:
    """The boards of a transcript."""
    if transcript["task"] == Task.policy:
        return _draw_policy(transcript["prompt"], transcript["completion"])
    return _draw_environment(transcript["prompt"], transcript["completion"])


def _draw_policy(prompt: str, completion: str) -> Drawn:
    board = chess.Board(parse_policy_prompt(prompt).fen)
    fields = policy_fields(completion)
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
    arrows = [arrow for move in shown for arrow in _arrows(move)]
    evals = {arrow.head: move.eval for move in shown for arrow in _arrows(move)}
    side = "White" if board.turn else "Black"
    return Drawn([Board(f"{side} to move", _svg(board, board.turn, arrows, evals=evals))], moves, [])


def _arrows(move: Candidate) -> list[chess.svg.Arrow]:
    """The arrow of a move; none if its text names no two squares."""
    tail, head = move.text[:2], move.text[2:4]
    if tail not in chess.SQUARE_NAMES or head not in chess.SQUARE_NAMES:
        return []
    color = ILLEGAL if not move.legal else BEST if move.best else LEGAL
    return [chess.svg.Arrow(chess.parse_square(tail), chess.parse_square(head), color=color)]


def _draw_environment(prompt: str, completion: str) -> Drawn:
    asked = parse_environment_prompt(prompt)
    turn, truth = chess.Board(asked.fen).turn, environment_truth(asked)
    move = _arrows(Candidate(asked.uci, "", is_legal_uci(chess.Board(asked.fen), asked.uci), False, False))
    before = Board(f"asked: {asked.uci}", _svg(chess.Board(asked.fen), turn, move))
    fields = environment_fields(completion)
    wanted = (truth.next_fen, str(truth.reward), str(int(truth.terminated)), str(int(truth.truncated)))
    names = ("reward", "terminated", "truncated")
    flags = [
        f"{name}: wrote {wrote}, true {true}"
        for name, wrote, true in zip(names, fields[1:], wanted[1:], strict=False)
        if wrote != true
    ]
    believed, true_board = _placement(fields[0]), chess.BaseBoard(truth.next_fen.split(" ")[0])
    after = Board("true next board", _svg(true_board, turn, []))
    if believed is None:
        return Drawn([before, after], [], ["no board could be read", *flags])
    wrong = [square for square in chess.SQUARES if believed.piece_at(square) != true_board.piece_at(square)]
    fill = dict.fromkeys(wrong, WRONG)
    behind = _fields_behind(fields[0], truth.next_fen)
    boards = [before, Board("board the model believes in", _svg(believed, turn, [], fill=fill)), after]
    return Drawn(boards, [], [*map(chess.square_name, wrong), *behind, *flags])


def _placement(fen: str) -> chess.BaseBoard | None:
    try:
        return chess.BaseBoard(fen.split(" ")[0])
    except (ValueError, IndexError):
        return None


def _fields_behind(wrote: str, true: str) -> list[str]:
    """Which fields of a FEN behind its board are wrong."""
    names = ("turn", "castling", "en passant", "half-moves", "full move")
    pairs = zip(names, wrote.split(" ")[1:], true.split(" ")[1:], strict=False)
    return [f"{name}: wrote {mine}, true {theirs}" for name, mine, theirs in pairs if mine != theirs]


def _svg(
    board: chess.BaseBoard,
    turn: chess.Color,
    arrows: Sequence[chess.svg.Arrow],
    *,
    fill: Mapping[int, str] | None = None,
    evals: Mapping[int, str] | None = None,
) -> str:
    """The board from the side to move, without what a page has once: squares, coordinates, shapes of pieces.

    `evals` are written into squares.
    """
    drawn = _parsed(chess.svg.board(board, orientation=turn, arrows=arrows, fill=dict(fill or {})))
    empty = set(_empty(turn))
    parts = [ElementTree.tostring(part, encoding="unicode") for part in drawn if part.tag not in LEFT_OUT]
    own = ROUNDED.sub(r"\1", "".join(part for part in parts if part not in empty))
    written = "".join(_written(square, text, turn) for square, text in (evals or {}).items() if text)
    return f'<svg viewBox="{drawn.get("viewBox")}"><use href="#{_name(turn)}"/>{own}{written}</svg>'


def _written(square: int, text: str, turn: chess.Color) -> str:
    """A text in the upper half of a square."""
    file, rank = chess.square_file(square), chess.square_rank(square)
    column, row = (file, 7 - rank) if turn else (7 - file, rank)
    x, y = MARGIN + (column + 0.5) * SQUARE, MARGIN + (row + 0.3) * SQUARE
    return f'<text x="{x:g}" y="{y:g}" class="eval">{escape(text)}</text>'


def _parsed(svg: str) -> ElementTree.Element:
    """python-chess writes each reference twice, once for old readers of SVG."""
    return ElementTree.fromstring(REPEATED.sub("", svg))


@cache
def _empty(turn: chess.Color) -> tuple[str, ...]:
    """What an empty board is made of, as text."""
    empty = _parsed(chess.svg.board(chess.BaseBoard.empty(), orientation=turn))
    return tuple(ElementTree.tostring(part, encoding="unicode") for part in empty if part.tag not in LEFT_OUT)


def _name(turn: chess.Color) -> str:
    return f"board-from-{chess.COLOR_NAMES[turn]}"


@cache
def shared_shapes() -> str:
    """What all boards of a page take their squares, coordinates and pieces from."""
    everyone = _parsed(chess.svg.board(chess.BaseBoard("kqrbnp2/KQRBNP2/8/8/8/8/8/8")))
    pieces = "".join(ElementTree.tostring(part, encoding="unicode") for part in everyone if part.tag == "defs")
    boards = "".join(f'<g id="{_name(turn)}">{"".join(_empty(turn))}</g>' for turn in chess.COLORS)
    return f'<svg width="0" height="0" aria-hidden="true">{pieces}<defs>{boards}</defs></svg>'

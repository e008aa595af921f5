"""Boards as SVG by python-chess, less what a page has once."""

import re
from functools import cache
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import chess
import chess.svg

from .boards import Arrow, Board, Kind

COLORS = {Kind.best: "#15781bcc", Kind.legal: "#003088aa", Kind.illegal: "#b31b1bcc"}
WRONG = "#d0453acc"
# What python-chess says twice, and the name that would stand before every element.
REPEATED = re.compile(r' xlink:href="[^"]*"| xmlns(:xlink)?="[^"]*"')
ROUNDED = re.compile(r"(\d+\.\d\d)\d+")
LEFT_OUT = ("desc", "defs")
# Of python-chess's boards, in their own unit.
MARGIN, SQUARE = 15, 45


def board_svg(board: Board) -> str:
    """An `<svg>` element that takes squares, coordinates and the shapes of pieces from `shared_shapes`.

    An arrow's eval is written into the square where it ends.
    """
    drawn = _parsed(
        chess.svg.board(
            board.pieces,
            orientation=board.turn,
            arrows=[chess.svg.Arrow(arrow.tail, arrow.head, color=COLORS[arrow.kind]) for arrow in board.arrows],
            fill=dict.fromkeys(board.wrong, WRONG),
        )
    )
    empty = set(_empty(board.turn))
    parts = [ElementTree.tostring(part, encoding="unicode") for part in drawn if part.tag not in LEFT_OUT]
    own = ROUNDED.sub(r"\1", "".join(part for part in parts if part not in empty))
    # Of two arrows that end in one square the last is on top.
    ends = {arrow.head: arrow for arrow in board.arrows if arrow.eval}
    written = "".join(_written(arrow, board.turn) for arrow in ends.values())
    return f'<svg viewBox="{drawn.get("viewBox")}"><use href="#{_name(board.turn)}"/>{own}{written}</svg>'


def _written(arrow: Arrow, turn: chess.Color) -> str:
    """The arrow's eval in the upper half of the square where it ends."""
    file, rank = chess.square_file(arrow.head), chess.square_rank(arrow.head)
    column, row = (file, 7 - rank) if turn else (7 - file, rank)
    x, y = MARGIN + (column + 0.5) * SQUARE, MARGIN + (row + 0.3) * SQUARE
    return f'<text x="{x:g}" y="{y:g}" class="eval">{escape(arrow.eval)}</text>'


def _parsed(svg: str) -> ElementTree.Element:
    """python-chess writes each reference twice, once for old readers of SVG."""
    return ElementTree.fromstring(REPEATED.sub("", svg))


@cache
def _empty(turn: chess.Color) -> tuple[str, ...]:
    """The elements of an empty board, as text."""
    empty = _parsed(chess.svg.board(chess.BaseBoard.empty(), orientation=turn))
    return tuple(ElementTree.tostring(part, encoding="unicode") for part in empty if part.tag not in LEFT_OUT)


def _name(turn: chess.Color) -> str:
    return f"board-from-{chess.COLOR_NAMES[turn]}"


@cache
def shared_shapes() -> str:
    """The squares, coordinates and pieces that all boards of a page share."""
    everyone = _parsed(chess.svg.board(chess.BaseBoard("kqrbnp2/KQRBNP2/8/8/8/8/8/8")))
    pieces = "".join(ElementTree.tostring(part, encoding="unicode") for part in everyone if part.tag == "defs")
    boards = "".join(f'<g id="{_name(turn)}">{"".join(_empty(turn))}</g>' for turn in chess.COLORS)
    return f'<svg width="0" height="0" aria-hidden="true">{pieces}<defs>{boards}</defs></svg>'

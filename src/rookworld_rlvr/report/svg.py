"""Boards as SVG from python-chess, without the parts that a page contains only once."""

import re
from functools import cache
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import chess
import chess.svg

from ..board.drawing import Arrow, Board, Kind

COLORS = {Kind.best: "#15781bcc", Kind.legal: "#003088aa", Kind.illegal: "#b31b1bcc"}
WRONG = "#d0453acc"
# Attributes to remove: a second copy of each reference, and namespaces, which would prefix every element's name.
REPEATED = re.compile(r' xlink:href="[^"]*"| xmlns(:xlink)?="[^"]*"')
ROUNDED = re.compile(r"(\d+\.\d\d)\d+")
LEFT_OUT = ("desc", "defs")
# Width of the margin and of a square in python-chess's boards, in SVG units.
MARGIN, SQUARE = 15, 45


def board_svg(board: Board) -> str:
    """Return an `<svg>` element that refers to `shared_shapes` for squares, coordinates and the shapes of pieces.

    An arrow's eval is written into the square where the arrow ends.
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
    # If two arrows end in one square, the last one is on top, so its eval is written.
    ends = {arrow.head: arrow for arrow in board.arrows if arrow.eval}
    written = "".join(_written(arrow, board.turn) for arrow in ends.values())
    return f'<svg viewBox="{drawn.get("viewBox")}"><use href="#{_name(board.turn)}"/>{own}{written}</svg>'


def _written(arrow: Arrow, turn: chess.Color) -> str:
    """Return the arrow's eval as text in the upper half of the square where the arrow ends."""
    file, rank = chess.square_file(arrow.head), chess.square_rank(arrow.head)
    column, row = (file, 7 - rank) if turn else (7 - file, rank)
    x, y = MARGIN + (column + 0.5) * SQUARE, MARGIN + (row + 0.3) * SQUARE
    return f'<text x="{x:g}" y="{y:g}" class="eval">{escape(arrow.eval)}</text>'


def _parsed(svg: str) -> ElementTree.Element:
    """Parse an SVG of python-chess, which writes each reference twice, once for old readers of SVG."""
    return ElementTree.fromstring(REPEATED.sub("", svg))


@cache
def _empty(turn: chess.Color) -> tuple[str, ...]:
    """Return the elements of an empty board as text."""
    empty = _parsed(chess.svg.board(chess.BaseBoard.empty(), orientation=turn))
    return tuple(ElementTree.tostring(part, encoding="unicode") for part in empty if part.tag not in LEFT_OUT)


def _name(turn: chess.Color) -> str:
    return f"board-from-{chess.COLOR_NAMES[turn]}"


@cache
def shared_shapes() -> str:
    """Return a hidden `<svg>` element with the squares, coordinates and pieces that all boards of a page share."""
    everyone = _parsed(chess.svg.board(chess.BaseBoard("kqrbnp2/KQRBNP2/8/8/8/8/8/8")))
    pieces = "".join(ElementTree.tostring(part, encoding="unicode") for part in everyone if part.tag == "defs")
    boards = "".join(f'<g id="{_name(turn)}">{"".join(_empty(turn))}</g>' for turn in chess.COLORS)
    return f'<svg width="0" height="0" aria-hidden="true">{pieces}<defs>{boards}</defs></svg>'

"""Transcripts for a terminal: boards of coloured squares, the list of moves, and the texts."""

from collections.abc import Mapping

import chess
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..board.drawing import Board, Drawing, Kind
from .transcripts import Transcript, draw

LIGHT, DARK, WRONG = "#e3d5bd", "#b79b76", "#d0453a"
# Colours of the squares where an arrow begins and ends, by its kind. Later kinds cover earlier ones.
MARKS: Mapping[Kind, str] = {Kind.legal: "#7f9cc9", Kind.illegal: "#d0453a", Kind.best: "#6fae6a"}


def printable(text: str) -> str:
    """Return the text on one line with non-printable characters as Python escapes, because a terminal executes some.

    >>> printable("a\\n b \\x1b]52;c;cHduZWQ=\\x07")
    'a b \\\\x1b]52;c;cHduZWQ=\\\\x07'
    """
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def transcript_view(transcript: Transcript) -> RenderableType:
    """Return a transcript's boards, moves, errors, texts and values for the terminal."""
    drawn = draw(transcript)
    beside: list[RenderableType] = [board_view(board) for board in drawn.boards]
    if drawn.candidates:
        beside.append(_moves(drawn))
    parts: list[RenderableType] = [_head(transcript, drawn), Columns(beside, padding=(0, 3))]
    if drawn.wrong:
        parts.append(Text("wrong      " + printable(", ".join(drawn.wrong)), style="red"))
    texts = {"prompt": transcript.prompt, "completion": transcript.completion, "expected": transcript.expected}
    parts += [Text(f"{name:<10} {printable(text)}") for name, text in texts.items() if text]
    values = "  ".join(f"{name} {value:.2f}" for name, value in transcript.components.items() if name.count("/") == 1)
    return Group(*parts, Text(f"{'values':<10} {values}", style="dim"))


def _head(transcript: Transcript, drawn: Drawing) -> Text:
    words = [] if transcript.step is None else [f"step {transcript.step}"]
    words.append(transcript.task)
    if transcript.reward is not None:
        words.append(f"reward {transcript.reward:+.3f}")
    head = Text(" · ".join(words), style="bold")
    if drawn.problem:
        head.append(f" · {printable(transcript.failure or drawn.problem)}", style="red")
    return head


def _moves(drawn: Drawing) -> Table:
    table = Table("move", "eval", "", box=None, padding=(0, 1))
    for move in drawn.candidates:
        marks = ["best"] * move.best + ["illegal"] * (not move.legal) + ["again"] * move.repeated
        texts = (Text(printable(move.text)), Text(printable(move.eval)))
        table.add_row(*texts, " ".join(marks), style=None if move.legal else "red")
    return table


def board_view(board: Board) -> Text:
    """Return a board as text, seen from `board.turn`. An arrow is shown by the colour of its two squares."""
    marks = dict.fromkeys(board.wrong, WRONG)
    for kind, color in MARKS.items():
        marks |= {square: color for arrow in board.arrows if arrow.kind is kind for square in (arrow.tail, arrow.head)}
    ranks, files = (range(7, -1, -1), range(8)) if board.turn else (range(8), range(7, -1, -1))
    text = Text(f"  {board.title}\n")
    for rank in ranks:
        text.append(f"{rank + 1} ")
        for file in files:
            square = chess.square(file, rank)
            ground = marks.get(square, LIGHT if (rank + file) % 2 else DARK)
            text.append(f"{_symbol(board.pieces.piece_at(square))} ", style=f"black on {ground}")
        text.append("\n")
    return text.append("  " + " ".join(chess.FILE_NAMES[file] for file in files))


def _symbol(piece: chess.Piece | None) -> str:
    """Return the piece's symbol, `·` for none. Filled shapes are Black's, because both sides are printed in black."""
    return "·" if piece is None else piece.unicode_symbol()

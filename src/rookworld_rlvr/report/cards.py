"""Transcripts for a tracker: as a page of boards, or as text."""

import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rich.console import Console

from .boards import draw
from .svg import board_svg, shared_shapes
from .terminal import transcript_view
from .transcripts import of_run

STYLE = (
    "body{font:14px system-ui,sans-serif}figure{display:inline-block;width:240px;margin:0 12px 8px 0}"
    "h3{font-size:14px;margin:14px 0 4px}.eval{font:600 13px sans-serif;fill:#fff;stroke:#000;stroke-width:2.5px;"
    "paint-order:stroke;text-anchor:middle}.bad{color:#b3261e}"
)
WIDTH = 160


def cards_html(lines: Sequence[Mapping[str, Any]]) -> str:
    """The transcripts, lines of rollouts.jsonl, as an HTML page that needs nothing beside it."""
    cards = []
    for transcript in map(of_run, lines):
        drawn = draw(transcript)
        reward = "not finite" if transcript.reward is None else f"{transcript.reward:+.3f}"
        head = f"step {transcript.step} · {transcript.task} · reward {reward}"
        figures = "".join(
            f"<figure>{board_svg(board)}<figcaption>{escape(board.title)}</figcaption></figure>"
            for board in drawn.boards
        )
        wrong = ", ".join([*([drawn.problem] if drawn.problem else []), *drawn.wrong])
        problems = f'<p class="bad">{escape(wrong)}</p>' if wrong else ""
        text = escape(" ".join(transcript.completion.split()))
        cards.append(f"<h3>{escape(head)}</h3>{figures}{problems}<p><code>{text}</code></p>")
    style = f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>"
    return f"{style}{shared_shapes()}{''.join(cards)}"


def cards_markdown(lines: Sequence[Mapping[str, Any]]) -> str:
    """The transcripts as text within a block of code."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, highlight=False, record=True)
    for transcript in map(of_run, lines):
        console.print(transcript_view(transcript))
    return f"```\n{console.export_text()}```"

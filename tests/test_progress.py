"""Progress on the console: bars on a terminal, lines without one."""

from io import StringIO

import pytest
from rich.console import Console

from rookworld_rlvr import progress


def test_progress_without_terminal_prints_occasional_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 40.0, 50.0, 80.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    shown = StringIO()
    with progress.progress(Console(file=shown, width=160), "evaluation after", 2000) as show:
        for done in (256, 1000, 1256, 1600):
            show(done)
    assert shown.getvalue().splitlines() == [
        "evaluation after: 1,000 of 2,000 rows, 0:40 left",
        "evaluation after: 1,600 of 2,000 rows, 0:20 left",
    ]


def test_progress_on_a_terminal_is_a_bar_that_leaves_no_line() -> None:
    shown = StringIO()
    with progress.progress(Console(file=shown, width=80, force_terminal=True), "games", 20, start=5) as show:
        show(7)
    assert "7/20" in shown.getvalue() and shown.getvalue().endswith("\x1b[2K")

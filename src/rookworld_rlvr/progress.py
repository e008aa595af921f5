"""Progress of long work on the console."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Seconds between two lines without a terminal.
LINE_EVERY_S = 30.0


class OpenProgress(Protocol):
    """Function that opens a display of work, such as `partial(progress, console)`."""

    def __call__(self, name: str, total: int, *, start: int = 0) -> AbstractContextManager[Callable[[int], None]]:
        """Return the context of a display, which yields a function for the amount that is done."""


@contextmanager
def progress(
    console: Console, name: str, total: int, *, start: int = 0, unit: str = "rows"
) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how much of `total` is done: a bar on a terminal, otherwise occasional lines.

    `start` was done before and does not count for the estimate of the time remaining.
    """
    if not console.is_terminal:
        yield _lines(console, name, total, start, unit)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=total, completed=start)
        yield lambda done: bar.update(task, completed=done)


def _lines(console: Console, name: str, total: int, start: int, unit: str) -> Callable[[int], None]:
    began = last_line = time.monotonic()

    def show(done: int) -> None:
        nonlocal last_line
        now = time.monotonic()
        if now - last_line < LINE_EVERY_S or not start < done < total:
            return
        last_line = now
        left = minutes((now - began) * (total - done) / (done - start))
        console.print(f"{name}: {done:,} of {total:,} {unit}, {left} left", highlight=False)

    return show


def minutes(seconds: float) -> str:
    """Return a duration as minutes and seconds.

    >>> minutes(522)
    '8:42'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"

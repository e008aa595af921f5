"""Progress of long work on the console, and a console's stream that may fail."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol, TextIO

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


class ConsoleStream:
    """Text stream of a console that does not end a run: after an error, such as a full disk, it writes nothing more.

    A character that the stream's encoding lacks becomes a question mark.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._failed = stream, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, and return the number of its characters."""
        self._try(lambda: self._write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._try(self._stream.flush)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding
            self._stream.write(text.encode(encoding, "replace").decode(encoding))

    def _try(self, work: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            work()
        except OSError as error:
            self._failed = True
            line = f"the console is left out from here on, metrics.jsonl has all steps: {error.strerror or error}"
            try:
                print(f"rookworld: {line}", file=sys.stderr, flush=True)
            except OSError:
                _discard(sys.stderr)
            _discard(self._stream)


def _discard(stream: TextIO) -> None:
    """Let a file swallow what its buffer still has. Otherwise Python would fail to write it at the end."""
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)

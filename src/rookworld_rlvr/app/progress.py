"""Progress bars on stderr with the amount done, the rate and the time remaining."""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as Bar
from rich.text import Text

Report = Callable[[str, int], None]
"""Called with the name of a bar and the amount that is done."""


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Bar) -> Text:
        took_s = task.finished_time if task.finished else task.elapsed
        return Text(f"{(task.completed - task.fields['before']) / took_s if took_s else 0:,.1f} {self._unit}/s")


@contextmanager
def bars(totals: Mapping[str, int], unit: str = "rows") -> Generator[Report, None, None]:
    """Yield a function that reports progress; each name of `totals` has a bar.

    A bar appears with its first report, so that an error before it prints only one line. The amount in a bar's first
    report was done before and does not count for the rate.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(unit))
    shown = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
    with ExitStack() as stack:
        ids: dict[str, TaskID] = {}

        def report(name: str, done: int) -> None:
            if not shown.live.is_started:
                stack.enter_context(shown)
            if name not in ids:
                ids[name] = shown.add_task(name, total=totals[name], completed=done, before=done)
            shown.update(ids[name], completed=done)

        yield report

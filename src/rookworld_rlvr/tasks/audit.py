"""Audit of a file of rows: count and name its defects, and write the same rows corrected."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..board.positions import GAMES_FILE, PgnCounts, count_games
from ..files import file_type
from .corpus import (
    UNREADABLE,
    RawRow,
    Rejects,
    example_key,
    parse_row,
    raw_rows,
    require_valid,
    shown,
    shown_failure,
)
from .registry import all_tasks, task_named
from .task import TaskAudit
from .types import Completion, Example, ParseFailure

# Number of malformed rows shown for each failure reason.
MOST_SHOWN = 3


@dataclass(slots=True)
class AuditReport:
    """Findings of `audit` about a source of rows."""

    source: str
    valid: int = 0
    unlabelled: int = 0
    """Valid rows without a completion, in which there is nothing to check."""
    malformed: Counter[str] = field(default_factory=Counter)
    """Number of malformed rows by the name of their `FailureReason`."""
    duplicate_positions: Counter[str] = field(default_factory=Counter)
    """Number of valid rows, by task, whose position occurred in an earlier row of the same task."""
    tasks: dict[str, TaskAudit] = field(default_factory=lambda: {task.name: task.audit() for task in all_tasks()})
    """Findings in the labelled rows of each task."""
    malformed_rows: list[str] = field(default_factory=list)
    """First malformed rows of each reason as lines to print: number from 1, reason, offending text, row."""
    games: PgnCounts | None = None
    """Counts of the games of a PGN file; None for other sources."""

    @property
    def rows(self) -> int:
        return self.valid + self.malformed.total()

    @property
    def is_clean(self) -> bool:
        """True if no row is malformed, no label is wrong and no game lacks its result. Duplicates and missing labels
        are not defects."""
        wrong = sum(task.defects for task in self.tasks.values())
        return not (self.malformed or wrong or (self.games and self.games.without_result))

    def lines(self) -> Iterator[str]:
        """Yield the report as lines to print, the most general first."""
        yield f"{self.source}: {self.rows} rows, {self.valid} valid, {self.malformed.total()} malformed"
        if self.malformed:
            reasons = sorted(self.malformed.items())
            yield "Malformed: " + ", ".join(f"{name} {count}" for name, count in reasons)
            yield from self.malformed_rows
        if self.games:
            yield f"Games: {self.games.games}; each position is a row, and the moves that were played are no labels"
            yield from self.games.warnings()
        if self.unlabelled:
            yield f"{self.unlabelled} rows have no label"
        found = self.duplicate_positions
        counts = ", ".join(f"{task} {found[task]}" for task in self.tasks if task in found)
        yield f"Duplicate positions: {counts or 'none'}"
        for task in self.tasks.values():
            yield from task.lines()
        if self.is_clean:
            yield "No defect found"


def audit(source: str | Path, *, progress: Callable[[int], None] = lambda rows: None) -> AuditReport:
    """Read all rows of `source`, as `read_corpus` does, and count their defects.

    `progress` is called with the number of rows so far. Defects are counted and raise nothing. Raises UserError only
    if the source is missing, unreadable or without a valid row.
    """
    report, rejects = AuditReport(str(source)), Rejects()
    seen: set[tuple[str, str]] = set()
    for number, raw in enumerate(raw_rows(source), start=1):
        progress(number)
        row = parse_row(raw)
        if isinstance(row, ParseFailure):
            rejects.add(number, row)
            if rejects.counts[row.reason.value] <= MOST_SHOWN:
                report.malformed_rows.append(f"  row {number}: {_shown_row(raw, row)}")
            continue
        report.valid += 1
        identity = (row.task, example_key(row))
        report.duplicate_positions[row.task] += identity in seen
        seen.add(identity)
        if row.completion is None:
            report.unlabelled += 1
        else:
            task = task_named(row.task)
            query = task.query(row.prompt)
            report.tasks[row.task].add(query, task.parse(Completion(row.completion), query))
    report.malformed = rejects.counts
    require_valid(source, report.valid, rejects)
    if file_type(source) == GAMES_FILE:
        report.games = count_games(source)
    return report


def _shown_row(raw: RawRow, failure: ParseFailure) -> str:
    """Return why a row is malformed, and the row. What the reason quotes of the row is not shown twice."""
    text = raw if isinstance(raw, str) else str(raw.get(UNREADABLE) or json.dumps(raw, default=str))
    _, quoted, rest = failure.detail.partition(text.strip())
    failure = replace(failure, detail=rest.strip(" :'\"")) if quoted else failure
    return f"{shown_failure(failure)}: {shown(text)}"


def corrected_lines(source: str | Path, *, dropped: Counter[str] | None = None) -> Iterator[str]:
    """Yield the corrected rows of `source`, in order, as lines without a newline. An audit of them finds no defect.

    A row without a defect is unchanged. Each task corrects its own rows: see its `corrected`. Malformed rows and those
    that a task drops are counted by reason in `dropped`. Rows that are objects stay JSON objects. Raises UserError as
    `raw_rows` does.
    """
    for raw in raw_rows(source):
        row = parse_row(raw)
        corrected = row if isinstance(row, ParseFailure) else _corrected(row)
        if not isinstance(corrected, ParseFailure):
            yield _render_like(raw, corrected)
        elif dropped is not None:
            dropped[corrected.reason.value] += 1


def _render_like(raw: RawRow, example: Example) -> str:
    """Return the example as a line of the same form as its row."""
    if isinstance(raw, str):
        return example.prompt + (example.completion or "")
    if example.completion is None:
        return json.dumps(raw, default=str)
    if isinstance(raw.get("prompt"), str):
        return json.dumps({**raw, "prompt": example.prompt, "completion": example.completion}, default=str)
    return json.dumps({**raw, "text": example.prompt + example.completion}, default=str)


def _corrected(example: Example) -> Example | ParseFailure:
    if example.completion is None:
        return example
    task = task_named(example.task)
    query = task.query(example.prompt)
    corrected = task.corrected(example, query, task.parse(Completion(example.completion), query))
    if corrected is example or isinstance(corrected, ParseFailure):
        return corrected
    # Parsed again, because a number of the row may be one that no row can hold.
    return parse_row({"prompt": corrected.prompt, "completion": corrected.completion, "source": corrected.source})

"""File with the rows of an evaluation. An interrupted evaluation resumes from it, and a comparison reads it.

The first line is a header with the model, the settings and the facts of the suites. Every other line is a row. Lines
are appended chunk by chunk, and a truncated last line is ignored.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import UserError, first_line
from ..evaluation.suite import Suite, SuiteName
from ..evaluation.table import PromptAndCompletion, Row, json_number
from ..files import append_lines, whole_lines, write_lines
from ..report.transcripts import ROWS_ENDING
from ..tasks import all_tasks

HEADER = "evaluation"
MISSING = "nothing"
# Options of the group `evaluation` that a single suite reads.
OPTIONS_OF_SUITES = {
    "mates": SuiteName.mate_in_one,
    "match_pairs": SuiteName.match,
    "match_plies": SuiteName.match,
    "puzzles": SuiteName.puzzles,
}
# Sections of the header, and the entries that a comparison of two evaluations needs.
SECTIONS = {
    "config": {"seed"},
    "facts": set[str](),
    "software": set[str](),
    "model": {"path", "parameters", "checksum"},
}


def rows_path(output: Path) -> Path:
    """Return the path of the rows that belong to the tables in `output`."""
    return output.with_name(f"{output.name}{ROWS_ENDING}")


class RowsFile:
    """Finished rows, in memory and, if there is a path, on disk. A row's `item` is the `str` of the suite's item."""

    def __init__(self, path: Path | None, header: Mapping[str, Any], suites: Sequence[Suite]) -> None:
        """Read existing rows. Raises UserError if their header shows that they belong to another evaluation."""
        self._path, self._header = path, header
        self.rows: dict[str, list[Row]] = {suite.name: [] for suite in suites}
        if path is not None and path.is_file():
            written_header, written_rows = read_rows(path)
            # A header that was read from JSON has lists for tuples, so ours is converted before the comparison.
            _require_same(json.loads(json.dumps(header)), written_header, path)
            self.rows = {suite.name: _finished(suite, written_rows.get(suite.name, []), path) for suite in suites}

    def begin(self) -> None:
        """Write the file again, without the rows of an unfinished chunk."""
        if self._path is not None:
            write_lines(self._path, [json.dumps({HEADER: self._header}), *self._lines()])

    def add(self, suite: Suite, rows: Sequence[Row]) -> None:
        """Add the next finished rows of a suite, and append them to the file."""
        added = [replace(row, item=str(row.item)) for row in rows]
        first = len(self.rows[suite.name])
        expected = [(first + place, str(suite.items[first + place])) for place in range(len(added))]
        if [(row.index, row.item) for row in added] != expected:
            raise ValueError(f"expected the rows of {suite.name} from {first} on, got others: {added[0]}")
        self.rows[suite.name] += added
        if self._path is not None:
            append_lines(self._path, (_line(suite.name, row) for row in added))

    def _lines(self) -> Iterator[str]:
        return (_line(name, row) for name, rows in self.rows.items() for row in rows)


def _line(suite: str, row: Row) -> str:
    record = {"record": row.record} if row.record else {}
    written = asdict(row.written) if row.written else {}
    values = {key: json_number(value) for key, value in row.values.items()}
    return json.dumps({"suite": suite, "index": row.index, "item": row.item, "values": values, **written, **record})


def read_rows(path: Path) -> tuple[Any, dict[str, list[Row]]]:
    """Return the header of a file of rows, and the rows by suite. Raises UserError for any other file."""
    try:
        header, *rows = map(json.loads, whole_lines(path))
        by_suite: defaultdict[str, list[Row]] = defaultdict(list)
        for row in rows:
            values = {key: float(value) for key, value in row["values"].items()}
            has_texts = "prompt" in row
            written = PromptAndCompletion(row["prompt"], row["expected"], row["completion"]) if has_texts else None
            by_suite[row["suite"]].append(Row(row["index"], row["item"], values, row.get("record", ""), written))
        return header[HEADER], dict(by_suite)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"expected the rows of an evaluation in {path}, got {first_line(error)}") from error


def read_finished(output: Path) -> tuple[Any, dict[str, list[Row]]]:
    """Return the header and the rows, by suite, of a finished evaluation. Raises UserError if it is not finished."""
    path = rows_path(output)
    if not path.is_file():
        raise UserError(f"expected the rows of an evaluation in {path}, got no such file")
    header, rows = read_rows(path)
    for section, names in SECTIONS.items():
        found = header.get(section) if isinstance(header, dict) else None
        if not isinstance(found, dict) or not names <= found.keys():
            wanted = f"{section} with {', '.join(sorted(names))}" if names else section
            raise UserError(f"expected a header with {wanted} in {path}, got {str(found)[:80]}")
    try:
        tables = json.loads(output.read_text(encoding="utf-8"))["suites"]
        expected = {name: table["rows"] for name, table in tables.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"expected a finished evaluation's tables in {output}, got {first_line(error)}") from error
    counts = {name: len(rows.get(name, [])) for name in expected}
    if counts != expected:
        raise UserError(f"expected rows {expected} beside {output}, got {counts}: the evaluation is not finished")
    return header, {name: rows.get(name, []) for name in expected}


def _finished(suite: Suite, rows: Sequence[Row], path: Path) -> list[Row]:
    """Return the rows of complete chunks. Raises UserError if they are not those of the suite's items, in order."""
    for place, row in enumerate(rows):
        expected = str(suite.items[place]) if place < len(suite.items) else MISSING
        if row.index != place or row.item != expected:
            raise UserError(
                f"output: expected row {place} of {suite.name} in {path} to be of {expected[:120]!r}, got row "
                f"{row.index} of {str(row.item)[:120]!r}: another output= begins anew"
            )
    return list(rows) if len(rows) == len(suite.items) else list(rows[: len(rows) // suite.chunk * suite.chunk])


def _require_same(header: Mapping[str, Any], written: Any, path: Path) -> None:
    wanted, there = dict(leaves(header)), dict(leaves(written))
    for name in [*wanted, *there]:
        expected, got = wanted.get(name, MISSING), there.get(name, MISSING)
        if expected != got:
            raise UserError(
                f"output: expected rows of this evaluation in {path}, got another's: {name} is {got!r} there and "
                f"{expected!r} here; another output= begins anew"
            )


def leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dictionaries with their keys joined by dots, after `path`. A list is one value."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, content


def settings_of(settings: Mapping[str, Any], suites: Collection[str]) -> dict[str, Any]:
    """Return the settings or facts of an evaluation without those that only other suites than `suites` read."""
    others = {*(task.name for task in all_tasks()), *map(str, SuiteName)} - set(suites)
    kept = {name: value for name, value in settings.items() if name not in others}
    options = kept.get("evaluation")
    if isinstance(options, dict):
        read = {name: value for name, value in options.items() if OPTIONS_OF_SUITES.get(name) not in others}
        kept["evaluation"] = read
    return kept


def suite_of(name: str) -> str:
    """Return the suite that reads a setting or fact, or another word if no single suite does.

    >>> [str(suite_of(name)) for name in ("config.match.attempts", "config.evaluation.match_pairs", "config.seed")]
    ['match', 'match', 'seed']
    """
    _, group, *rest = name.split(".")
    return OPTIONS_OF_SUITES.get(rest[0], group) if group == "evaluation" and rest else group

"""The record of a run, read from its folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..evaluation.headline import RowGains, headline_keys
from ..evaluation.table import difference
from ..files import follow, whole_lines
from ..training.run_files import (
    AFTER_ROWS,
    BEFORE_ROWS,
    CONFIG_FILE,
    MEASURED,
    METRICS_FILE,
    ROLLOUTS_FILE,
    SUMMARY,
)
from .transcripts import Transcript, described, of_run

# Sections of the summary that have an object per key.
TABLES = ("before", "after", "gain")


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The contents of a run's folder."""

    name: str
    """Names of the parent folder and of the run's folder: date, time and the run's own name."""
    config: str
    """Resolved configuration as YAML."""
    summary: Mapping[str, Any]
    """Contents of summary.json. Empty while the run is training, or if it was killed."""
    metrics: Sequence[Mapping[str, float]]
    """Metrics of each step."""
    transcripts: Sequence[Transcript]
    """Transcripts of the completions that were saved, in the order of the steps."""
    measured: str = ""
    """Digest of the held-out rows and of how they were measured; empty without their values before and after."""
    row_gains: RowGains = field(default_factory=dict)
    """Gains of the headline keys by row."""


def read_run(folder: Path) -> RunRecord:
    """Read a run's folder. Raises UserError if the folder does not contain a run."""
    resolved = follow(folder).resolve()
    if not (resolved / CONFIG_FILE).is_file():
        raise UserError(f"expected a run's folder, with {CONFIG_FILE} in it, got {folder}")

    def read(name: str, parse: Callable[[Path], Any]) -> Any:
        try:
            return parse(resolved / name)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"expected a file of a run at {folder / name}, got {described(error)}") from error

    return RunRecord(
        name=f"{resolved.parent.name}/{resolved.name}",
        config=read(CONFIG_FILE, lambda path: path.read_text(encoding="utf-8")),
        summary=read(SUMMARY, _summary),
        metrics=read(METRICS_FILE, lambda path: [_metrics(line) for line in whole_lines(path)]),
        transcripts=read(ROLLOUTS_FILE, lambda path: [of_run(json.loads(line)) for line in whole_lines(path)]),
        **_row_gains(*(read(name, _rows) for name in (BEFORE_ROWS, AFTER_ROWS))),
    )


def shared_row_gains(runs: Sequence[RunRecord]) -> list[RowGains]:
    """Return the gains by row of each run; empty unless all were measured on the same rows in the same way."""
    same = len({run.measured for run in runs}) == 1 and runs[0].measured
    return [run.row_gains for run in runs] if same else []


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in whole_lines(path)]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected an object per line")
    return rows


def _row_gains(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of a record that the values of the rows before and after training give."""
    measured = str(before[0].get(MEASURED, "")) if before else ""
    if not after or after[0].get(MEASURED) != measured or len(after) != len(before):
        return {}
    gains: dict[str, dict[int, float]] = {key: {} for key in headline_keys()}
    for place, (earlier, later) in enumerate(zip(before[1:], after[1:], strict=True)):
        for key in earlier.keys() & later.keys() & gains.keys():
            gains[key][place] = difference(float(earlier[key]), float(later[key]))
    return {"measured": measured, "row_gains": gains}


def _summary(path: Path) -> dict[str, Any]:
    """Return the contents of summary.json, empty without the file. Raises ValueError for contents of another shape."""
    summary = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if not isinstance(summary, dict):
        raise ValueError(f"expected an object, got {str(summary)[:80]}")
    for name in TABLES:
        table = summary.get(name, {})
        if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
            raise ValueError(f"expected an object of objects as {name}, got {str(table)[:80]}")
    return summary


def _metrics(line: str) -> dict[str, float]:
    """Return the metrics of a step. Raises ValueError for a line of another shape."""
    values = json.loads(line)
    if not isinstance(values, dict) or "step" not in values:
        raise ValueError(f"expected an object with a step, got {line[:80]!r}")
    if wrong := [key for key, value in values.items() if not isinstance(value, (int, float))]:
        raise ValueError(f"expected a number as {wrong[0]}, got {str(values[wrong[0]])[:80]!r}")
    return values

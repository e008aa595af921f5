"""The record of a run, read from its folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import whole_lines
from ..training.run_files import CONFIG_FILE, METRICS_FILE, ROLLOUTS_FILE, SUMMARY
from .transcripts import Transcript, of_run


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


def read_run(folder: Path) -> RunRecord:
    """Read a run's folder. Raises UserError if the folder does not contain a run."""
    resolved = folder.resolve()
    if not (resolved / CONFIG_FILE).is_file():
        raise UserError(f"expected a run's folder, with {CONFIG_FILE} in it, got {folder}")

    def read(name: str, parse: Callable[[Path], Any]) -> Any:
        try:
            return parse(resolved / name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"expected a file of a run at {folder / name}, got {error!r}") from error

    return RunRecord(
        name=f"{resolved.parent.name}/{resolved.name}",
        config=read(CONFIG_FILE, lambda path: path.read_text(encoding="utf-8")),
        summary=read(SUMMARY, lambda path: json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}),
        metrics=read(METRICS_FILE, lambda path: [json.loads(line) for line in whole_lines(path)]),
        transcripts=read(ROLLOUTS_FILE, lambda path: [of_run(json.loads(line)) for line in whole_lines(path)]),
    )

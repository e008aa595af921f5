"""The record of a run, read from its folder."""

import json
from collections.abc import Mapping, Sequence
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
    try:
        summary = resolved / SUMMARY
        return RunRecord(
            name=f"{resolved.parent.name}/{resolved.name}",
            config=(resolved / CONFIG_FILE).read_text(encoding="utf-8"),
            summary=json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else {},
            metrics=[json.loads(line) for line in whole_lines(resolved / METRICS_FILE)],
            transcripts=[of_run(json.loads(line)) for line in whole_lines(resolved / ROLLOUTS_FILE)],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"expected the files of a run in {folder}, got {error!r}") from error

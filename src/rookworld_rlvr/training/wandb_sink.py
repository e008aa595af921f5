"""Weights & Biases as a sink; the only file that knows it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .config import LoggingConfig
from .sinks import (
    BOARDS,
    CHANGE_COLUMNS,
    CHANGES,
    TRANSCRIPT_COLUMNS,
    TRANSCRIPTS,
    Cards,
    Sink,
    change_rows,
    transcript_rows,
)


class WandbSink(Sink):
    """One wandb run; offline it needs no account and can be uploaded later with `wandb sync`.

    `WANDB_MODE=online` in the environment uploads at once.
    """

    def __init__(self, config: LoggingConfig, folder: Path, settings: Mapping[str, Any], cards: Cards) -> None:
        # Slow to import, and absent until chosen.
        import wandb

        self._wandb: Any = wandb
        self._cards, self._step = cards, 0
        self._run: Any = wandb.init(
            project=config.project,
            name=folder.name,
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            config=dict(settings),
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = step
        self._run.log(dict(metrics), step=step)

    def show(self, step: int, transcripts: Sequence[Mapping[str, Any]]) -> None:
        table = self._wandb.Table(columns=list(TRANSCRIPT_COLUMNS), data=transcript_rows(transcripts))
        boards = self._wandb.Html(self._cards.html(transcripts), inject=False)
        self._run.log({TRANSCRIPTS: table, BOARDS: boards}, step=step)

    def conclude(self, summary: Mapping[str, Any]) -> None:
        if rows := change_rows(summary):
            self._run.log({CHANGES: self._wandb.Table(columns=list(CHANGE_COLUMNS), data=rows)}, step=self._step)

    def close(self) -> None:
        self._run.finish()

"""Trackio as a sink, on this machine and without an account; the only file that knows it."""

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


class TrackioSink(Sink):
    """One Trackio run; `trackio show --project NAME` opens it."""

    def __init__(self, config: LoggingConfig, folder: Path, settings: Mapping[str, Any], cards: Cards) -> None:
        # Slow to import, and absent until chosen.
        import pandas
        import trackio

        self._trackio: Any = trackio
        self._frame: Any = pandas.DataFrame
        self._cards, self._step = cards, 0
        self._run: Any = trackio.init(
            project=config.project, name=folder.name, config=dict(settings), embed=False, auto_log_gpu=False
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._step = step
        self._run.log(dict(metrics), step=step)

    def show(self, step: int, transcripts: Sequence[Mapping[str, Any]]) -> None:
        table = self._table(TRANSCRIPT_COLUMNS, transcript_rows(transcripts))
        self._run.log({TRANSCRIPTS: table, BOARDS: self._trackio.Html(self._cards.html(transcripts))}, step=step)

    def conclude(self, summary: Mapping[str, Any]) -> None:
        if rows := change_rows(summary):
            self._run.log({CHANGES: self._table(CHANGE_COLUMNS, rows)}, step=self._step)

    def close(self) -> None:
        self._run.finish()

    def _table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
        return self._trackio.Table(dataframe=self._frame(rows, columns=list(columns)))

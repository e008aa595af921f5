"""Weights & Biases as a sink; the only file that knows it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .sinks import LoggingConfig


class WandbSink:
    """One wandb run; offline it needs no account and can be uploaded later with `wandb sync`."""

    def __init__(self, config: LoggingConfig, folder: Path, settings: Mapping[str, Any]) -> None:
        # Slow to import, and absent until chosen.
        import wandb

        self._run: Any = wandb.init(
            project=config.wandb_project,
            name=folder.name,
            dir=str(folder),
            mode=config.wandb_mode,  # type: ignore[arg-type]
            config=dict(settings),
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()

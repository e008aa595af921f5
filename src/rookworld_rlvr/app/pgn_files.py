"""The games of an evaluation as PGN, written from the rows that are kept: those that the tables count, each once."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import UserError
from ..evaluation import Row
from ..evaluation.suite import SuiteName
from ..files import write_text
from .config import EvaluateConfig
from .rows_file import rows_path


def pgn_paths(config: EvaluateConfig) -> dict[str, Path]:
    """Where the games of each suite are asked for. Raises UserError unless that can be written, a file of its own."""
    asked = {
        SuiteName.selfplay: config.selfplay.pgn,
        SuiteName.engine_match: config.engine_match.pgn,
        SuiteName.match: config.match.pgn,
    }
    paths = {name.value: Path(path).resolve() for name, path in asked.items() if path and name in config.suites}
    for name, path in paths.items():
        if path.is_dir() or not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise UserError(f"{name}.pgn: expected a file in a folder that can be written to, got {path}")
    output = Path(config.output).resolve()
    files = {**paths, **({"output": output, "its rows": rows_path(output)} if config.output else {})}
    if len(set(files.values())) < len(files):
        told = ", ".join(f"{path} for {name}" for name, path in files.items())
        raise UserError(f"pgn: expected a file of its own for each, got {told}")
    return paths


def begin_pgn(paths: Mapping[str, Path], rows: Mapping[str, Sequence[Row]]) -> None:
    """Write the games that are kept. Raises UserError where a file holds others, and leaves it as it is."""
    for name, path in paths.items():
        if path.exists() and not _text(rows[name]).startswith(path.read_text(encoding="utf-8", errors="replace")):
            raise UserError(f"{name}.pgn: expected no file, or the games of this evaluation, got other games in {path}")
    for name in paths:
        save_pgn(paths, name, rows[name])


def save_pgn(paths: Mapping[str, Path], name: str, rows: Sequence[Row]) -> None:
    """Write all games of a suite that are kept so far, where a file is asked for."""
    if name in paths and rows:
        write_text(paths[name], _text(rows))


def _text(rows: Sequence[Row]) -> str:
    return "".join(row.record for row in rows)

"""Rows for both tasks from numbered games, the same whatever the number of processes or interrupts.

Game k of a task depends on the task, the seed, the engine and k alone, and the games are read in the
order of their numbers.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import chess.engine

from ..rewards.engine import EngineConfig, open_engine
from ..tasks.audit import audit
from ..tasks.audit_report import AuditReport
from ..tasks.corpus import example_key, split_line
from ..tasks.types import ParseFailure, Task
from .game_log import GameLog
from .game_workers import WorkerError, new_games, open_workers

CARD_FILE = "data_card.json"

Progress = Callable[[Task, int], None]
"""Told how many rows a task has."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be generated."""

    tasks: tuple[Task, ...]
    rows: int
    """Of each task."""
    seed: int
    engine: EngineConfig
    """Labels the policy task; the environment task needs none."""
    processes: int
    folder: Path
    """Gets `<task>.txt`, the data card, and the finished games under `games/`."""
    excluded: frozenset[str]
    """Positions (see `example_key`) that no row may begin from."""


def generate(request: Request, progress: Progress) -> Path:
    """Writes every file of `request`, the data card last, and returns the card's path.

    A folder that holds finished games of the same seed and engine goes on from them. Raises
    EngineNotFoundError, GameLogError, WorkerError or OSError.
    """
    engine_name = _engine_name(request.engine) if Task.policy in request.tasks else None
    (request.folder / "games").mkdir(parents=True, exist_ok=True)
    card: dict[str, object] = {
        "seed": request.seed,
        **(_engine_header(request.engine, engine_name) if engine_name else {}),
        "excluded_positions": len(request.excluded),
    }
    for task in request.tasks:
        rows = _generate_task(task, request, engine_name, progress)
        path = request.folder / f"{task}.txt"
        write_lines(path, rows.lines)
        card[task.value] = _card(task, rows, audit(path))
    write_lines(request.folder / CARD_FILE, [json.dumps(card, indent=2)])
    return request.folder / CARD_FILE


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """The lines as a file that is there whole or not at all; how many there are."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    count = 0
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(f"{line}\n")
                count += 1
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


class Rows:
    """The rows kept so far, in order, and why others were dropped."""

    def __init__(self, wanted: int, excluded: frozenset[str]) -> None:
        self.lines: list[str] = []
        self.dropped: Counter[str] = Counter(duplicate=0, excluded=0)
        self.games = 0
        self._wanted, self._excluded = wanted, excluded
        self._seen: set[str] = set()

    @property
    def full(self) -> bool:
        return len(self.lines) >= self._wanted

    def add_game(self, lines: Iterable[str]) -> None:
        """A game's rows, until there are enough."""
        self.games += 1
        for line in lines:
            if not self.full:
                self._add(line)

    def _add(self, line: str) -> None:
        example = split_line(line)
        if isinstance(example, ParseFailure):
            raise ValueError(f"expected a valid row, got {line!r}: {example}")
        position = example_key(example)
        # A position has one best answer, but many moves whose outcome can be asked for.
        identity = position if example.task is Task.policy else example.prompt
        if position in self._excluded:
            self.dropped["excluded"] += 1
        elif identity in self._seen:
            self.dropped["duplicate"] += 1
        else:
            self._seen.add(identity)
            self.lines.append(line)


def _generate_task(task: Task, request: Request, engine_name: str | None, progress: Progress) -> Rows:
    engine = request.engine if task is Task.policy else None
    header: dict[str, str | int] = {"task": task.value, "seed": request.seed}
    if engine and engine_name:
        header |= _engine_header(engine, engine_name)
    rows = Rows(request.rows, request.excluded)
    with GameLog(request.folder / "games" / f"{task}.jsonl", header) as log:
        for lines in _all_games(log, task, request, engine):
            rows.add_game(lines)
            progress(task, len(rows.lines))
            if rows.full:
                break
    return rows


def _all_games(log: GameLog, task: Task, request: Request, engine: EngineConfig | None) -> Iterator[list[str]]:
    """The games of the log, then new ones, which join it."""
    yield from log.games()
    with open_workers(request.processes, task, request.seed, engine) as connections:
        for lines in new_games(connections, log.finished):
            log.append(lines)
            yield lines


def _engine_header(config: EngineConfig, name: str) -> dict[str, str | int]:
    """What the labels depend on, besides the positions."""
    return {"engine": name, "depth": config.depth, "hash_mib": config.hash_mib}


def _engine_name(config: EngineConfig) -> str:
    try:
        with open_engine(config) as engine:
            return engine.id.get("name", "unknown")
    except (chess.engine.EngineError, TimeoutError) as error:
        raise WorkerError(f"expected a UCI engine, got {type(error).__name__} from {config}") from error


def _card(task: Task, rows: Rows, report: AuditReport) -> dict[str, object]:
    """What the rows are, counted anew from the file. Raises RuntimeError if a label is wrong."""
    if not report.is_clean:
        raise RuntimeError(f"expected clean rows, got {'; '.join(report.lines())}")
    colors = Counter(line.split(" ", 3)[2] for line in rows.lines)
    card: dict[str, object] = {
        "rows": len(rows.lines),
        "games": rows.games,
        "rows_by_color": {"white": colors["w"], "black": colors["b"]},
        "dropped": dict(rows.dropped),
    }
    if task is Task.policy:
        below = {"white": report.white.below_best, "black": report.black.below_best}
        return card | {"best_below_own_eval": below}
    rewards = Counter(line.split("+")[4] for line in rows.lines)
    return card | {"reward_classes": dict(sorted(rewards.items()))}

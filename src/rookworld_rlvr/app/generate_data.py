"""Rows for both tasks from numbered games, the same whatever the number of processes or interrupts.

Game k of a task depends on the task, the seed, the engine and k alone, and the games are read in the
order of their numbers.
"""

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import chess

from ..tasks.audit import audit
from ..tasks.audit_report import AuditReport
from ..tasks.corpus import example_key, split_line
from ..tasks.policy import MAX_CANDIDATES
from ..tasks.types import ParseFailure, Task
from ..training.run_folder import make_folder
from .game_log import GameLog, Header
from .game_workers import Game, Labelling, new_games, open_workers

CARD_FILE = "data_card.json"

Progress = Callable[[str, int], None]
"""Told a task and how many rows it has; first what it had before."""
# Part of what a log of games begins with: it rises when games or their labels are made otherwise.
GAMES_VERSION = 1


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be generated."""

    tasks: tuple[Task, ...]
    rows: int
    """Of each task."""
    seed: int
    labelling: Labelling
    """Of the policy task; the environment task needs none."""
    processes: int
    folder: Path
    """Gets `<task>.txt`, the data card, and the finished games under `games/`."""
    excluded: frozenset[str]
    """Positions (see `example_key`) that no row may begin from."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What came of a request."""

    card: Path
    restarts: int
    """Engine processes that were replaced. Not in the card: they change no row."""


def generate(request: Request, progress: Progress) -> Generated:
    """Writes every file of `request`, the data card last.

    A folder that holds finished games of the same seed and engine goes on from them. Raises
    EngineUnusableError, GameLogError, WorkerError or OSError.
    """
    engine = _engine_header(request.labelling) if Task.policy in request.tasks else {}
    make_folder(request.folder / "games", "--out")
    card: dict[str, object] = {
        "seed": request.seed,
        "python_chess": chess.__version__,
        **engine,
        "excluded_positions": len(request.excluded),
    }
    restarts = 0
    for task in request.tasks:
        rows = _generate_task(task, request, engine, progress)
        restarts += rows.restarts
        path = request.folder / f"{task}.txt"
        write_lines(path, rows.lines)
        card[task.value] = _card(task, rows, audit(path))
    write_lines(request.folder / CARD_FILE, [json.dumps(card, indent=2)])
    return Generated(request.folder / CARD_FILE, restarts)


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
    """The rows kept so far, in order, and why others were dropped; as many as there are unless so many are wanted."""

    def __init__(self, excluded: frozenset[str], wanted: float = math.inf) -> None:
        self.lines: list[str] = []
        self.dropped: Counter[str] = Counter(duplicate=0, excluded=0)
        self.games = self.restarts = 0
        self._wanted, self._excluded = wanted, excluded
        self._seen: set[str] = set()

    @property
    def full(self) -> bool:
        return len(self.lines) >= self._wanted

    def add_games(self, games: Iterator[Game], progress: Callable[[], None]) -> None:
        """The games' rows, until there are enough; `progress` is called behind each game."""
        while not self.full and (game := next(games, None)) is not None:
            self.games += 1
            self.restarts += game.restarts
            for line in game.lines:
                if not self.full:
                    self.add(line)
            progress()

    def add(self, line: str) -> None:
        """Keep a row unless its position is excluded or it is there already. Raises ValueError if it is none."""
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


def _generate_task(task: Task, request: Request, engine: Header, progress: Progress) -> Rows:
    labelling = request.labelling if task is Task.policy else None
    made = {"version": GAMES_VERSION, "python_chess": chess.__version__, **(engine if labelling else {})}
    header: Header = {"task": task.value, "seed": request.seed, **made}
    rows = Rows(request.excluded, request.rows)
    with GameLog(request.folder / "games" / f"{task}.jsonl", header) as log:
        rows.add_games(map(Game, log.games()), lambda: None)
        progress(task, len(rows.lines))
        with closing(_new_games(log, task, request, labelling)) as games:
            rows.add_games(games, lambda: progress(task, len(rows.lines)))
    return rows


def _new_games(
    log: GameLog, task: Task, request: Request, labelling: Labelling | None
) -> Generator[Game, None, None]:
    """Each joins the log first."""
    with open_workers(request.processes, task, request.seed, labelling) as connections:
        for game in new_games(connections, log.finished):
            log.append(game.lines)
            yield game


def _engine_header(labelling: Labelling) -> dict[str, str | int]:
    """What the labels depend on, besides the positions. Raises EngineUnusableError."""
    with closing(labelling.open()) as engine:
        name = engine.identity()
    limits = {name: value for name, value in asdict(labelling.limit).items() if value}
    return {"engine": name, **limits, "candidates": MAX_CANDIDATES, "hash_mib": labelling.engine.hash_mib}


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
        sides = {"white": report.white, "black": report.black}
        checked = {color: side.rows for color, side in sides.items()}
        # Against the board: the report is clean, so each of these mates is the best of its row.
        mates = {color: side.mates for color, side in sides.items()}
        return card | {"labels_checked": checked, "mates_in_one_best": mates}
    rewards = Counter(line.split("+")[4] for line in rows.lines)
    return card | {"reward_classes": dict(sorted(rewards.items()))}

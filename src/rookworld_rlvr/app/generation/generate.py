"""Rows for both tasks from numbered games, the same whatever the number of processes or interrupts.

Game k of a task depends on the task, the seed, the engine and k alone, and the games are read in the
order of their numbers. Positions are held out before anything else, by their identity alone, so that no row of either
task has a held-out position on the training side.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import chess

from ...board.positions import games_from_pgn, positions_from_file
from ...files import make_folder, write_lines
from ...provenance import digest
from ...stockfish.engine import HASH_MIB
from ...tasks.audit import audit
from ...tasks.audit_report import AuditReport
from ...tasks.transitions import TransitionSource, replayed
from ...tasks.types import Task
from .game_log import GameLog, Header
from .rows import Rows, made_of_move_evals, made_of_transition
from .workers import Game, Labelling, new_games, open_workers

CARD_FILE = "data_card.json"

Progress = Callable[[str, int], None]
"""Told a task and how many rows it has; first what it had before."""
# Part of what a log of games begins with: it rises when games or their labels are made otherwise.
GAMES_VERSION = 3
HELD_OUT, VERDICTS = "held_out_", "move_evals.tsv"
# Of the environment's rows, at most, those of the engine's games.
ENGINE_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be generated."""

    tasks: tuple[Task, ...]
    rows: int
    """Rows of each task."""
    seed: int
    labelling: Labelling
    """How policy rows are labelled; the environment task needs no labels."""
    processes: int
    folder: Path
    """Gets `<task>.txt`, `move_evals.tsv`, what is held out, the data card, and the finished games under `games/`."""
    excluded: frozenset[str]
    """Positions (see `example_key`) that no row may begin from."""
    held_out_fraction: float = 0.0
    """Share of the positions whose rows go to files of their own."""


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
        "given_games": len(request.labelling.given),
        "excluded_positions": len(request.excluded),
    }
    restarts = 0
    for task in request.tasks:
        rows = _generate_task(task, request, engine, progress)
        restarts += rows.restarts
        card[task.value] = _write_rows(request.folder, task, rows)
    write_lines(request.folder / CARD_FILE, [json.dumps(card, indent=2)])
    return Generated(request.folder / CARD_FILE, restarts)


def given_games(paths: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The FENs of games in files: a PGN's games, or one game for each position of a `.fen`, `.epd` or `.jsonl` file.

    Raises ValueError for a file that holds something else, OSError for one that cannot be read.
    """
    games: list[tuple[str, ...]] = []
    for path in paths:
        if path.endswith(".pgn"):
            played = ([game, *game.mainline()] for game in games_from_pgn(path))
            games += (tuple(node.board().fen() for node in nodes) for nodes in played)
        else:
            games += ((position.fen,) for position in positions_from_file(path))
    return tuple(games)


READERS = {Task.policy: made_of_move_evals, Task.environment: made_of_transition}


def _generate_task(task: Task, request: Request, engine: Header, progress: Progress) -> Rows:
    labelling = request.labelling if task is Task.policy else None
    made = {"version": GAMES_VERSION, "python_chess": chess.__version__, **(engine if labelling else {})}
    if labelling:
        made["given"] = digest("\n".join(fens) for fens in labelling.given)
    header: Header = {"task": task.value, "seed": request.seed, **made}
    rows = Rows(request.excluded, request.rows, request.held_out_fraction)
    if task is Task.environment:
        _add_given_games(rows, request)
        _add_engine_games(rows, request)
    with GameLog(request.folder / "games" / f"{task}.jsonl", header) as log:
        rows.add_games(map(Game, log.games()), READERS[task], lambda: None)
        progress(task, len(rows.made))
        with closing(_new_games(log, task, request, labelling)) as games:
            rows.add_games(games, READERS[task], lambda: progress(task, len(rows.made)))
    return rows


def _add_given_games(rows: Rows, request: Request) -> None:
    for number, fens in enumerate(request.labelling.given):
        for row in replayed(fens, random.Random(f"given-{request.seed}-{number}"), TransitionSource.given):
            if rows.full:
                return
            rows.add(made_of_transition(row.render()))


def _add_engine_games(rows: Rows, request: Request) -> None:
    """Transitions of the engine's games that the policy task has left in the folder, up to a share of the rows."""
    log = request.folder / "games" / f"{Task.policy}.jsonl"
    if Task.policy not in request.tasks or not log.is_file():
        return
    with log.open(encoding="utf-8") as games:
        next(games)
        for number, game in enumerate(games):
            fens = [fields[1] for fields in (line.split("\t") for line in json.loads(game)) if fields[0] == "engine"]
            for row in replayed(fens, random.Random(f"replayed-{request.seed}-{number}")) if fens else ():
                if len(rows.made) >= ENGINE_SHARE * request.rows:
                    return
                rows.add(made_of_transition(row.render()))


def _new_games(
    log: GameLog, task: Task, request: Request, labelling: Labelling | None
) -> Generator[Game, None, None]:
    """Each joins the log first."""
    with open_workers(request.processes, request.seed, labelling) as connections:
        for game in new_games(connections, log.finished):
            log.append(game.lines)
            yield game


def _write_rows(folder: Path, task: Task, rows: Rows) -> dict[str, object]:
    """The files of a task; returns its part of the card. Raises RuntimeError if a label is wrong."""
    path = folder / f"{task}.txt"
    write_lines(path, (row.line for row in rows.made))
    if task is Task.policy:
        write_lines(folder / VERDICTS, (row.verdict for row in rows.made))
    if rows.held_out:
        write_lines(folder / f"{HELD_OUT}{task}.txt", (row.line for row in rows.held_out))
        if task is Task.policy:
            write_lines(folder / f"{HELD_OUT}{VERDICTS}", (row.verdict for row in rows.held_out))
    return _card(task, rows, audit(path))


def _engine_header(labelling: Labelling) -> dict[str, str | int]:
    """What the labels depend on, besides the positions. Raises EngineUnusableError."""
    with closing(labelling.open()) as engine:
        name = engine.identity()
    limits = {name: value for name, value in asdict(labelling.limit).items() if value}
    return {"engine": name, **limits, "hash_mib": HASH_MIB}


def _card(task: Task, rows: Rows, report: AuditReport) -> dict[str, object]:
    """What the rows are, counted anew from the file. Raises RuntimeError if a label is wrong."""
    if not report.is_clean:
        raise RuntimeError(f"expected clean rows, got {'; '.join(report.lines())}")
    colors = Counter(row.line.split(" ", 3)[2] for row in rows.made)
    card: dict[str, object] = {
        "rows": len(rows.made),
        "held_out": len(rows.held_out),
        "games": rows.games,
        "rows_by_source": dict(sorted(Counter(row.source for row in rows.made).items())),
        "rows_by_color": {"white": colors["w"], "black": colors["b"]},
        "dropped": dict(rows.dropped),
    }
    if task is Task.policy:
        sides = {"white": report.white, "black": report.black}
        checked = {color: side.rows for color, side in sides.items()}
        # Against the board: the report is clean, so each of these mates is the best of its row.
        mates = {color: side.mates for color, side in sides.items()}
        return card | {"labels_checked": checked, "mates_in_one_best": mates}
    rewards = Counter(row.line.split("+")[4] for row in rows.made)
    return card | {"reward_classes": dict(sorted(rewards.items()))}

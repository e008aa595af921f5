"""Generation of rows of both tasks from numbered games. Interrupts and the number of processes do not change rows.

Game k of a task depends only on the task, the seed, the engine, the given games and k. Games are read in the order of
their numbers. A position is held out by its identity alone, so no training row has a held-out position.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import chess

from ..board.positions import GAMES_FILE, POSITION_TYPES, games_from_pgn, positions_from_file
from ..errors import prefixed
from ..files import file_type, make_folder, write_lines
from ..progress import OpenProgress
from ..provenance import digest
from ..stockfish.engine import HASH_MIB, Engine, EngineConfig
from ..stockfish.uci import Limit
from ..tasks.audit import AuditReport, audit
from .game_log import GameLog, Header
from .rows import CollectedRow, Rows, row_of_move_evals, row_of_transition
from .sources import Source
from .transitions import rows_from_positions
from .workers import Game, Labelling, new_games, open_workers

CARD_FILE = "data_card.json"

# Version in the header of a game log. Raise it when a change of the code changes games or their labels.
GAMES_VERSION = 10
HELD_OUT, MOVE_EVALS = "held_out_", "move_evals.tsv"
# Largest share of the environment task's rows that may come from the engine's games.
ENGINE_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Request:
    """Options of `rookworld data generate`."""

    tasks: tuple[str, ...]
    """Names of the tasks, of those in `GENERATED`."""
    rows: int
    """Number of training rows of each task; held-out rows are in addition."""
    seed: int
    engine: EngineConfig
    """Engine that labels the rows of the policy task. The environment task needs no engine."""
    limit: Limit
    """Limit of the engine's search of a position."""
    processes: int
    folder: Path
    """Folder of `<task>.txt`, `move_evals.tsv`, held-out files, the data card, and the logs of games in `games/`."""
    excluded: frozenset[str]
    """Identities (see `example_key`) of positions from which no row may begin."""
    held_out_fraction: float = 0.0
    """Share of the positions whose rows are written to the held-out files."""
    positions: tuple[str, ...] = ()
    """Files of games (`.pgn`) or positions (`.fen`, `.epd`, `.jsonl`, `.csv`), which are labelled first."""


def generate(request: Request, progress: OpenProgress) -> int:
    """Write all files of `request`, the data card last; return the number of engine processes that were replaced.

    Replacements change no row and are not in the card.

    Resumes from finished games in the folder, which must have the same seed, engine and given games. Raises UserError,
    ScorerError or OSError.
    """
    with prefixed("--positions", ValueError, OSError):
        labelling = Labelling(request.engine, request.limit, _given_games(request.positions))
    engine = _engine_header(labelling) if any(GENERATED[task].labelled for task in request.tasks) else {}
    make_folder(request.folder / "games", "--out")
    card: dict[str, object] = {
        "seed": request.seed,
        "python_chess": chess.__version__,
        **engine,
        "given_games": len(labelling.given),
        "excluded_positions": len(request.excluded),
    }
    restarts = 0
    for task in request.tasks:
        rows = _generate_task(task, request, labelling, engine, progress)
        restarts += rows.restarts
        with progress(f"audit of {task}", request.rows) as audited:
            card[task] = _write_rows(request.folder, task, rows, audited)
    write_lines(request.folder / CARD_FILE, [json.dumps(card, indent=2)])
    return restarts


def _given_games(paths: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the FENs of games in files: a PGN's games, parted at null moves; one game per position of other files.

    Raises ValueError for a file with other content, and OSError for a file that cannot be read.
    """
    games: list[tuple[str, ...]] = []
    for path in paths:
        if file_type(path) == GAMES_FILE:
            games += (part for game in games_from_pgn(path) for part in game.parts())
        elif file_type(path) not in POSITION_TYPES:
            raise ValueError(f"expected a file of type {', '.join((GAMES_FILE, *POSITION_TYPES))}, got {path}")
        else:
            games += ((fen,) for fen in positions_from_file(path))
    return tuple(games)


@dataclass(frozen=True, slots=True)
class Made:
    """Way in which the rows of a task are made from games."""

    read: Callable[[str], CollectedRow]
    """Function that reads a line of a game."""
    labelled: bool
    """Whether the engine labels them. Its evaluations are then written to a file of their own."""
    from_other_games: bool
    """Whether the given games, and the engine's games of a labelled task, come before new games."""


# The task whose games the engine plays.
LABELLED = "policy"
GENERATED = {
    LABELLED: Made(row_of_move_evals, labelled=True, from_other_games=False),
    "environment": Made(row_of_transition, labelled=False, from_other_games=True),
}


def _generate_task(task: str, request: Request, labelling: Labelling, engine: Header, progress: OpenProgress) -> Rows:
    made = GENERATED[task]
    settings: dict[str, str | int] = {"version": GAMES_VERSION, "python_chess": chess.__version__}
    if made.labelled:
        settings |= {**engine, "given": digest("\n".join(fens) for fens in labelling.given)}
    header: Header = {"task": task, "seed": request.seed, **settings}
    rows = Rows(request.excluded, request.rows, request.held_out_fraction)
    if made.from_other_games:
        _add_given_games(rows, request.seed, labelling.given)
        _add_engine_games(rows, request)
    with closing(GameLog(request.folder / "games" / f"{task}.jsonl", header)) as log:
        rows.add_games(map(Game, log.games()), made.read, lambda: None)
        new_games = _new_games(log, request, labelling if made.labelled else None)
        with closing(new_games) as games, progress(task, request.rows, start=len(rows.kept)) as show:
            rows.add_games(games, made.read, lambda: show(len(rows.kept)))
    return rows


def _add_given_games(rows: Rows, seed: int, given: Sequence[Sequence[str]]) -> None:
    for number, fens in enumerate(given):
        for row in rows_from_positions(fens, random.Random(f"given-{seed}-{number}"), Source.given):
            if rows.full:
                return
            rows.add(row_of_transition(row))


def _add_engine_games(rows: Rows, request: Request) -> None:
    """Add transitions of the engine's games, read from the policy task's log, up to ENGINE_SHARE of the rows."""
    log = request.folder / "games" / f"{LABELLED}.jsonl"
    if LABELLED not in request.tasks or not log.is_file():
        return
    with log.open(encoding="utf-8") as games:
        next(games)
        for number, game in enumerate(games):
            fens = [fields[1] for fields in (line.split("\t") for line in json.loads(game)) if fields[0] == "engine"]
            for row in rows_from_positions(fens, random.Random(f"replayed-{request.seed}-{number}")) if fens else ():
                if len(rows.kept) >= ENGINE_SHARE * request.rows:
                    return
                rows.add(row_of_transition(row))


def _new_games(log: GameLog, request: Request, labelling: Labelling | None) -> Generator[Game, None, None]:
    """Yield endless new games, as `open_workers` makes them; each is logged before it is yielded."""
    with open_workers(request.processes, request.seed, labelling) as connections:
        for game in new_games(connections, log.finished):
            log.append(game.lines)
            yield game


def _write_rows(folder: Path, task: str, rows: Rows, audited: Callable[[int], None]) -> dict[str, object]:
    """Write and audit a task's files; return its part of the data card. Raises RuntimeError if a label is wrong."""
    for prefix, some in (("", rows.kept), (HELD_OUT, rows.held_out)):
        files = {f"{prefix}{task}.txt": [row.line for row in some]}
        if GENERATED[task].labelled:
            files[f"{prefix}{MOVE_EVALS}"] = [row.move_evals for row in some]
        for name, lines in files.items():
            if lines:
                write_lines(folder / name, lines)
            else:
                # A file of an earlier call may have positions that are training rows now.
                (folder / name).unlink(missing_ok=True)
    return _card(task, rows, audit(folder / f"{task}.txt", progress=audited))


def _engine_header(labelling: Labelling) -> dict[str, str | int]:
    """Return all settings on which the label of a position depends. Raises EngineUnusableError."""
    with closing(Engine(labelling.engine)) as engine:
        name = engine.identity()
    limits = {name: value for name, value in asdict(labelling.limit).items() if value}
    return {"engine": name, **limits, "hash_mib": HASH_MIB}


def _card(task: str, rows: Rows, report: AuditReport) -> dict[str, object]:
    """Return the counts of the rows and of the file's audit. Raises RuntimeError if a label is wrong."""
    if not report.is_clean:
        raise RuntimeError(f"expected clean rows, got {'; '.join(report.lines())}")
    colors = Counter(row.line.split(" ", 3)[2] for row in rows.kept)
    return {
        "rows": len(rows.kept),
        "held_out": len(rows.held_out),
        "games": rows.games,
        "rows_by_source": dict(sorted(Counter(row.source for row in rows.kept).items())),
        "rows_by_color": {"white": colors["w"], "black": colors["b"]},
        "dropped": dict(rows.dropped),
        **report.tasks[task].card(),
    }

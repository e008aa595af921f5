"""Processes that play numbered games: worker k mod K plays game k, and the games are returned in order."""

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import chess

from ...rewards import ScorerError
from ...stockfish.engine import Engine, EngineConfig, engine_position
from ...stockfish.uci import Limit
from ...tasks.move_evals import Analyse, MoveEvals, render_move_evals
from ...tasks.sources import sourced_game
from ...tasks.transitions import TransitionSource, transition_game
from ...tasks.types import Task

# Games that each worker has in its queue, so that none waits while a long game holds up the order.
GAMES_AHEAD = 4


class WorkerError(RuntimeError):
    """A worker has died, or its engine failed on a position repeatedly; one line."""


@dataclass(frozen=True, slots=True)
class Labelling:
    """Engine that evaluates all legal moves, and the limit of its search."""

    engine: EngineConfig
    limit: Limit
    given: tuple[tuple[str, ...], ...] = ()
    """FENs of games from files: they are the first games, and their positions are labelled without playing."""

    def open(self) -> Engine:
        """Start an engine that evaluates every legal move. Raises EngineUnusableError."""
        return Engine(self.engine)


@dataclass(frozen=True, slots=True)
class Game:
    """A finished game."""

    lines: list[str]
    """Rows of the game: rendered move evaluations, or source, class and `A:` line, separated by tabs."""
    restarts: int = 0
    """Engine processes that were replaced while it was played."""


def transition_lines(seed: int, number: int) -> list[str]:
    """Rows of environment game `number`."""
    rng = random.Random(f"{Task.environment}-{seed}-{number}")
    return [row.render() for row in transition_game(rng)]


def move_evals_lines(seed: int, number: int, analyse: Analyse, given: Sequence[Sequence[str]] = ()) -> list[str]:
    """Rows of policy game `number`; the games of `given` come first."""
    if number < len(given):
        boards = (chess.Board(fen) for fen in given[number])
        live = (board for board in boards if any(board.legal_moves))
        evals = (MoveEvals(board.fen(), TransitionSource.given, analyse(board)) for board in live)
        return [render_move_evals(entry) for entry in evals]
    rng = random.Random(f"{Task.policy}-{seed}-{number - len(given)}")
    return [render_move_evals(entry) for entry in sourced_game(rng, analyse)]


def new_games(connections: list[Connection], first: int) -> Iterator[Game]:
    """Endless games in order, from number `first` on. Raises WorkerError."""
    number, queued = first, first
    try:
        while True:
            while queued < number + GAMES_AHEAD * len(connections):
                connections[queued % len(connections)].send(queued)
                queued += 1
            game = connections[number % len(connections)].recv()
            if isinstance(game, WorkerError):
                raise game
            yield game
            number += 1
    except (EOFError, ConnectionError) as error:
        raise WorkerError(f"expected game {number} of a worker, got none: it has died") from error


@contextmanager
def open_workers(count: int, seed: int, labelling: Labelling | None) -> Generator[list[Connection], None, None]:
    """Connections to `count` processes that play the games whose numbers they are sent.

    With `labelling` they play games of the policy task, else of the environment task.
    """
    # Forking a process that has threads, as a test's or a trainer's, may deadlock.
    context = multiprocessing.get_context("spawn")
    connections, processes = [], []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, seed, labelling), daemon=True)
            process.start()
            # Only the worker may hold its end of the pipe: otherwise its death would not be noticed.
            theirs.close()
            connections.append(ours)
            processes.append(process)
        yield connections
    finally:
        for process in processes:
            process.terminate()
        for connection in connections:
            connection.close()
        for process in processes:
            process.join()


def _work(connection: Connection, seed: int, labelling: Labelling | None) -> None:
    # The engine ends with its input, and that with us.
    _begin_worker()
    with suppress(EOFError, ConnectionError):
        if labelling is None:
            while True:
                connection.send(Game(transition_lines(seed, connection.recv())))
        with closing(labelling.open()) as engine:
            while True:
                connection.send(_labelled_game(seed, connection.recv(), engine, labelling))


def _labelled_game(seed: int, number: int, engine: Engine, labelling: Labelling) -> Game | WorkerError:
    restarts = engine.restarts

    def analyse(board: chess.Board) -> dict[str, float]:
        return dict(engine.analyse(engine_position(board.fen()), labelling.limit).lines)

    try:
        return Game(move_evals_lines(seed, number, analyse, labelling.given), engine.restarts - restarts)
    except ScorerError as error:
        return WorkerError(str(error))


def _begin_worker() -> None:
    """Leave Ctrl-C, which reaches all processes of a terminal, to the parent; end this worker when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Wait for the parent's end. No queue shows it, because every worker holds both ends, nor does a computation."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)

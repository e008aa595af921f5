"""Processes that play numbered games: worker k mod K plays game k, and the games come back in order."""

import multiprocessing
import random
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection

from ..rewards.engine import EngineConfig, label_position, open_engine
from ..tasks.generate import Labeller, environment_lines, guided_game, policy_line, start_board
from ..tasks.types import Task

# Games each worker has been told to play, so that none waits while a long game holds up the order.
GAMES_AHEAD = 4


class WorkerError(RuntimeError):
    """A worker or its engine has died; one line."""


def play_game(task: Task, seed: int, number: int, label: Labeller | None) -> list[str]:
    """The rows of game `number`; policy games need `label`."""
    rng = random.Random(f"{task}-{seed}-{number}")
    start = start_board(rng)
    if label is None:
        return list(environment_lines(rng, start))
    return [policy_line(rng, board, answer) for board, answer in guided_game(rng, start, label)]


def new_games(connections: list[Connection], first: int) -> Iterator[list[str]]:
    """Games from number `first` on, in order, without end."""
    number, told = first, first
    try:
        while True:
            while told < number + GAMES_AHEAD * len(connections):
                connections[told % len(connections)].send(told)
                told += 1
            yield connections[number % len(connections)].recv()
            number += 1
    except (EOFError, ConnectionError) as error:
        raise WorkerError(f"expected game {number} of a worker, got none: it has died") from error


@contextmanager
def open_workers(
    count: int, task: Task, seed: int, engine: EngineConfig | None
) -> Generator[list[Connection], None, None]:
    """Connections to `count` processes that play the games whose numbers they are sent."""
    # Forking a process that has threads, as a test's or a trainer's, may deadlock.
    context = multiprocessing.get_context("spawn")
    connections, processes = [], []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, task, seed, engine), daemon=True)
            process.start()
            # Only the worker may hold its end: else its death would go unnoticed.
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


def _work(connection: Connection, task: Task, seed: int, engine: EngineConfig | None) -> None:
    # Ctrl-C is the parent's to handle, which ends us; the engine inherits this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, ConnectionError), _labeller(engine) as label:
        while True:
            connection.send(play_game(task, seed, connection.recv(), label))


@contextmanager
def _labeller(config: EngineConfig | None) -> Generator[Labeller | None, None, None]:
    with open_engine(config) if config else nullcontext() as engine:
        depth = config.depth if config else 0
        yield (lambda board: label_position(engine, board, depth)) if engine else None

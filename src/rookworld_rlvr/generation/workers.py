"""Worker processes that play numbered games: worker k mod K plays game k, and games are returned in order."""

import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

import chess

from ..board.distance_to_mate import exact_evals
from ..errors import ScorerError
from ..stockfish.engine import Engine, EngineConfig, engine_position
from ..stockfish.move_evals import Analyse, MoveEvals, render_move_evals
from ..stockfish.uci import Limit
from .sources import Source, sourced_game
from .transitions import transition_game

# Games that each worker has in its queue, so that no worker is idle while an earlier, long game is still being played.
GAMES_AHEAD = 4
# A search to a given depth goes deeper where there are few pieces, kings included: mates there are further away, and
# there are fewer moves.
FEW_PIECES, DEEPER_PLIES = 5, 4


@dataclass(frozen=True, slots=True)
class Labelling:
    """Engine that evaluates all legal moves, and the limit of its search."""

    engine: EngineConfig
    limit: Limit
    given: Sequence[Sequence[str]] = ()
    """FENs of games from files, by game. They are the first games; their positions are only labelled."""


@dataclass(frozen=True, slots=True)
class Game:
    """A finished game."""

    lines: list[str]
    """Rows of the game: rendered move evaluations, or source, class and `A:` line, separated by tabs."""
    restarts: int = 0
    """Number of engine processes that were replaced during the game."""


def policy_game(seed: int, number: int, analyse: Analyse, given: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows of policy game `number`. The first games are those of `given`."""
    if number < len(given):
        boards = (chess.Board(fen) for fen in given[number])
        live = (board for board in boards if any(board.legal_moves))
        evals = (MoveEvals(board.fen(), Source.given, analyse(board)) for board in live)
        return [render_move_evals(entry) for entry in evals]
    rng = random.Random(f"policy-{seed}-{number - len(given)}")
    return [render_move_evals(entry) for entry in sourced_game(rng, analyse)]


def new_games(connections: list[Connection], first: int) -> Iterator[Game]:
    """Yield endless games in the order of their numbers, beginning with `first`.

    Raises ScorerError if a worker died, or if its engine failed on a position repeatedly.
    """
    number, queued = first, first
    try:
        while True:
            while queued < number + GAMES_AHEAD * len(connections):
                connections[queued % len(connections)].send(queued)
                queued += 1
            game = connections[number % len(connections)].recv()
            if isinstance(game, ScorerError):
                raise game
            yield game
            number += 1
    except (EOFError, ConnectionError) as error:
        raise ScorerError(f"expected game {number} of a worker, got none: it has died") from error


@contextmanager
def open_workers(count: int, seed: int, labelling: Labelling | None) -> Generator[list[Connection], None, None]:
    """Start `count` workers and yield a connection to each. A worker plays the games whose numbers it receives.

    With `labelling` the workers play games of the policy task, otherwise of the environment task.
    """
    # Forking a process that has threads may deadlock.
    context = multiprocessing.get_context("spawn")
    connections, processes = [], []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, seed, labelling), daemon=True)
            process.start()
            # Only the worker may have its end of the pipe open; otherwise its death would not be noticed.
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
    # The terminal sends Ctrl-C to all processes. Only the parent handles it, and this worker ends when the parent ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_when_parent_ends, daemon=True).start()
    # The engine ends when its input is closed, that is when this process ends.
    with suppress(EOFError, ConnectionError):
        if labelling is None:
            while True:
                rng = random.Random(f"environment-{seed}-{connection.recv()}")
                connection.send(Game(list(transition_game(rng))))
        with closing(Engine(labelling.engine)) as engine:
            while True:
                connection.send(_labelled_game(seed, connection.recv(), engine, labelling))


def _labelled_game(seed: int, number: int, engine: Engine, labelling: Labelling) -> Game | ScorerError:
    restarts = engine.restarts

    def analyse(board: chess.Board) -> dict[str, float]:
        if exact := exact_evals(board):
            return exact
        return dict(engine.analyse(engine_position(board.fen()), limit_of(board, labelling.limit)).lines)

    try:
        return Game(policy_game(seed, number, analyse, labelling.given), engine.restarts - restarts)
    except ScorerError as error:
        return error


def limit_of(board: chess.Board, limit: Limit) -> Limit:
    """Return the limit of a search of this position, deeper where few pieces are left."""
    few = limit.depth and chess.popcount(board.occupied) <= FEW_PIECES
    return replace(limit, depth=limit.depth + DEEPER_PLIES) if few else limit


def _exit_when_parent_ends() -> None:
    """Exit when the parent ends. A worker that is playing a game does not read its pipe and would not notice."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)

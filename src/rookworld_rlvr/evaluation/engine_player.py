"""Stockfish as a player, at full or limited strength."""

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass

import chess
import chess.engine

from ..rollout.generator import GeneratorError
from ..stockfish.engine import find_engine, require_new_enough
from .players import RandomPlayer

FULL_SKILL = 20
HASH_MIB = 16
# Attempts at one move, and the time limit of a search in seconds. A search normally ends earlier, by its nodes.
ATTEMPTS, HUNG_S = 3, 60.0


@dataclass(slots=True)
class StrengthConfig:
    """Search and limits of strength of a Stockfish opponent."""

    nodes: int = 1000
    """Number of positions (nodes) that it searches for a move."""
    elo: int = 0
    """Stockfish's own limit of strength in Elo (UCI_Elo). 0: no limit. A limited Stockfish makes different mistakes in
    every run. The limit was calibrated at a time per move, so with few nodes the opponent is weaker than this Elo."""
    skill: int = 0
    """Stockfish's Skill Level, from 0 (weakest) to 20 (no limit). A level below 20 also varies from run to run. Ignored
    if elo is set."""
    random_moves: float = 0.0
    """Share of its moves that are replaced by a random legal move, seeded. It makes an opponent for models that are
    weaker than the weakest Stockfish. At 1 all moves are random."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.elo < 0 or not 0 <= self.skill <= FULL_SKILL or not 0 <= self.random_moves <= 1:
            raise ValueError(
                "expected an opponent's nodes from 1, elo from 0, skill from 0 to 20 and random_moves from 0 to 1, "
                f"got {self}"
            )


@dataclass(slots=True)
class OpponentConfig(StrengthConfig):
    """A Stockfish opponent."""

    path: str = ""
    """Stockfish binary. Empty: STOCKFISH_PATH if it is set, otherwise a binary on the PATH or in /usr/games."""
    depth: int = 0
    """Plies that it searches, instead of `nodes`. 0: `nodes` is the limit."""


class EnginePlayer:
    """A player that asks Stockfish for each move, without the results of earlier searches.

    So a choice at full strength depends only on the moves of its game. A process that dies or hangs is replaced, and
    the move is requested again.
    """

    def __init__(self, config: OpponentConfig, seed: int = 0) -> None:
        """Start the process. Raises EngineUnusableError, or ValueError if it is not a UCI engine like Stockfish."""
        self._config, self._seed = config, seed
        self._random = RandomPlayer(seed)
        self._binary = find_engine(config.path)
        nodes = None if config.depth else config.nodes
        self._limit = chess.engine.Limit(nodes=nodes, depth=config.depth or None, time=HUNG_S)
        self.engine = self._open()

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`. Raises GeneratorError if all attempts at a move fail."""
        return [self._move(board, number) for board, number in zip(boards, numbers, strict=True)]

    def close(self) -> None:
        self.engine.close()

    def _move(self, board: chess.Board, number: int) -> str:
        if random.Random(f"engine:{self._seed}:{number}:{board.fen()}").random() < self._config.random_moves:
            return self._random.choose([board], [number])[0]
        failure: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                move = self.engine.play(board, self._limit, game=object()).move
                return move.uci() if move else ""
            except (chess.engine.EngineError, TimeoutError) as error:
                failure = error
            self.close()
            try:
                self.engine = self._open()
            except (ValueError, OSError) as error:
                failure = error
        raise GeneratorError(f"expected a move of {self._binary} in {board.fen()}, got {failure!r}") from failure

    def _open(self) -> chess.engine.SimpleEngine:
        """Start and configure the engine.

        Raises ValueError if it is another kind of engine or lacks the options, OSError if it cannot be run.
        """
        try:
            engine = chess.engine.SimpleEngine.popen_uci(self._binary)
            try:
                require_new_enough(engine.id.get("name", ""), self._binary)
                engine.configure({"Threads": 1, "Hash": HASH_MIB, **_strength(engine, self._config)})
            except BaseException:
                engine.close()
                raise
        except (chess.engine.EngineError, TimeoutError) as error:
            raise ValueError(f"expected a UCI engine like Stockfish, got {self._binary}: {error!r}") from error
        return engine


def engine_player(config: OpponentConfig, seed: int = 0) -> AbstractContextManager[EnginePlayer]:
    """Return an EnginePlayer as a context manager that ends its process."""
    return closing(EnginePlayer(config, seed))


def _strength(engine: chess.engine.SimpleEngine, config: OpponentConfig) -> dict[str, bool | int]:
    """Return the UCI options that limit the strength. Raises ValueError for an Elo that the engine does not offer."""
    options: dict[str, bool | int] = {}
    if config.elo:
        supported = engine.options.get("UCI_Elo")
        lowest, highest = (supported.min or 0, supported.max or 0) if supported else (0, 0)
        if not lowest <= config.elo <= highest:
            raise ValueError(f"elo: expected {lowest} to {highest} of {engine.id.get('name')}, or 0, got {config.elo}")
        options = {"UCI_LimitStrength": True, "UCI_Elo": config.elo}
    elif config.skill < FULL_SKILL:
        options["Skill Level"] = config.skill
    return options

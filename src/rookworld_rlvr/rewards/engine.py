"""Stockfish as a labeller: candidates, evals and best move of a position."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import chess
import chess.engine

from ..board.evals import mover_pawns
from ..tasks.policy import MAX_CANDIDATES
from ..tasks.types import PolicyAnswer

# Debian installs the binary here, which is not on root's PATH.
DEBIAN_PATH = Path("/usr/games/stockfish")


class EngineNotFoundError(ValueError):
    """No engine where one was asked for."""


@dataclass(slots=True)
class EngineConfig:
    """How the engine looks at a position."""

    path: str = ""
    """The binary; empty: STOCKFISH_PATH, the PATH, then Debian's place."""
    depth: int = 6
    """Search depth in half-moves."""
    hash_mib: int = 1
    """Small, as it is cleared before every position and a shallow search does not fill it."""


def find_engine(path: str = "") -> str:
    """The engine's binary. Raises EngineNotFoundError with the line that installs one."""
    wanted = path or os.environ.get("STOCKFISH_PATH", "")
    if wanted and not Path(wanted).is_file():
        raise EngineNotFoundError(f"expected an engine's binary, got {wanted!r}: no such file")
    found = wanted or shutil.which("stockfish") or (str(DEBIAN_PATH) if DEBIAN_PATH.is_file() else "")
    if not found:
        raise EngineNotFoundError("expected Stockfish, found none: apt-get install stockfish, or set STOCKFISH_PATH")
    return found


@contextmanager
def open_engine(config: EngineConfig) -> Iterator[chess.engine.SimpleEngine]:
    """A single-threaded engine process, closed on exit."""
    engine = chess.engine.SimpleEngine.popen_uci(find_engine(config.path))
    try:
        engine.configure({"Threads": 1, "Hash": config.hash_mib})
        yield engine
    finally:
        engine.quit()


def label_position(engine: chess.engine.SimpleEngine, board: chess.Board, depth: int) -> PolicyAnswer:
    """The engine's best candidates, best first, with evals in pawns from the mover's view.

    Each call is a new game to the engine, so a label does not depend on what was asked before.
    Raises ValueError if the position has no legal move.
    """
    if not any(board.generate_legal_moves()):
        raise ValueError(f"expected a position with a legal move, got {board.fen()!r}")
    lines = engine.analyse(board, chess.engine.Limit(depth=depth), multipv=MAX_CANDIDATES, game=object())
    moves = tuple(line["pv"][0].uci() for line in lines)
    evals = tuple(mover_pawns(line["score"], board.turn) for line in lines)
    return PolicyAnswer(moves, evals, moves[evals.index(max(evals))])

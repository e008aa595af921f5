"""Adjudication of games that reached the ply limit, by Stockfish's evaluation of the last position or by material.

Weak players win pieces and seldom mate, so that without adjudication nearly all of their games would count as drawn.
A win is a lead of more than 100 centipawns, as in published matches of chess language models
(github.com/adamkarvonen/chess_gpt_eval), or of at least three pawns of material.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace

import chess

from ..board.evals import material_balance
from ..stockfish.engine import Engine, EngineConfig, EngineUnusableError, engine_position
from ..stockfish.uci import Limit
from .games import Adjudicator, End, PlayedGame

WIN_PAWNS = 1.0
WIN_MATERIAL_PAWNS = 3
# Nodes that Stockfish searches for a last position. A fixed number gives the same result on every machine.
NODES = 20_000


@dataclass(frozen=True, slots=True)
class Referee:
    """A referee that adjudicates games by its engine, or by material if it has none."""

    engine: Engine | None = None
    name: str = "material"
    """The engine's name and nodes, or `material`."""
    reason: str = ""
    """Reason in one line if no engine could be opened; otherwise empty."""

    def adjudicate(self, games: Sequence[PlayedGame]) -> list[PlayedGame]:
        """Return the games in order. Those that reached the ply limit have an adjudicator and, unless drawn, a winner.

        Raises ScorerError if the engine fails.
        """
        return [self._adjudicated(game) if game.end is End.ply_limit else game for game in games]

    def _adjudicated(self, game: PlayedGame) -> PlayedGame:
        if self.engine is None:
            return replace(game, adjudicator=Adjudicator.material, winner=material_winner(game.board))
        return replace(game, adjudicator=Adjudicator.engine, winner=engine_winner(self.engine, game.board))


OpenReferee = Callable[[], AbstractContextManager[Referee]]


def by_material() -> AbstractContextManager[Referee]:
    """Return a context manager of a referee without an engine."""
    return nullcontext(Referee())


@contextmanager
def open_referee(config: EngineConfig) -> Iterator[Referee]:
    """Open a referee with the configured Stockfish. If it does not work, use material and set the referee's reason."""
    try:
        engine = Engine(config, lines=1)
        referee = Referee(engine, f"{engine.identity()}, {NODES} nodes")
    except EngineUnusableError as error:
        yield Referee(reason=str(error))
        return
    with closing(engine):
        yield referee


def material_winner(board: chess.Board) -> chess.Color | None:
    """Return the side that leads by three pawns of material or more; None if neither does.

    >>> material_winner(chess.Board("4k3/8/8/8/8/8/8/2B1K3 w - - 0 1"))
    True
    """
    lead = material_balance(board, chess.WHITE)
    return lead > 0 if abs(lead) >= WIN_MATERIAL_PAWNS else None


def engine_winner(engine: Engine, board: chess.Board) -> chess.Color | None:
    """Return the side that leads by more than 100 centipawns in the engine's evaluation; None if neither does.

    The position must have a legal move, so the game must not be over by rule. Raises ScorerError if the engine fails.
    """
    [(_, pawns)] = engine.analyse(engine_position(board.fen()), Limit(nodes=NODES)).lines
    return (pawns > 0) is board.turn if abs(pawns) > WIN_PAWNS else None

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
from ..errors import ScorerError
from ..stockfish.engine import Engine, EngineConfig, EngineUnusableError, engine_position
from ..stockfish.uci import Limit
from .games import Adjudicator, End, PlayedGame

WIN_PAWNS = 1.0
WIN_MATERIAL_PAWNS = 3
# Nodes that Stockfish searches for a last position. A fixed number gives the same result on every machine.
NODES = 20_000


@dataclass(slots=True)
class Referee:
    """A referee that adjudicates games by its engine, or by material if it has none or, if forgiving, if it fails."""

    engine: Engine | None = None
    name: str = "material"
    """The engine's name and nodes, or `material`."""
    reason: str = ""
    """Reason in one line if no engine could be opened, or if it failed; otherwise empty."""
    forgiving: bool = False
    """Adjudicate by material from the game on at which the engine fails."""
    _by_engine: int = 0
    """Number of games that the engine has adjudicated."""

    def adjudicate(self, games: Sequence[PlayedGame]) -> list[PlayedGame]:
        """Return the games in order. Those that reached the ply limit have an adjudicator and, unless drawn, a winner.

        Raises ScorerError if the engine fails and the referee is not forgiving.
        """
        return [self._adjudicated(game) if game.end is End.ply_limit else game for game in games]

    def _adjudicated(self, game: PlayedGame) -> PlayedGame:
        if self.engine is None:
            return replace(game, adjudicator=Adjudicator.material, winner=material_winner(game.board))
        try:
            winner = engine_winner(self.engine, game.board)
        except ScorerError as error:
            if not self.forgiving:
                raise
            self.engine, self.reason = None, str(error)
            self.name = f"{self.name}; material after {self._by_engine} games" if self._by_engine else "material"
            return self._adjudicated(game)
        self._by_engine += 1
        return replace(game, adjudicator=Adjudicator.engine, winner=winner)


OpenReferee = Callable[[], AbstractContextManager[Referee]]


def by_material() -> AbstractContextManager[Referee]:
    """Return a context manager of a referee without an engine."""
    return nullcontext(Referee())


@contextmanager
def open_referee(config: EngineConfig, *, forgiving: bool = False) -> Iterator[Referee]:
    """Open a referee with the configured Stockfish. If it does not work, use material and set the referee's reason.

    A `forgiving` referee does so, too, if the engine fails in a search.
    """
    try:
        engine = Engine(config, lines=1)
        referee = Referee(engine, f"{engine.identity()}, {NODES} nodes", forgiving=forgiving)
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

"""Games against Stockfish: the suite `engine_match`, where an illegal move loses."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import chess

from .games import End, PlayedGame
from .paired_games import paired_suite
from .players import DecodingConfig, OpponentConfig, Player
from .suite import Suite, SuiteName

# A chunk: a stop loses no more pairs than this, and a progress bar moves.
PAIRS_SIDE_BY_SIDE = 8


@dataclass(slots=True)
class EngineMatchConfig:
    """How many games, how long, against whom."""

    pairs: int = 32
    """Openings, each played with both colours."""
    max_plies: int = 300
    """A game is cut there and counts as drawn."""
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """Greedy: its best play."""
    opponent: OpponentConfig = field(default_factory=OpponentConfig)
    pgn: str = ""
    """A file that the games are written to, refused where it holds others; empty: none."""

    def __post_init__(self) -> None:
        if self.pairs < 0 or self.max_plies < 1:
            raise ValueError(
                f"engine_match: expected pairs from 0 and max_plies from 1, got {self.pairs} and "
                f"{self.max_plies}"
            )


def engine_match_suite(
    player: Player,
    opponent: Callable[[], AbstractContextManager[Player]],
    config: EngineMatchConfig,
    *,
    seed: int = 0,
    names: tuple[str, str] = ("model", "engine"),
    facts: Mapping[str, Any] | None = None,
) -> Suite:
    """See `paired_suite`; rows also have `engine_match/illegal`, games lost by an illegal move of the player's."""
    return paired_suite(
        SuiteName.engine_match,
        player,
        opponent,
        pairs=range(config.pairs),
        max_plies=config.max_plies,
        side_by_side=PAIRS_SIDE_BY_SIDE,
        told=lost_by_illegal,
        seed=seed,
        names=names,
        facts=facts,
    )


def lost_by_illegal(as_white: PlayedGame, as_black: PlayedGame) -> dict[str, float]:
    """The share of a pair's games that the player lost by an illegal move."""
    games = ((as_white, chess.WHITE), (as_black, chess.BLACK))
    return {"illegal": sum(game.end is End.illegal_move and game.winner is not color for game, color in games) / 2}

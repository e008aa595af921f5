"""Games against Stockfish from paired openings: each opening twice, with both colours; the difference in Elo."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import chess

from ..board.openings import OPENINGS
from .games import End, Pairing, PlannedGame, PlayedGame, Start, pgn_text, play
from .intervals import mean_interval
from .players import DecodingConfig, OpponentConfig, Player
from .suite import Suite, SuiteName, by_chunks
from .table import Measure, Row

# A chunk: a stop loses no more pairs than this, and a progress bar moves.
PAIRS_SIDE_BY_SIDE = 8
ELO_SCALE = 400.0
SCORE = "engine_match/score"


@dataclass(slots=True)
class EngineMatchConfig:
    """How many games, how long, against whom."""

    pairs: int = 32
    """Openings, each played with both colours; at most as many as there are in `board.openings`."""
    max_halfmoves: int = 300
    """A game is cut there and counts as drawn."""
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """Greedy: its best play."""
    opponent: OpponentConfig = field(default_factory=OpponentConfig)
    pgn: str = ""
    """A file that the games are written to, refused where it holds others; empty: none."""

    def __post_init__(self) -> None:
        if not 0 <= self.pairs <= len(OPENINGS) or self.max_halfmoves < 1:
            raise ValueError(
                f"engine_match: expected 0 to {len(OPENINGS)} pairs and max_halfmoves from 1, "
                f"got {self.pairs} and {self.max_halfmoves}"
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
    """A row a pair of games, with both as its record; those of a chunk are played side by side.

    The opponent is opened when the rows are asked for. The seed decides which openings, `names` are the player's and
    the opponent's in records.
    Values, means of a pair's two games: `engine_match/score`, 1 won, ½ drawn; `/won`, `/drawn`, `/lost`; `/illegal`,
    lost by an illegal move of the player's.
    """

    def answer(other: Player, first: int, chunk: Sequence[Any]) -> list[Row]:
        sides = ((player, other), (other, player))
        pairings = [Pairing(2 * pair.number + i, pair.board(), *two) for pair in chunk for i, two in enumerate(sides)]
        games = play(pairings, config.max_halfmoves)
        records = [_record(game, names) for game in games]
        return [
            Row(pair.number, pair, _values(*games[2 * i : 2 * i + 2]), "".join(records[2 * i : 2 * i + 2]))
            for i, pair in enumerate(chunk)
        ]

    def rows(done: int) -> Iterator[list[Row]]:
        with opponent() as other:
            yield from by_chunks(asked, PAIRS_SIDE_BY_SIDE, partial(answer, other))(done)

    asked = [PlannedGame(pair, Start.openings, seed) for pair in range(config.pairs)]
    return Suite(
        SuiteName.engine_match, asked, rows, PAIRS_SIDE_BY_SIDE, facts or {}, measures=engine_match_measures
    )


def _record(game: PlayedGame, names: tuple[str, str]) -> str:
    """The player has White in games of an even number."""
    white, black = names if game.number % 2 == 0 else names[::-1]
    return pgn_text(game, {"Event": SuiteName.engine_match.value, "White": white, "Black": black})


def _values(as_white: PlayedGame, as_black: PlayedGame) -> dict[str, float]:
    scores = (as_white.score(chess.WHITE), as_black.score(chess.BLACK))
    illegal = (_illegal(as_white, chess.WHITE), _illegal(as_black, chess.BLACK))
    return {
        SCORE: sum(scores) / 2,
        f"{SCORE}/white": scores[0],
        f"{SCORE}/black": scores[1],
        "engine_match/won": scores.count(1.0) / 2,
        "engine_match/drawn": scores.count(0.5) / 2,
        "engine_match/lost": scores.count(0.0) / 2,
        "engine_match/illegal": sum(illegal) / 2,
    }


def _illegal(game: PlayedGame, color: chess.Color) -> bool:
    return game.end is End.illegal_move and game.winner is not color


def engine_match_measures(rows: Sequence[Row]) -> dict[str, Measure]:
    """`engine_match/elo`: the player's Elo less the opponent's.

    It is the logistic one of the mean score; its interval is that of the score carried over, whose variance is
    that of the pairs' scores, so that what an opening gives to one colour cancels. Where every game was lost the
    difference is minus infinity, where every game was won infinity, and the other end that of Wilson's interval with
    a pair as one trial (see `mean_interval`). No rows give no keys.
    """
    scores = [row.values[SCORE] for row in rows]
    if not scores:
        return {}
    value, low, high = map(elo, mean_interval(scores, 0.0, 1.0))
    return {"engine_match/elo": Measure(value, low, high, len(scores))}


def elo(score: float) -> float:
    """The difference in Elo of an expected score; infinite at 0 and 1.

    >>> elo(0.5), round(elo(0.75), 1), elo(0.0)
    (0.0, 190.8, -inf)
    """
    if score in (0.0, 1.0):
        return math.copysign(math.inf, score - 0.5)
    return ELO_SCALE * math.log10(score / (1 - score))

"""Games against Stockfish from paired openings: each opening twice, with both colours; the difference in Elo."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import chess

from ..board.openings import OPENINGS
from .games import End, Pairing, PlayedGame, Start, play
from .intervals import mean_interval, wilson_interval
from .players import DecodingConfig, OpponentConfig, Player
from .table import Measure, Row

PAIRS_SIDE_BY_SIDE = 32
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
    """A file that the games are added to; empty: none."""

    def __post_init__(self) -> None:
        if not 0 <= self.pairs <= len(OPENINGS) or self.max_halfmoves < 1:
            raise ValueError(
                f"engine_match: expected 0 to {len(OPENINGS)} pairs and max_halfmoves from 1, "
                f"got {self.pairs} and {self.max_halfmoves}"
            )


def engine_match(
    player: Player,
    opponent: Player,
    config: EngineMatchConfig,
    *,
    seed: int = 0,
    done: int = 0,
    on_games: Callable[[Sequence[PlayedGame]], None] = lambda games: None,
) -> Iterator[list[Row]]:
    """Every pair of games behind the first `done`, a row each; those of a chunk are played side by side.

    The seed decides which openings. `on_games` gets the games as played, the player's White before its Black.
    Values, means of a pair's two games: `engine_match/score`, 1 won, ½ drawn; `/won`, `/drawn`, `/lost`; `/illegal`,
    lost by an illegal move of the player's.
    """
    for start in range(done, config.pairs, PAIRS_SIDE_BY_SIDE):
        pairs = range(start, min(start + PAIRS_SIDE_BY_SIDE, config.pairs))
        boards = [Start.openings.board(pair, seed) for pair in pairs]
        pairings = [
            Pairing(2 * pair + second, board, white, black)
            for pair, board in zip(pairs, boards, strict=True)
            for second, (white, black) in enumerate(((player, opponent), (opponent, player)))
        ]
        games = play(pairings, config.max_halfmoves)
        on_games(games)
        yield [
            Row(pair, board.fen(), _values(*two))
            for pair, board, two in zip(pairs, boards, zip(games[::2], games[1::2], strict=True), strict=True)
        ]


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
    """`engine_match/elo`: the player's Elo less the opponent's, and the score again, with an interval that holds.

    Elo is the logistic one of the mean score; its interval is that of the score carried over, whose variance is
    that of the pairs' scores, so that what an opening gives to one colour cancels. Where every game was lost the
    difference is minus infinity, where every game was won infinity; the spread says nothing then, and the other end
    is that of Wilson's interval with a pair as one trial. No rows give no keys.
    """
    scores = [row.values[SCORE] for row in rows]
    if not scores:
        return {}
    found = mean_interval(scores, 0.0, 1.0)
    if found[0] in (0.0, 1.0):
        found = (found[0], *wilson_interval(int(found[0]) * len(scores), len(scores)))
    value, low, high = map(elo, found)
    return {"engine_match/elo": Measure(value, low, high, len(scores)), SCORE: Measure(*found, len(scores))}


def elo(score: float) -> float:
    """The difference in Elo of an expected score; infinite at 0 and 1.

    >>> elo(0.5), round(elo(0.75), 1), elo(0.0)
    (0.0, 190.8, -inf)
    """
    if score in (0.0, 1.0):
        return math.copysign(math.inf, score - 0.5)
    return ELO_SCALE * math.log10(score / (1 - score))

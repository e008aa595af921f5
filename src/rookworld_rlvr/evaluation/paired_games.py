"""Games of two players from paired openings, each opening with both colours; the difference in Elo."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import chess

from .games import End, Pairing, PlannedGame, PlayedGame, Start, pgn_text, play
from .intervals import mean_interval
from .players import Player
from .suite import Suite, SuiteName, by_chunks
from .table import Measure, Row

ELO_SCALE = 400.0

Told = Callable[[PlayedGame, PlayedGame], Mapping[str, float]]
"""What else a row says of a pair of games, the first with White: values by name, without the suite's."""


def paired_suite(
    suite: SuiteName,
    player: Player,
    opponent: Callable[[], AbstractContextManager[Player]],
    *,
    pairs: Sequence[int],
    max_plies: int,
    side_by_side: int,
    told: Told,
    seed: int = 0,
    names: tuple[str, str],
    facts: Mapping[str, Any] | None = None,
) -> Suite:
    """A row a pair of games, with both as its record; `pairs` are the numbers of their openings.

    `side_by_side` pairs are played at once. The opponent is opened when the rows are asked for. The seed decides which
    openings, `names` are the player's and the opponent's in records.

    Values, means of a pair's two games: `<suite>/score`, 1 won, ½ drawn; `/won`, `/drawn`, `/lost`; `/cut`, ended by
    `max_plies`; `/material_score`, where a game that was cut goes to the side with more material; and those of
    `told`.
    """

    def answer(other: Player, first: int, chunk: Sequence[Any]) -> list[Row]:
        sides = ((player, other), (other, player))
        pairings = [Pairing(2 * pair.number + i, pair.board(), *two) for pair in chunk for i, two in enumerate(sides)]
        games = play(pairings, max_plies)
        found = []
        for pair, as_white, as_black in zip(chunk, games[::2], games[1::2], strict=True):
            values = {f"{suite}/{name}": value for name, value in told(as_white, as_black).items()}
            record = _record(as_white, suite, names) + _record(as_black, suite, names)
            found.append(Row(pair.number, pair, _scores(suite, as_white, as_black) | values, record))
        return found

    def rows(done: int) -> Iterator[list[Row]]:
        with opponent() as other:
            yield from by_chunks(asked, side_by_side, partial(answer, other))(done)

    asked = [PlannedGame(pair, Start.openings, seed) for pair in pairs]
    return Suite(suite, asked, rows, side_by_side, facts or {}, measures=partial(elo_measures, suite))


def _record(game: PlayedGame, suite: SuiteName, names: tuple[str, str]) -> str:
    """The player has White in games of an even number."""
    white, black = names if game.number % 2 == 0 else names[::-1]
    return pgn_text(game, {"Event": suite.value, "White": white, "Black": black})


def _scores(suite: SuiteName, as_white: PlayedGame, as_black: PlayedGame) -> dict[str, float]:
    scores = (as_white.score(chess.WHITE), as_black.score(chess.BLACK))
    by_material = (as_white.material_score(chess.WHITE), as_black.material_score(chess.BLACK))
    return {
        f"{suite}/score": sum(scores) / 2,
        f"{suite}/score/white": scores[0],
        f"{suite}/score/black": scores[1],
        f"{suite}/won": scores.count(1.0) / 2,
        f"{suite}/drawn": scores.count(0.5) / 2,
        f"{suite}/lost": scores.count(0.0) / 2,
        f"{suite}/cut": [as_white.end, as_black.end].count(End.cut) / 2,
        f"{suite}/material_score": sum(by_material) / 2,
    }


def elo_measures(suite: SuiteName, rows: Sequence[Row]) -> dict[str, Measure]:
    """`<suite>/elo`: the player's Elo less the opponent's.

    It is the logistic difference of the mean score, and its interval is the interval of that score, converted in the
    same way. The variance is that of the pairs' scores, so that an opening's advantage for one colour cancels. If every
    game was lost the difference is minus infinity, if every game was won it is infinity; the other end is then that of
    Wilson's interval with a pair as one trial (see `mean_interval`). Without rows there are no keys.
    """
    scores = [row.values[f"{suite}/score"] for row in rows]
    if not scores:
        return {}
    value, low, high = map(elo, mean_interval(scores, 0.0, 1.0))
    return {f"{suite}/elo": Measure(value, low, high, len(scores))}


def elo(score: float) -> float:
    """The difference in Elo of an expected score; infinite at 0 and 1.

    >>> elo(0.5), round(elo(0.75), 1), elo(0.0)
    (0.0, 190.8, -inf)
    """
    if score in (0.0, 1.0):
        return math.copysign(math.inf, score - 0.5)
    return ELO_SCALE * math.log10(score / (1 - score))

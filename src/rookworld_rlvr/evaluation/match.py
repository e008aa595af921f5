"""The suite `match`: pairs of games of a model against another model, a simple rule or Stockfish.

In a pair the two players play the same opening twice, each once with White. Games that reach the ply limit are
adjudicated. All statistics use the variance of the pairs' scores, so that an opening's advantage for one colour
cancels. A pair's score is the mean of its two games: 0, ¼, ½, ¾ or 1. The pentanomial counts are the numbers of pairs
with each score. Source: Vandenbergh, Normalised Elo (cantate.be/Fishtest/normalized_elo_practical.pdf); fastchess,
`pentanomial`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from statistics import NormalDist, stdev
from typing import Any

import chess

from .adjudication import OpenReferee, Referee, by_material
from .config import EvaluationBaseConfig
from .engine_player import OpponentConfig, StrengthConfig, engine_player
from .games import Adjudicator, End, Pairing, PlannedGame, PlayedGame, Start, pgn_text, play
from .intervals import EQUALITY_TOLERANCE, Z_95, mean_interval
from .players import (
    CapturePlayer,
    DecodingConfig,
    ExchangePlayer,
    Player,
    RandomPlayer,
    RetryingPlayer,
    published_decoding,
)
from .suite import Suite, SuiteName, by_chunks
from .table import Measure, Row

# Opponent of a match that is Stockfish.
STOCKFISH = "stockfish"
# Pairs that are played at once. A model samples the moves of both games of every pair in one batch.
PAIRS_SIDE_BY_SIDE = 100
# Pairs in a chunk against an engine, which moves in one game at a time. An interruption loses at most one chunk.
ENGINE_PAIRS_SIDE_BY_SIDE = 8
# Offset of the opponent's seed from the player's. Each side retries after an illegal move with its seed plus 1.
OPPONENT_SEED = 1000
ELO_SCALE = 400.0
# Normalised Elo per standard deviation of one game. Near an even score it equals Elo if no game is drawn.
NORMALISED_SCALE = 2 * ELO_SCALE / math.log(10)
PAIR_SCORES = (0.0, 0.25, 0.5, 0.75, 1.0)
ENDINGS = (*(end.value for end in End if end is not End.ply_limit), *(each.value for each in Adjudicator))


class IllegalRule(StrEnum):
    """Consequence of an illegal move."""

    rescued = "rescued"
    """The player retries at most match.attempts times; then a random legal move replaces the move. Both are counted."""
    loses = "loses"
    """The game is lost."""


class Rule(StrEnum):
    """Opponents that follow a rule of thumb."""

    random = "random"
    """Any legal move."""
    capture = "capture"
    """The most valuable capture."""
    exchange = "exchange"
    """A mate in one; otherwise the best balance of material after the opponent's best capture."""


RULES: Mapping[str, Callable[[int], Player]] = {
    Rule.random: RandomPlayer,
    Rule.capture: CapturePlayer,
    Rule.exchange: ExchangePlayer,
}


@dataclass(slots=True)
class MatchRulesConfig:
    """Opponent and rules of the match. The number and length of its games are options of `evaluation`."""

    opponent: str = "random"
    """A rule of thumb (random, capture or exchange), stockfish, or a model (a folder, a name on the hub or `tiny`)."""
    stockfish: StrengthConfig = field(default_factory=StrengthConfig)
    """Strength of opponent=stockfish."""
    illegal: IllegalRule = IllegalRule.rescued
    attempts: int = 3
    """Largest number of retries after an illegal move with illegal=rescued."""
    decoding: DecodingConfig = field(default_factory=published_decoding)
    """Decoding of both players, if they are models."""
    pgn: str = ""
    """PGN file to write the games to. A file that holds other games is refused. Empty: no file."""

    def __post_init__(self) -> None:
        if self.attempts < 0:
            raise ValueError(f"match.attempts: expected 0 or more, got {self.attempts}")


@dataclass(slots=True)
class MatchConfig(MatchRulesConfig):
    """A match with the number and length of its games."""

    pairs: int = 100
    """Number of openings. Each is played with both colours."""
    max_plies: int = 200
    """Largest number of plies after the opening. A game that reaches it is adjudicated."""


def with_length(rules: MatchRulesConfig, evaluation: EvaluationBaseConfig) -> MatchConfig:
    """Return a match by these rules, with the number and length of games that the options of `evaluation` give."""
    given = {option.name: getattr(rules, option.name) for option in fields(rules)}
    return MatchConfig(**given, pairs=evaluation.match_pairs, max_plies=evaluation.match_plies)


MakePlayer = Callable[[int], Player]
"""Function that makes a player from the seed of its samples."""

OpenPlayer = Callable[[], AbstractContextManager[MakePlayer]]
"""Function that opens an opponent for the time in which its games are played."""


@contextmanager
def stockfish_opponent(config: OpponentConfig, seed: int) -> Iterator[MakePlayer]:
    """Start Stockfish for a match. It makes no illegal moves, so it is its own second attempt."""
    with engine_player(config, seed) as player:
        yield lambda _seed: player


def kept_open(make: MakePlayer) -> OpenPlayer:
    """Return the opening of an opponent that needs no resources of its own, such as a model or a rule."""
    return lambda: nullcontext(make)


@dataclass(frozen=True, slots=True)
class MatchSetting:
    """Settings of a match beside its players and rules."""

    referee: OpenReferee = by_material
    """Opens the referee that adjudicates games at the ply limit."""
    seed: int = 0
    """Seed of the openings and of both players."""
    names: tuple[str, str] = ("model", "opponent")
    """Names of player and opponent in the records of games."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts for the result."""


def match_suite(
    player: MakePlayer,
    opponent: OpenPlayer,
    config: MatchConfig,
    setting: MatchSetting,
    *,
    pairs: Sequence[int] | None = None,
) -> Suite:
    """Return the suite, with a row per pair of games, whose record is both games.

    `pairs` are the numbers of the openings to play; None plays all of the configuration. Opponent and referee are
    opened when rows are requested.

    Values are means over a pair's two games: `match/score`, 1 for a win and ½ for a draw; `/won`, `/drawn`, `/lost`;
    `/rules_score`, in which a game that reached the ply limit is drawn; and `/ended/<ending>`. `/score/white` and
    `/score/black` are the scores of the player's games with White and with Black. With illegal=rescued rows also have
    `/illegal` and `/replaced`, shares of the player's moves, and `/opponent_illegal` and `/opponent_replaced`. With
    illegal=loses they also have `/illegal`, the share of games that the player lost by an illegal move.
    """
    seed, rescued = setting.seed, config.illegal is IllegalRule.rescued
    side_by_side = ENGINE_PAIRS_SIDE_BY_SIDE if config.opponent == STOCKFISH else PAIRS_SIDE_BY_SIDE
    ours = _side(player, config, seed)

    def answer(theirs: Player, arbiter: Referee, _first: int, chunk: Sequence[Any]) -> list[Row]:
        sides = ((ours, theirs), (theirs, ours))
        pairings = [Pairing(2 * pair.number + i, pair.board(), *two) for pair in chunk for i, two in enumerate(sides)]
        games = arbiter.adjudicate(play(pairings, config.max_plies))
        rows = []
        for pair, as_white, as_black in zip(chunk, games[::2], games[1::2], strict=True):
            illegal = _illegal_shares(ours, theirs, pair) if rescued else lost_by_illegal(as_white, as_black)
            values = _scores(as_white, as_black) | illegal
            record = _record(as_white, setting.names) + _record(as_black, setting.names)
            rows.append(Row(pair.number, pair, {f"match/{name}": value for name, value in values.items()}, record))
        return rows

    def rows(done: int) -> Iterator[list[Row]]:
        with opponent() as make, setting.referee() as arbiter:
            theirs = _side(make, config, seed + OPPONENT_SEED)
            yield from by_chunks(planned, side_by_side, partial(answer, theirs, arbiter))(done)

    numbers = range(config.pairs) if pairs is None else pairs
    planned = [PlannedGame(number, Start.openings, seed) for number in numbers]
    return Suite(
        SuiteName.match, planned, rows, side_by_side, setting.facts, measures=elo_measures, conclude=match_facts
    )


def _side(make: MakePlayer, config: MatchConfig, seed: int) -> Player:
    """Return a player. With illegal=rescued it retries with another seed after an illegal move."""
    if config.illegal is IllegalRule.loses:
        return make(seed)
    return RetryingPlayer(make(seed), make(seed + 1), config.attempts, seed)


def _illegal_shares(ours: Player, theirs: Player, pair: PlannedGame) -> dict[str, float]:
    """Return the shares of illegal and of replaced moves of both sides in a pair's games."""
    assert isinstance(ours, RetryingPlayer) and isinstance(theirs, RetryingPlayer)
    games = (2 * pair.number, 2 * pair.number + 1)
    return ours.shares(games) | {f"opponent_{name}": share for name, share in theirs.shares(games).items()}


def _record(game: PlayedGame, names: tuple[str, str]) -> str:
    """Return the game as PGN. The player has White in games with an even number."""
    white, black = names if game.number % 2 == 0 else names[::-1]
    return pgn_text(game, {"Event": SuiteName.match.value, "White": white, "Black": black})


def _scores(as_white: PlayedGame, as_black: PlayedGame) -> dict[str, float]:
    scores = (as_white.score(chess.WHITE), as_black.score(chess.BLACK))
    endings = (as_white.ending, as_black.ending)
    return {
        "score": sum(scores) / 2,
        "score/white": scores[0],
        "score/black": scores[1],
        "rules_score": (as_white.rules_score(chess.WHITE) + as_black.rules_score(chess.BLACK)) / 2,
        "won": scores.count(1.0) / 2,
        "drawn": scores.count(0.5) / 2,
        "lost": scores.count(0.0) / 2,
        **{f"ended/{ending}": endings.count(ending) / 2 for ending in ENDINGS},
    }


def lost_by_illegal(as_white: PlayedGame, as_black: PlayedGame) -> dict[str, float]:
    """Return the share of a pair's games that the player lost by an illegal move."""
    games = ((as_white, chess.WHITE), (as_black, chess.BLACK))
    return {"illegal": sum(game.end is End.illegal_move and game.winner is not color for game, color in games) / 2}


def elo(score: float) -> float:
    """Return the Elo difference that corresponds to an expected score; infinite at 0 and 1.

    >>> elo(0.5), round(elo(0.75), 1), elo(0.0)
    (0.0, 190.8, -inf)
    """
    if score in (0.0, 1.0):
        return math.copysign(math.inf, score - 0.5)
    return ELO_SCALE * math.log10(score / (1 - score))


def elo_measures(rows: Sequence[Row]) -> dict[str, Measure]:
    """Return `match/elo` and `match/normalised_elo`, the player's lead over the opponent; empty without rows.

    Elo is the logistic difference of the mean score, and its interval is the interval of that score, converted in the
    same way. If every game was lost the difference is minus infinity, and if every game was won it is infinity. The
    other end is then that of Wilson's interval with a pair as one trial (see `mean_interval`).

    Normalised Elo divides the lead by the standard deviation of one game, which is √2 times that of a pair's score. Its
    error depends on the number of games, on the lead and on the shape of the scores' distribution (see `lead_error`),
    but not on the share of draws. The key is left out if all pairs have the same score.
    """
    scores = _pair_scores(rows)
    if not scores:
        return {}
    value, low, high = map(elo, mean_interval(scores, 0.0, 1.0))
    measures = {"match/elo": Measure(value, low, high, len(scores))}
    if max(scores) - min(scores) > EQUALITY_TOLERANCE:
        per_deviation = NORMALISED_SCALE / math.sqrt(2)
        lead = per_deviation * (math.fsum(scores) / len(scores) - 0.5) / stdev(scores)
        spread = Z_95 * per_deviation * lead_error(scores)
        measures["match/normalised_elo"] = Measure(lead, lead - spread, lead + spread, len(scores))
    return measures


def lead_error(scores: Sequence[float]) -> float:
    """Return the standard error of (mean − ½) / s, where s is the standard deviation of pairs' scores that differ.

    By the delta method it is √(Σ(z − t/2·(z² − 1))² / (n(n − 1))), with z = (score − mean)/s and t = (mean − ½)/s. At
    an even score, t = 0, it is 1/√n. It is never below that value: if the scores have only two values, the first-order
    error can be near 0. Source: Cramér, Mathematical Methods of Statistics (1946), section 27.7.

    >>> lead_error([0.25, 0.75, 0.25, 0.75]), round(lead_error([1.0] * 9 + [0.5]), 3)
    (0.5, 1.455)
    """
    n, mean, deviation = len(scores), math.fsum(scores) / len(scores), stdev(scores)
    t, standardised = (mean - 0.5) / deviation, [(score - mean) / deviation for score in scores]
    variance = math.fsum((z - t / 2 * (z**2 - 1)) ** 2 for z in standardised) / (n * (n - 1))
    return max(math.sqrt(variance), 1 / math.sqrt(n))


def match_facts(rows: Sequence[Row]) -> dict[str, Any]:
    """Return `pentanomial`, the numbers of pairs with 0, ½, 1, 1½ and 2 points, and `likelihood_of_superiority`."""
    scores = _pair_scores(rows)
    if not scores:
        return {}
    return {
        "pentanomial": [scores.count(score) for score in PAIR_SCORES],
        "likelihood_of_superiority": likelihood_of_superiority(scores),
    }


def likelihood_of_superiority(scores: Sequence[float]) -> float:
    """Return the probability that the player is stronger, by the normal approximation of the pairs' mean score.

    If all scores are equal, the error of the mean is that of `mean_interval`, for scores that were not seen.

    >>> likelihood_of_superiority([0.25, 0.75]), round(likelihood_of_superiority([0.5, 0.75, 0.5, 0.75]), 3)
    (0.5, 0.958)
    """
    mean, low, high = mean_interval(scores, 0.0, 1.0)
    if mean == 0.5:
        return 0.5
    if max(scores) - min(scores) > EQUALITY_TOLERANCE:
        # Not from the interval's ends: that of few pairs may be clipped to the scale.
        error = stdev(scores) / math.sqrt(len(scores))
    else:
        error = abs(mean - (low if mean > 0.5 else high)) / Z_95
    return NormalDist().cdf((mean - 0.5) / error)


def _pair_scores(rows: Sequence[Row]) -> list[float]:
    return [row.values["match/score"] for row in rows]

"""The suites `match` and `engine_match`: pairs of games of a model against another player.

In a pair the two players play the same opening twice, each once with White. Games that reach the ply limit are
adjudicated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import partial
from typing import Any

import chess

from .adjudication import OpenReferee, Referee, by_material
from .config import EvaluationBaseConfig
from .elo import elo_measures, match_facts
from .engine_player import OpponentConfig
from .games import Adjudicator, End, Pairing, PlannedGame, PlayedGame, Start, pgn_text, play
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
from .table import Row

# Pairs that are played at once. A model samples the moves of both games of every pair in one batch.
PAIRS_SIDE_BY_SIDE = 100
# Pairs in a chunk against an engine, which moves in one game at a time. An interruption loses at most one chunk.
ENGINE_PAIRS_SIDE_BY_SIDE = 8
# Offset of the opponent's seed from the player's. Each side retries after an illegal move with its seed plus 1.
OPPONENT_SEED = 1000
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
    """Either a rule of thumb (random, capture or exchange) or a model (a folder, a name on the hub or `tiny`)."""
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


@dataclass(slots=True)
class EngineMatchConfig:
    """Number and length of games against an engine, and the engine."""

    pairs: int = 32
    """Number of openings. Each is played with both colours."""
    max_plies: int = 300
    """Largest number of plies after the opening. A game that reaches it is adjudicated, by Stockfish if it is
    installed and otherwise by material."""
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """Decoding of the model. The default is greedy, which is the model's best play."""
    opponent: OpponentConfig = field(default_factory=OpponentConfig)
    pgn: str = ""
    """PGN file to write the games to. A file that holds other games is refused. Empty: no file."""

    def __post_init__(self) -> None:
        if self.pairs < 0 or self.max_plies < 1:
            raise ValueError(
                f"engine_match: expected pairs from 0 and max_plies from 1, got {self.pairs} and {self.max_plies}"
            )


MakePlayer = Callable[[int], Player]
"""Function that makes a player from the seed of its samples."""


def match_suite(
    player: MakePlayer,
    opponent: MakePlayer,
    config: MatchConfig,
    *,
    referee: OpenReferee = by_material,
    pairs: Sequence[int] | None = None,
    seed: int = 0,
    names: tuple[str, str] = ("model", "opponent"),
    facts: Mapping[str, Any] | None = None,
) -> Suite:
    """Return the suite `match` (see `paired_suite`). If `pairs` is None, all pairs of the configuration are played.

    With illegal=rescued rows also have `match/illegal` and `match/replaced`, shares of the player's moves, and
    `match/opponent_illegal` and `match/opponent_replaced`. With illegal=loses they also have `match/illegal`, the share
    of games that the player lost by an illegal move.
    """
    ours, theirs = _retrying_player(player, config, seed), _retrying_player(opponent, config, seed + OPPONENT_SEED)

    def illegal_shares(as_white: PlayedGame, as_black: PlayedGame) -> Mapping[str, float]:
        games = (as_white.number, as_black.number)
        other = {f"opponent_{name}": share for name, share in theirs.shares(games).items()}
        return ours.shares(games) | other

    loses = config.illegal is IllegalRule.loses
    return paired_suite(
        SuiteName.match,
        player(seed) if loses else ours,
        lambda: nullcontext(opponent(seed + OPPONENT_SEED) if loses else theirs),
        pairs=range(config.pairs) if pairs is None else pairs,
        max_plies=config.max_plies,
        side_by_side=PAIRS_SIDE_BY_SIDE,
        extra=lost_by_illegal if loses else illegal_shares,
        referee=referee,
        seed=seed,
        names=names,
        facts=facts,
    )


def _retrying_player(make: MakePlayer, config: MatchConfig, seed: int) -> RetryingPlayer:
    """Return a player that retries with another seed after an illegal move."""
    return RetryingPlayer(make(seed), make(seed + 1), config.attempts, seed)


def engine_match_suite(
    player: Player,
    opponent: Callable[[], AbstractContextManager[Player]],
    config: EngineMatchConfig,
    *,
    referee: OpenReferee = by_material,
    seed: int = 0,
    names: tuple[str, str] = ("model", "engine"),
    facts: Mapping[str, Any] | None = None,
) -> Suite:
    """Return the suite `engine_match` (see `paired_suite`).

    Rows also have `engine_match/illegal`, the share of games that the player lost by an illegal move.
    """
    return paired_suite(
        SuiteName.engine_match,
        player,
        opponent,
        pairs=range(config.pairs),
        max_plies=config.max_plies,
        side_by_side=ENGINE_PAIRS_SIDE_BY_SIDE,
        extra=lost_by_illegal,
        referee=referee,
        seed=seed,
        names=names,
        facts=facts,
    )


PairValues = Callable[[PlayedGame, PlayedGame], Mapping[str, float]]
"""Function that returns further values of a pair of games by name, without the suite's prefix.

Its first argument is the game in which the player has White."""


def paired_suite(
    suite: SuiteName,
    player: Player,
    opponent: Callable[[], AbstractContextManager[Player]],
    *,
    pairs: Sequence[int],
    max_plies: int,
    side_by_side: int,
    extra: PairValues,
    referee: OpenReferee = by_material,
    seed: int = 0,
    names: tuple[str, str],
    facts: Mapping[str, Any] | None = None,
) -> Suite:
    """Return a suite with a row per pair of games, whose record is both games.

    `pairs` are the numbers of the openings, which `seed` decides. `side_by_side` pairs are played at once. Opponent and
    referee are opened when rows are requested. `names` are the names of player and opponent in the records.

    Values are means over a pair's two games: `<suite>/score`, 1 for a win and ½ for a draw; `/won`, `/drawn`, `/lost`;
    `/rules_score`, in which a game that reached the ply limit is drawn; `/ended/<ending>`; and those of `extra`.
    `/score/white` and `/score/black` are the scores of the player's games with White and with Black.
    """

    def answer(other: Player, arbiter: Referee, first: int, chunk: Sequence[Any]) -> list[Row]:
        sides = ((player, other), (other, player))
        pairings = [Pairing(2 * pair.number + i, pair.board(), *two) for pair in chunk for i, two in enumerate(sides)]
        games = arbiter.adjudicate(play(pairings, max_plies))
        rows = []
        for pair, as_white, as_black in zip(chunk, games[::2], games[1::2], strict=True):
            values = _scores(as_white, as_black) | dict(extra(as_white, as_black))
            record = _record(as_white, suite, names) + _record(as_black, suite, names)
            rows.append(Row(pair.number, pair, {f"{suite}/{name}": value for name, value in values.items()}, record))
        return rows

    def rows(done: int) -> Iterator[list[Row]]:
        with opponent() as other, referee() as arbiter:
            yield from by_chunks(planned, side_by_side, partial(answer, other, arbiter))(done)

    planned = [PlannedGame(pair, Start.openings, seed) for pair in pairs]
    measures, conclude = partial(elo_measures, suite), partial(match_facts, suite)
    return Suite(suite, planned, rows, side_by_side, facts or {}, measures=measures, conclude=conclude)


def _record(game: PlayedGame, suite: SuiteName, names: tuple[str, str]) -> str:
    """Return the game as PGN. The player has White in games with an even number."""
    white, black = names if game.number % 2 == 0 else names[::-1]
    return pgn_text(game, {"Event": suite.value, "White": white, "Black": black})


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

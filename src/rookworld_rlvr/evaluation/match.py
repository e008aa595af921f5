"""The suite `match`: games of a model against another model or a rule of thumb."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import chess

from ..board.moves import is_legal_uci
from .games import PlayedGame, lost_by_illegal, paired_suite
from .players import CapturePlayer, DecodingConfig, ExchangePlayer, Player, RandomPlayer, published_decoding
from .suite import Suite, SuiteName

# One pass samples a move in each of twice so many games.
PAIRS_SIDE_BY_SIDE = 100
# Distance between the seeds of the two sides; the attempts of one side use the seeds between.
OPPONENT_SEED = 1000


class IllegalRule(StrEnum):
    """Consequence of an illegal move."""

    rescued = "rescued"
    """The player tries again, match.attempts times at most; then a random legal move replaces it. Both are counted."""
    loses = "loses"
    """The game is lost."""


class Rule(StrEnum):
    """Opponents that follow a rule of thumb."""

    random = "random"
    """Any legal move."""
    capture = "capture"
    """The most valuable capture."""
    exchange = "exchange"
    """A one-ply exchange rule with mate in one."""


RULES: Mapping[str, Callable[[int], Player]] = {
    Rule.random: RandomPlayer,
    Rule.capture: CapturePlayer,
    Rule.exchange: ExchangePlayer,
}


@dataclass(slots=True)
class MatchConfig:
    """Number and length of games, and the opponent."""

    opponent: str = "random"
    """random, capture or exchange (rules of thumb, which need no model), or a model: a folder, a hub name, `tiny`."""
    pairs: int = 100
    """Openings, each played with both colours."""
    max_plies: int = 200
    """A longer game ends there and counts as drawn."""
    illegal: IllegalRule = IllegalRule.rescued
    attempts: int = 3
    """illegal=rescued: how often a player may try again after an illegal move."""
    decoding: DecodingConfig = field(default_factory=published_decoding)
    """Decoding of both players, if they are models."""
    pgn: str = ""
    """A file for the games, refused if it holds other games; empty: none."""

    def __post_init__(self) -> None:
        if self.pairs < 0 or self.max_plies < 1 or self.attempts < 0:
            raise ValueError(
                "match: expected pairs and attempts from 0 and max_plies from 1, "
                f"got {self.pairs}, {self.attempts} and {self.max_plies}"
            )


class RescuedPlayer:
    """A player that tries again after an illegal move, and then plays a random legal move.

    It counts, by game: all its `moves`, those that were at first `illegal`, and those `replaced` in the end.
    """

    def __init__(self, player: Player, again: Player, attempts: int, seed: int = 0) -> None:
        """`again`: the player with another seed; it makes all `attempts` at once, and the first legal one counts."""
        self._player, self._again, self._attempts, self._random = player, again, attempts, RandomPlayer(seed)
        self.moves, self.illegal, self.replaced = Counter[int](), Counter[int](), Counter[int]()

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`."""
        self.moves.update(numbers)
        moves = list(self._player.choose(boards, numbers))
        illegal = [i for i, move in enumerate(moves) if not is_legal_uci(boards[i], move)]
        self.illegal.update(numbers[i] for i in illegal)
        repeated = [i for i in illegal for _ in range(self._attempts)]
        attempts = self._again.choose([boards[i] for i in repeated], [numbers[i] for i in repeated])
        # In reverse, so that the first legal attempt is the one that stays.
        for i, attempt in reversed(list(zip(repeated, attempts, strict=True))):
            if is_legal_uci(boards[i], attempt):
                moves[i] = attempt
        for i in illegal:
            if not is_legal_uci(boards[i], moves[i]):
                self.replaced[numbers[i]] += 1
                [moves[i]] = self._random.choose([boards[i]], [numbers[i]])
        return moves

    def shares(self, games: Sequence[int]) -> dict[str, float]:
        """Shares of the moves in these games: `illegal` at first, `replaced` after the last attempt."""
        moves = sum(self.moves[game] for game in games)
        counts = {"illegal": self.illegal, "replaced": self.replaced}
        return {name: sum(count[game] for game in games) / max(1, moves) for name, count in counts.items()}


MakePlayer = Callable[[int], Player]
"""Makes a player from the seed of its samples."""


def match_suite(
    player: MakePlayer,
    opponent: MakePlayer,
    config: MatchConfig,
    *,
    pairs: Sequence[int] | None = None,
    seed: int = 0,
    names: tuple[str, str] = ("model", "opponent"),
    facts: Mapping[str, Any] | None = None,
) -> Suite:
    """See `paired_suite`; without `pairs` all pairs of the configuration are played.

    Rows also have, with illegal=rescued, `match/illegal` and `match/replaced`, shares of the player's moves, and
    `match/opponent_illegal` and `match/opponent_replaced`; with illegal=loses `match/illegal`, the share of games that
    the player lost by an illegal move.
    """
    ours, theirs = _rescued(player, config, seed), _rescued(opponent, config, seed + OPPONENT_SEED)

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
        seed=seed,
        names=names,
        facts=facts,
    )


def _rescued(make: MakePlayer, config: MatchConfig, seed: int) -> RescuedPlayer:
    """The player, with another seed for its further attempts."""
    return RescuedPlayer(make(seed), make(seed + 1), config.attempts, seed)

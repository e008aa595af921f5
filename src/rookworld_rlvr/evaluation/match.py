"""Games of a model against another model or a rule of thumb: the suite `match`."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import chess

from ..board.moves import is_legal_uci
from .engine_match import lost_by_illegal
from .games import PlayedGame
from .paired_games import paired_suite
from .players import DecodingConfig, Player, RandomPlayer, published_decoding
from .rule_players import CapturePlayer, ExchangePlayer
from .suite import Suite, SuiteName

# One pass samples a move of each of twice so many games.
PAIRS_SIDE_BY_SIDE = 100
# Between the seeds of two sides, beyond the attempts of one.
OPPONENT_SEED = 1000


class IllegalRule(StrEnum):
    """What becomes of an illegal answer."""

    rescued = "rescued"
    """It is asked again, match.attempts times at most, then replaced by a random legal move; both are counted."""
    loses = "loses"
    """The game is lost."""


class Rule(StrEnum):
    """Opponents that are no models."""

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
    """How many games, how long, against whom."""

    opponent: str = "random"
    """random, capture or exchange (rules of thumb, which need no model), or a model: a folder, a hub name, `tiny`."""
    pairs: int = 100
    """Openings, each played with both colours."""
    max_plies: int = 200
    """A game is cut there and counts as drawn."""
    illegal: IllegalRule = IllegalRule.rescued
    attempts: int = 3
    """illegal=rescued: how often an illegal answer is asked again."""
    decoding: DecodingConfig = field(default_factory=published_decoding)
    """How both players are sampled, if they are models."""
    pgn: str = ""
    """A file that the games are written to, refused where it holds others; empty: none."""

    def __post_init__(self) -> None:
        if self.pairs < 0 or self.max_plies < 1 or self.attempts < 0:
            raise ValueError(
                "match: expected pairs and attempts from 0 and max_plies from 1, "
                f"got {self.pairs}, {self.attempts} and {self.max_plies}"
            )


class RescuedPlayer:
    """A player whose illegal answers are asked again, and then replaced by a random legal move.

    It counts, by game: `asked` moves, those whose first answer was `illegal`, and those `replaced` at the end.
    """

    def __init__(self, player: Player, again: Player, attempts: int, seed: int = 0) -> None:
        """`again`: the player with another seed, asked for all `attempts` at once; the first legal answer counts."""
        self._player, self._again, self._attempts, self._random = player, again, attempts, RandomPlayer(seed)
        self.asked, self.illegal, self.replaced = Counter[int](), Counter[int](), Counter[int]()

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`."""
        self.asked.update(numbers)
        moves = list(self._player.choose(boards, numbers))
        illegal = [i for i, move in enumerate(moves) if not is_legal_uci(boards[i], move)]
        self.illegal.update(numbers[i] for i in illegal)
        repeated = [i for i in illegal for _ in range(self._attempts)]
        answers = self._again.choose([boards[i] for i in repeated], [numbers[i] for i in repeated])
        # The first of an answer's attempts is written last.
        for i, answer in reversed(list(zip(repeated, answers, strict=True))):
            if is_legal_uci(boards[i], answer):
                moves[i] = answer
        for i in illegal:
            if not is_legal_uci(boards[i], moves[i]):
                self.replaced[numbers[i]] += 1
                [moves[i]] = self._random.choose([boards[i]], [numbers[i]])
        return moves

    def shares(self, games: Sequence[int]) -> dict[str, float]:
        """Shares of the moves asked for in these games: `illegal` at the first answer, `replaced` after the last."""
        asked = sum(self.asked[game] for game in games)
        counts = {"illegal": self.illegal, "replaced": self.replaced}
        return {name: sum(count[game] for game in games) / max(1, asked) for name, count in counts.items()}


MakePlayer = Callable[[int], Player]
"""A player from a seed that decides what it draws."""


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
    """See `paired_suite`; without `pairs` all of the configuration's are played.

    Rows also have, with illegal=rescued, `match/illegal` and `match/replaced`, shares of the player's moves, and
    `match/opponent_illegal` and `match/opponent_replaced`; with illegal=loses `match/illegal`, the share of games that
    the player lost by an illegal move.
    """
    ours, theirs = _rescued(player, config, seed), _rescued(opponent, config, seed + OPPONENT_SEED)

    def told(as_white: PlayedGame, as_black: PlayedGame) -> Mapping[str, float]:
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
        told=lost_by_illegal if loses else told,
        seed=seed,
        names=names,
        facts=facts,
    )


def _rescued(make: MakePlayer, config: MatchConfig, seed: int) -> RescuedPlayer:
    """Attempts draw with a seed of their own."""
    return RescuedPlayer(make(seed), make(seed + 1), config.attempts, seed)

"""Games of a player against itself, sampled: how long it plays legal moves, and how its games end."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from .games import End, Pairing, PlayedGame, Start, play
from .intervals import wilson_interval
from .players import DecodingConfig, Player, published_decoding
from .table import Measure, Row

SIDE_BY_SIDE = 128


@dataclass(slots=True)
class SelfplayConfig:
    """How many games, how long, and how a model is sampled in them."""

    games: int = 100
    """Games played."""
    start: Start = Start.standard
    """Where they begin: `standard`, as published, or behind `openings`."""
    max_halfmoves: int = 500
    """A game is cut there."""
    decoding: DecodingConfig = field(default_factory=published_decoding)
    pgn: str = ""
    """A file that the games are added to; empty: none."""

    def __post_init__(self) -> None:
        if self.games < 0 or self.max_halfmoves < 1:
            raise ValueError(f"selfplay: expected games from 0 and max_halfmoves from 1, got {self}")


def selfplay(
    player: Player,
    config: SelfplayConfig,
    *,
    seed: int = 0,
    done: int = 0,
    on_games: Callable[[Sequence[PlayedGame]], None] = lambda games: None,
) -> Iterator[list[Row]]:
    """Every game behind the first `done`, a row each; those of a chunk are played side by side.

    The seed decides which openings. `on_games` gets the games as played, to be saved. `done` ends a chunk, as the
    games of one are sampled together.
    Values: `selfplay/legal_halfmoves`, and `selfplay/ended/<reason>`, 1 for the reason of the game's end.
    """
    for first in range(done, config.games, SIDE_BY_SIDE):
        numbers = range(first, min(first + SIDE_BY_SIDE, config.games))
        starts = [config.start.board(number, seed) for number in numbers]
        pairings = [Pairing(number, start, player, player) for number, start in zip(numbers, starts, strict=True)]
        games = play(pairings, config.max_halfmoves)
        on_games(games)
        yield [
            Row(game.number, f"game {game.number} from {start.fen()}", _values(game))
            for game, start in zip(games, starts, strict=True)
        ]


def _values(game: PlayedGame) -> dict[str, float]:
    ends = {f"selfplay/ended/{end}": float(game.end is end) for end in End}
    return {"selfplay/legal_halfmoves": float(game.halfmoves), **ends}


def selfplay_measures(rows: Sequence[Row]) -> dict[str, Measure]:
    """What is no mean over games: `selfplay/illegal_rate`, illegal half-moves over all that were tried.

    Its interval is Wilson's over half-moves: a game has at most one illegal move and stops there, so the deviations
    of its half-moves from their own probabilities are uncorrelated. No rows, or no half-move, give no key.
    """
    illegal = sum(row.values[f"selfplay/ended/{End.illegal_move}"] for row in rows)
    tried = int(sum(row.values["selfplay/legal_halfmoves"] for row in rows) + illegal)
    if not tried:
        return {}
    return {"selfplay/illegal_rate": Measure(illegal / tried, *wilson_interval(int(illegal), tried), tried)}

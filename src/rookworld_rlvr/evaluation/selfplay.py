"""The suite `selfplay`: sampled games of a player against itself, measured by their legal plies and their ends."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .games import End, Pairing, PlannedGame, PlayedGame, Start, pgn_text, play
from .intervals import ratio_interval
from .keys import SLICES, slices_of
from .players import DecodingConfig, Player, published_decoding
from .suite import Suite, SuiteName, by_chunks
from .table import Measure, Row

# Games in a chunk. An interruption loses at most one chunk, and the progress bar advances after each.
SIDE_BY_SIDE = 25
LEGAL, ILLEGAL = "selfplay/legal_plies", f"selfplay/ended/{End.illegal_move}"


@dataclass(slots=True)
class SelfplayConfig:
    """Number, start and length of the games, and the decoding of the model."""

    games: int = 100
    """Number of games."""
    start: Start = Start.standard
    """Starting positions of the games. The published figures use `standard`."""
    max_plies: int = 500
    """Largest number of plies after the start. A game that reaches it ends there."""
    decoding: DecodingConfig = field(default_factory=published_decoding)
    pgn: str = ""
    """PGN file to write the games to. A file that holds other games is refused. Empty: no file."""

    def __post_init__(self) -> None:
        if self.games < 0 or self.max_plies < 1:
            raise ValueError(f"selfplay: expected games from 0 and max_plies from 1, got {self}")


def selfplay_suite(player: Player, config: SelfplayConfig, *, seed: int = 0, name: str = "model") -> Suite:
    """Return the suite, with a row per game whose record is the game. The games of a chunk are played side by side.

    `seed` decides the openings, and `name` is the player's name in records. The values are `selfplay/legal_plies`,
    the number of legal plies, and `selfplay/ended/<reason>`, which is 1 for the reason of the game's end. Legal plies
    and the end by an illegal move are also counted by the slices of the position in which the move was chosen.
    """
    headers = {"Event": SuiteName.selfplay.value, "White": name, "Black": name}

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        games = play([Pairing(game.number, game.board(), player, player) for game in chunk], config.max_plies)
        return [
            Row(game.number, item, _values(game), pgn_text(game, headers))
            for item, game in zip(chunk, games, strict=True)
        ]

    planned = [PlannedGame(number, config.start, seed) for number in range(config.games)]
    rows = by_chunks(planned, SIDE_BY_SIDE, answer)
    return Suite(SuiteName.selfplay, planned, rows, SIDE_BY_SIDE, measures=selfplay_measures)


def _values(game: PlayedGame) -> dict[str, float]:
    legal = Counter(name for board in game.positions() for name in slices_of(board))
    illegal = slices_of(game.board) if game.end is End.illegal_move else ()
    return {
        LEGAL: float(game.plies),
        **{f"{LEGAL}/{name}": float(legal[name]) for name in SLICES},
        **{f"selfplay/ended/{end}": float(game.end is end) for end in End},
        **{f"{ILLEGAL}/{name}": float(name in illegal) for name in SLICES},
    }


def selfplay_measures(rows: Sequence[Row]) -> dict[str, Measure]:
    """Return `selfplay/illegal_rate`, also by slice: illegal plies over all plies, which is not a mean over games.

    Its interval samples games, not plies (see `ratio_interval`), because some games are long and others break off at
    once. `n` counts plies. A key without plies is left out.
    """
    measures: dict[str, Measure] = {}
    for suffix in ("", *(f"/{name}" for name in SLICES)):
        counts = [_illegal_and_all(row, suffix) for row in rows]
        if plies := sum(tried for _, tried in counts):
            measures[f"selfplay/illegal_rate{suffix}"] = Measure(*ratio_interval(counts), plies)
    return measures


def _illegal_and_all(row: Row, suffix: str) -> tuple[int, int]:
    """Return the number of illegal plies and of all plies of a game in one slice."""
    illegal = int(row.values.get(f"{ILLEGAL}{suffix}", 0.0))
    return illegal, int(row.values.get(f"{LEGAL}{suffix}", 0.0)) + illegal

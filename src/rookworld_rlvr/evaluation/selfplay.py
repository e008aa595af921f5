"""Games of a player against itself, sampled: how long it plays legal moves, and how its games end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .games import End, Pairing, PlannedGame, PlayedGame, Start, pgn_text, play
from .intervals import ratio_interval
from .parts import PARTS, parts_of
from .players import DecodingConfig, Player, published_decoding
from .suite import Suite, SuiteName, by_chunks
from .table import Measure, Row

# A chunk: a stop loses no more games than this, and a progress bar moves.
SIDE_BY_SIDE = 25
LEGAL, ILLEGAL = "selfplay/legal_halfmoves", f"selfplay/ended/{End.illegal_move}"


@dataclass(slots=True)
class SelfplayConfig:
    """How many games, how long, and how a model is sampled in them."""

    games: int = 100
    """Games played."""
    start: Start = Start.standard
    """Where they begin: `standard`, as published, or behind `openings`."""
    max_plies: int = 500
    """A game is cut there."""
    decoding: DecodingConfig = field(default_factory=published_decoding)
    pgn: str = ""
    """A file that the games are written to, refused where it holds others; empty: none."""

    def __post_init__(self) -> None:
        if self.games < 0 or self.max_plies < 1:
            raise ValueError(f"selfplay: expected games from 0 and max_plies from 1, got {self}")


def selfplay_suite(player: Player, config: SelfplayConfig, *, seed: int = 0, name: str = "model") -> Suite:
    """A row a game, with the game as its record; those of a chunk are played side by side.

    The seed decides which openings, `name` is the player's in records. Values: `selfplay/legal_halfmoves`, and
    `selfplay/ended/<reason>`, 1 for the reason of the game's end; legal plies and the illegal end also by the
    parts of the position that was asked.
    """
    headers = {"Event": SuiteName.selfplay.value, "White": name, "Black": name}

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        games = play([Pairing(game.number, game.board(), player, player) for game in chunk], config.max_plies)
        return [
            Row(game.number, asked, _values(game), pgn_text(game, headers))
            for asked, game in zip(chunk, games, strict=True)
        ]

    asked = [PlannedGame(number, config.start, seed) for number in range(config.games)]
    rows = by_chunks(asked, SIDE_BY_SIDE, answer)
    return Suite(SuiteName.selfplay, asked, rows, SIDE_BY_SIDE, measures=selfplay_measures)


def _values(game: PlayedGame) -> dict[str, float]:
    legal = Counter(part for board in game.answered() for part in parts_of(board))
    illegal = parts_of(game.board) if game.end is End.illegal_move else ()
    return {
        LEGAL: float(game.plies),
        **{f"{LEGAL}/{part}": float(legal[part]) for part in PARTS},
        **{f"selfplay/ended/{end}": float(game.end is end) for end in End},
        **{f"{ILLEGAL}/{part}": float(part in illegal) for part in PARTS},
    }


def selfplay_measures(rows: Sequence[Row]) -> dict[str, Measure]:
    """`selfplay/illegal_rate`, also by part: illegal plies over all plies tried, which is no mean over games.

    Its interval takes the games as the sample (see `ratio_interval`), because some games are long and others break at
    once. `n` counts plies. Without rows, or without plies, there is no key.
    """
    found: dict[str, Measure] = {}
    for part in ("", *(f"/{part}" for part in PARTS)):
        counts = [_illegal_of_tried(row, part) for row in rows]
        if tried := sum(plies for _, plies in counts):
            found[f"selfplay/illegal_rate{part}"] = Measure(*ratio_interval(counts), tried)
    return found


def _illegal_of_tried(row: Row, part: str) -> tuple[int, int]:
    """Plies of a game; none where it had no position of that part."""
    illegal = int(row.values.get(f"{ILLEGAL}{part}", 0.0))
    return illegal, int(row.values.get(f"{LEGAL}{part}", 0.0)) + illegal

"""The suite `conversion`: clearly won positions, in which the player has to mate within 50 moves.

It measures whether a player can win a won game, which matches between weak players do not show.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, partial
from typing import Any

import chess

from ..board.evals import material_balance
from ..board.fen import position_key
from ..board.openings import drawn_opening
from .engine_player import FULL_SKILL, OpponentConfig, engine_player
from .games import End, Pairing, PlayedGame, pgn_text, play
from .match import MakePlayer
from .players import Player, RandomPlayer, RetryingPlayer
from .suite import Suite, SuiteName, by_chunks
from .table import Row

# 50 moves for each side.
MAX_PLIES = 100
GAMES_SIDE_BY_SIDE = 100
ATTEMPTS = 3
# Generated data leave out so many endgames of each kind, for each of so many seeds.
KEPT_OUT, KEPT_OUT_SEEDS = 100, 10


class Advantage(StrEnum):
    """Kind of a won position: the material by which the player is ahead."""

    kqk = "kqk"
    """King and queen against king, anywhere on the board; the player moves."""
    krk = "krk"
    """King and rook against king, anywhere on the board; the player moves."""
    piece_up = "piece_up"
    """An opening in which the other side lacks a knight or a bishop; either side moves."""
    five_pawns_up = "five_pawns_up"
    """An opening in which the other side lacks five pawns; either side moves."""


class Defender(StrEnum):
    """Opponent that defends the lost side."""

    random = "random"
    """A player that plays any legal move."""
    engine = "engine"
    """Stockfish at full strength, 1,000 nodes per move."""


ENDGAMES = {Advantage.kqk: chess.QUEEN, Advantage.krk: chess.ROOK}
LACKING = {Advantage.piece_up: ((chess.KNIGHT, chess.BISHOP), 1, 3), Advantage.five_pawns_up: ((chess.PAWN,), 5, 5)}
"""By advantage: kinds of the pieces that the other side lacks, their number, and the player's lead in pawns."""


@dataclass(slots=True)
class ConversionConfig:
    """Number of won positions, and the defenders."""

    positions: int = 20
    """Number of positions of each kind. They are the same against each defender."""
    defenders: list[Defender] = field(default_factory=lambda: list(Defender))
    """Opponents that defend, each at most once. `engine` requires Stockfish."""

    def __post_init__(self) -> None:
        if self.positions < 0 or len(set(self.defenders)) < len(self.defenders):
            raise ValueError(f"conversion: expected positions from 0 and defenders, each once, got {self}")


@dataclass(frozen=True, slots=True)
class WonPosition:
    """A game of the suite before it is played. Its `str` is its identity."""

    number: int
    advantage: Advantage
    defender: Defender
    fen: str
    color: chess.Color
    """The player's side."""

    def __str__(self) -> str:
        return f"{self.advantage} against {self.defender} as {chess.COLOR_NAMES[self.color]} from {self.fen}"


def conversion_suite(
    player: MakePlayer,
    config: ConversionConfig,
    *,
    engine_path: str = "",
    seed: int = 0,
    name: str = "model",
    facts: Mapping[str, Any] | None = None,
) -> Suite:
    """Return the suite, with a row per game whose record is the game.

    An illegal move of the player is sampled again up to ATTEMPTS times, then replaced by a random legal move. `seed`
    decides the positions. `name` is the player's name in records. Values are 1.0 or 0.0: `conversion/won`, also as
    `…/<advantage>_<defender>`, and `conversion/ended/<reason>` for the reason of the game's end.
    """
    retrying = RetryingPlayer(player(seed), player(seed + 1), ATTEMPTS, seed)

    def answer(defenders: Mapping[Defender, Player], first: int, chunk: Sequence[Any]) -> list[Row]:
        pairings = [_pairing(position, retrying, defenders[position.defender]) for position in chunk]
        games = zip(chunk, play(pairings, MAX_PLIES), strict=True)
        return [
            Row(position.number, position, _values(position, game), _record(position, game, name))
            for position, game in games
        ]

    def rows(done: int) -> Iterator[list[Row]]:
        with ExitStack() as stack:
            defenders: dict[Defender, Player] = {Defender.random: RandomPlayer(seed)}
            if Defender.engine in config.defenders:
                defenders[Defender.engine] = stack.enter_context(engine_player(defending_engine(engine_path), seed))
            yield from by_chunks(positions, GAMES_SIDE_BY_SIDE, partial(answer, defenders))(done)

    positions = won_positions(config, seed)
    return Suite(SuiteName.conversion, positions, rows, GAMES_SIDE_BY_SIDE, facts or {})


def defending_engine(path: str) -> OpponentConfig:
    """Return the settings of the defender `engine`."""
    return OpponentConfig(path=path, nodes=1000, skill=FULL_SKILL)


def won_positions(config: ConversionConfig, seed: int) -> list[WonPosition]:
    """Return the games ordered by defender and kind of position. The player has White in every second one."""
    planned = [
        (advantage, defender, number)
        for defender in config.defenders
        for advantage in Advantage
        for number in range(config.positions)
    ]
    return [
        WonPosition(place, advantage, defender, won_board(advantage, number, seed).fen(), number % 2 == 0)
        for place, (advantage, defender, number) in enumerate(planned)
    ]


def won_board(advantage: Advantage, number: int, seed: int) -> chess.Board:
    """Return a legal position drawn by seed and number. White is ahead if the number is even, otherwise Black."""
    rng, color = random.Random(f"conversion:{seed}:{advantage}:{number}"), number % 2 == 0
    while True:
        board = _endgame(ENDGAMES[advantage], color, rng) if advantage in ENDGAMES else _opening(advantage, color, rng)
        ahead = advantage in ENDGAMES or material_balance(board, color) == LACKING[advantage][2]
        if ahead and board.is_valid() and not board.is_game_over():
            return board


@cache
def endgames_kept_out() -> frozenset[str]:
    """Return the suite's endgames by identity (`position_key`), the first KEPT_OUT of each kind at seeds from 0.

    Generated data leave them out. The suite's other positions are openings that lack pieces, which no generated game
    reaches.
    """
    drawn = (
        won_board(kind, number, seed)
        for kind in ENDGAMES
        for seed in range(KEPT_OUT_SEEDS)
        for number in range(KEPT_OUT)
    )
    return frozenset(map(position_key, drawn))


def _endgame(kind: chess.PieceType, color: chess.Color, rng: random.Random) -> chess.Board:
    board = chess.Board(None)
    pieces = (chess.Piece(chess.KING, color), chess.Piece(kind, color), chess.Piece(chess.KING, not color))
    for square, piece in zip(rng.sample(chess.SQUARES, 3), pieces, strict=True):
        board.set_piece_at(square, piece)
    board.turn = color
    return board


def _opening(advantage: Advantage, color: chess.Color, rng: random.Random) -> chess.Board:
    """Return an opening without some pieces of the other side. It may be invalid, and `color` may not be ahead."""
    kinds, number, _ = LACKING[advantage]
    board = drawn_opening(rng.randrange(1000), rng.randrange(1000)).copy(stack=False)
    squares = [square for kind in kinds for square in board.pieces(kind, not color)]
    for square in rng.sample(squares, min(number, len(squares))):
        board.remove_piece_at(square)
    return board


def _pairing(position: WonPosition, player: Player, defender: Player) -> Pairing:
    white, black = (player, defender) if position.color else (defender, player)
    return Pairing(position.number, chess.Board(position.fen), white, black)


def _values(position: WonPosition, game: PlayedGame) -> dict[str, float]:
    won = game.score(position.color)
    names = ("won", f"won/{position.advantage}_{position.defender}")
    values = {f"conversion/{name}": float(won == 1.0) for name in names}
    return values | {f"conversion/ended/{end}": float(game.end is end) for end in End}


def _record(position: WonPosition, game: PlayedGame, name: str) -> str:
    """Return the game as PGN."""
    white, black = (name, position.defender.value)[:: 1 if position.color else -1]
    return pgn_text(game, {"Event": str(position), "White": white, "Black": black})

"""The suite `acpl`: average centipawn loss in games against Stockfish at Skill Level 0 that searches 1 or 5 plies.

It follows the Global Chess Challenge 2025 of AIcrowd: 50 games against each opponent from the standard starting
position, with alternating colours, drawn at 200 plies. A third illegal attempt at one move loses the game.
The loss of a move is the evaluation of its position minus that of the next one, from the mover's view, at least 0.
Evaluations are clipped to ±1000 centipawns, and a mate in n is 1000 − n. A game's figure is the mean over the player's
legal moves, and the suite's is the mean over games. An illegal attempt has no loss: see `acpl/illegal` and
`acpl/ended/illegal_move`.

Three things differ. The challenge's Stockfish searches to depth 20, for at most a second, and knows the moves before.
Ours searches a number of nodes, the same on every machine, and no history. A game without a legal move of the player
counts 0 there and has no loss here.
Source: github.com/AIcrowd/global-chess-challenge-2025-starter-kit, `local_evaluation.py` and `chess-env/run_game.py`;
discourse.aicrowd.com/t/17667.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

import chess

from ..board.evals import from_pawns
from ..stockfish.engine import Engine, EngineConfig, engine_position
from ..stockfish.uci import Limit
from .engine_player import OpponentConfig, engine_player
from .games import Pairing, PlayedGame, pgn_text, play
from .llm_chess import MAX_PLIES, forgiven_player, outcome_values
from .match import MakePlayer
from .players import Player
from .suite import Suite, SuiteName, by_chunks
from .table import Row

DEPTHS = (1, 5)
GAMES_PER_DEPTH = 50
# Ends of the scale of evaluations, in centipawns.
CLIP_CP = 1000
# Nodes that Stockfish searches for an evaluation. Five times as many change a game's loss by a few centipawns.
NODES = 20_000
# Games in a chunk. An interruption loses at most one chunk.
SIDE_BY_SIDE = 20

Evaluate = Callable[[Sequence[str]], list[int]]
"""Function that returns the evaluations of positions with a legal move, given as FENs: centipawns from the view of the
side to move, a mate in n as 1000 − n. Raises ScorerError if the engine fails."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Functions that open the suite's engines for the time in which games are played."""

    opponent: Callable[[int], AbstractContextManager[Player]]
    """Opens the opponent that searches this number of plies."""
    evaluator: Callable[[], AbstractContextManager[Evaluate]]


@dataclass(frozen=True, slots=True)
class EngineGame:
    """A game of the suite before it is played. Its `str` is its identity."""

    number: int
    depth: int
    """Plies that the opponent searches."""
    color: chess.Color
    """The player's side."""

    def __str__(self) -> str:
        return f"game {self.number} against depth {self.depth} as {chess.COLOR_NAMES[self.color]}"


def planned_games(games: int) -> list[EngineGame]:
    """Return the first games of the suite. Opponents alternate, and the player has White in every second pair."""
    numbers = range(min(games, GAMES_PER_DEPTH * len(DEPTHS)))
    return [EngineGame(number, DEPTHS[number % 2], number // 2 % 2 == 0) for number in numbers]


def acpl_suite(
    player: MakePlayer,
    engines: Engines,
    games: Sequence[EngineGame],
    *,
    seed: int = 0,
    name: str = "model",
    facts: Mapping[str, Any] | None = None,
) -> Suite:
    """Return the suite, with a row per game whose record is the game.

    Values: `acpl/mean`, the mean loss of the player's moves, and the same as `acpl/depth_1` or `acpl/depth_5`; no such
    value if the player made no legal move. `acpl/illegal`, the share of the player's moves whose first attempt was
    illegal; `acpl/won`, `/drawn`, `/lost` and `/ended/<reason>`. Stockfish at Skill Level 0 varies from run to run.
    """
    ours = forgiven_player(player, seed)

    def answer(opponents: Mapping[int, Player], evaluate: Evaluate, _first: int, chunk: Sequence[Any]) -> list[Row]:
        played = play([_pairing(game, ours, opponents[game.depth]) for game in chunk], MAX_PLIES)
        losses = centipawn_losses(evaluate, list(zip(played, (game.color for game in chunk), strict=True)))
        return [
            Row(
                game.number,
                game,
                {f"acpl/{key}": value for key, value in _values(game, done, lost, ours.shares([game.number])).items()},
                _record(game, done, name),
            )
            for game, done, lost in zip(chunk, played, losses, strict=True)
        ]

    def rows(done: int) -> Iterator[list[Row]]:
        with ExitStack() as stack:
            opponents = {depth: stack.enter_context(engines.opponent(depth)) for depth in DEPTHS}
            evaluate = stack.enter_context(engines.evaluator())
            yield from by_chunks(games, SIDE_BY_SIDE, partial(answer, opponents, evaluate))(done)

    return Suite(SuiteName.acpl, games, rows, SIDE_BY_SIDE, facts or {})


def _pairing(game: EngineGame, player: Player, opponent: Player) -> Pairing:
    return Pairing(game.number, chess.Board(), *((player, opponent) if game.color else (opponent, player)))


def _values(
    game: EngineGame, played: PlayedGame, losses_cp: Sequence[int], shares: Mapping[str, float]
) -> dict[str, float]:
    loss = {"mean": fmean(losses_cp), f"depth_{game.depth}": fmean(losses_cp)} if losses_cp else {}
    return loss | outcome_values(played, game.color) | {"illegal": shares["illegal"]}


def _record(game: EngineGame, played: PlayedGame, name: str) -> str:
    """Return the game as PGN."""
    white, black = (name, f"Stockfish skill 0 depth {game.depth}")[:: 1 if game.color else -1]
    return pgn_text(played, {"Event": SuiteName.acpl.value, "White": white, "Black": black})


def centipawn_losses(evaluate: Evaluate, games: Sequence[tuple[PlayedGame, chess.Color]]) -> list[list[int]]:
    """Return for each game the loss of each legal move of the given side, in centipawns from 0 to 2000."""
    moves = [list(_around_moves(game, color)) for game, color in games]
    fens = dict.fromkeys(fen for of_game in moves for pair in of_game for fen in pair)
    known = {fen: cp for fen in fens if (cp := _final_cp(chess.Board(fen))) is not None}
    searched = [fen for fen in fens if fen not in known]
    known |= {fen: _clipped(cp) for fen, cp in zip(searched, evaluate(searched), strict=True)}
    return [[max(0, known[before] + known[after]) for before, after in of_game] for of_game in moves]


def _around_moves(game: PlayedGame, color: chess.Color) -> Iterator[tuple[str, str]]:
    """Yield the positions before and after each move of a side, as FENs."""
    positions = [*((board.fen(), board.turn) for board in game.positions()), (game.board.fen(), None)]
    yield from ((before, after) for (before, turn), (after, _) in pairwise(positions) if turn is color)


def _final_cp(board: chess.Board) -> int | None:
    """Return the evaluation of a position without a legal move, for the side to move; None for other positions."""
    if any(board.legal_moves):
        return None
    return -CLIP_CP if board.is_check() else 0


def _clipped(cp: int) -> int:
    return max(-CLIP_CP, min(CLIP_CP, cp))


def stockfish_engines(config: EngineConfig, nodes: int, seed: int) -> Engines:
    """Return the suite's engines: opponents, and full-strength Stockfish that searches `nodes` for an evaluation."""
    return Engines(
        lambda depth: engine_player(acpl_opponent(config.path, depth), seed), partial(_open_evaluator, config, nodes)
    )


def acpl_opponent(path: str, depth: int) -> OpponentConfig:
    """Return the settings of the opponent that searches `depth` plies."""
    return OpponentConfig(path=path, skill=0, depth=depth)


@contextmanager
def _open_evaluator(config: EngineConfig, nodes: int) -> Iterator[Evaluate]:
    """Open `config.processes` engines that share the positions. Their number does not change the evaluations."""
    with ExitStack() as stack:
        engines = [stack.enter_context(closing(Engine(config, lines=1))) for _ in range(config.processes)]
        threads = stack.enter_context(ThreadPoolExecutor(len(engines)))

        def evaluation_cp(place: int, fen: str) -> int:
            [(_, pawns)] = engines[place % len(engines)].analyse(engine_position(fen), Limit(nodes=nodes)).lines
            return from_pawns(pawns).score(mate_score=CLIP_CP)

        yield lambda fens: list(threads.map(evaluation_cp, range(len(fens)), fens))

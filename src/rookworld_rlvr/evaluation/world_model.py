"""The suite `world_model`: the model chooses a move, predicts the next position itself, and plays on from there.

It measures the number of plies for which the predicted position stays that of a real game, and what breaks first.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

import chess
from transformers import PreTrainedTokenizerBase

from ..board.fen import FenField, differing_fields, parse_fen
from ..board.moves import is_uci
from ..board.transition import Transition, step, step_game
from ..rollout.generator import Generator
from ..tasks.environment import HISTORY_MOVES, parse_environment, render_environment_prompt
from ..tasks.types import EnvironmentCompletion, ParseFailure
from .games import PlannedGame, Start
from .intervals import Duration, Point, survival_curve
from .keys import SLICES, slices_of
from .players import DecodingConfig, Player, ask, published_decoding
from .suite import Suite, SuiteName, by_chunks
from .table import Measure, Row

# A chunk: an interruption loses at most so many games, and the progress bar moves.
SIDE_BY_SIDE = 25
UNPARSABLE = "unparsable"
FIELDS = (*FenField, "reward", "terminated", "truncated", UNPARSABLE)
# Plies after which the survival of the learned world is reported.
SURVIVAL_AT = (10, 20, 40, 80, 160, 320)


class WorldPlayer(StrEnum):
    """The player of a game in the learned world model."""

    model = "model"
    """The model's own policy task."""
    random = "random"
    """Random legal moves: longer games for a model whose own moves are soon illegal."""


class Ending(StrEnum):
    """End of a game in the learned world model; only the first is a fault of the environment task."""

    broke = "broke"
    """The predicted position differs from the real game's."""
    over = "over"
    """The game ended by rule, and the model predicted it. Or it ended by a fivefold repetition that the history in the
    prompt cannot prove; then any prediction counts."""
    illegal_move = "illegal_move"
    """The policy's move was illegal, and the model predicted that."""
    no_move = "no_move"
    """The policy wrote nothing in the form of a move."""
    ply_limit = "cut"
    """Keys call it `cut`."""


BROKE = f"closed_world/ended/{Ending.broke}"


@dataclass(slots=True)
class WorldModelConfig:
    """Number, start and length of games, and their player."""

    games: int = 100
    """Number of games."""
    start: Start = Start.openings
    """Start of games: after `openings`, whose moves are the history in the prompt, or `standard`."""
    max_plies: int = 500
    """A longer game ends there."""
    player: WorldPlayer = WorldPlayer.model
    decoding: DecodingConfig = field(default_factory=published_decoding)
    """Decoding of the policy task; the environment task is greedy."""

    def __post_init__(self) -> None:
        if self.games < 0 or self.max_plies < 1:
            raise ValueError(f"world_model: expected games from 0 and max_plies from 1, got {self}")


@dataclass(slots=True)
class _World:
    """A game in the learned world model, beside the real one."""

    number: int
    game: chess.Board
    """The real game, with all its moves on the stack."""
    fen: str
    """The predicted position, at first the real one."""
    plies: int = 0
    """Correct transitions so far, a correctly refused illegal move included."""
    ending: Ending | None = None
    broken: tuple[str, ...] = ()
    """The fields that differ, of `FIELDS`."""
    broke_in: tuple[str, ...] = ()
    """The slices of the real position whose transition broke it."""

    def prompt(self, uci: str) -> str:
        return render_environment_prompt(self.fen, uci, self._history(uci))

    def take(self, uci: str, completion: str) -> None:
        """Compare the model's prediction with the truth, and play on from it."""
        history, slices = self._history(uci), slices_of(self.game)
        truth = step_game(self.game, uci)
        # The game may be over by a fivefold repetition that the history in the prompt cannot prove: both are right.
        right = [truth, step(self.fen, uci, history)] if truth.terminated else [truth]
        answer = parse_environment(completion)
        broken = min((_broken(each, answer) for each in right), key=len)
        if broken or isinstance(answer, ParseFailure):
            self.ending, self.broken, self.broke_in = Ending.broke, broken, slices
            return
        self.plies += 1
        self.fen = answer.next_fen
        if truth.truncated:
            self.ending = Ending.illegal_move
        elif truth.terminated:
            self.ending = Ending.over

    def _history(self, uci: str) -> list[str]:
        return [*(move.uci() for move in self.game.move_stack[1 - HISTORY_MOVES :]), uci]


def _broken(truth: Transition, answer: EnvironmentCompletion | ParseFailure) -> tuple[str, ...]:
    if isinstance(answer, ParseFailure):
        return (UNPARSABLE,)
    names = ("reward", "terminated", "truncated")
    others = (name for name in names if getattr(truth, name) != getattr(answer, name))
    return (*differing_fields(answer.next_fen, truth.next_fen), *others)


def world_model_suite(
    generator: Generator, tokenizer: PreTrainedTokenizerBase, player: Player, config: WorldModelConfig, *, seed: int = 0
) -> Suite:
    """A row per game; the games of a chunk are played side by side. The result also has the survival curve.

    The seed decides the openings. Values: `closed_world/halfmoves`, correct transitions in a row;
    `closed_world/ended/<end>`, a broken game also by the slices of the position in which it broke; and
    `closed_world/broke/<field>`, 1 if the game broke and that field was wrong.
    """

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        worlds = [_World(game.number, board := game.board(), board.fen()) for game in chunk]
        while going := [world for world in worlds if world.ending is None]:
            _advance(generator, tokenizer, player, going, config.max_plies)
        return [Row(world.number, item, _values(world)) for item, world in zip(chunk, worlds, strict=True)]

    planned = [PlannedGame(number, config.start, seed) for number in range(config.games)]
    return Suite(
        SuiteName.world_model,
        planned,
        by_chunks(planned, SIDE_BY_SIDE, answer),
        SIDE_BY_SIDE,
        measures=world_model_measures,
        conclude=lambda rows: {"curve": [asdict(point) for point in world_model_curve(rows)]},
    )


def _advance(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    player: Player,
    worlds: Sequence[_World],
    max_plies: int,
) -> None:
    """One ply of every world: the player moves, then the model predicts the next position."""
    texts = player.choose([parse_fen(world.fen) for world in worlds], [world.number for world in worlds])
    moved = [(world, text) for world, text in zip(worlds, texts, strict=True) if is_uci(text)]
    prompts = [world.prompt(text) for world, text in moved]
    for (world, text), answer in zip(moved, ask(generator, tokenizer, prompts, DecodingConfig()), strict=True):
        world.take(text, answer)
        if world.ending is None and world.plies >= max_plies:
            world.ending = Ending.ply_limit
    for world, text in zip(worlds, texts, strict=True):
        if not is_uci(text):
            world.ending = Ending.no_move


def _values(world: _World) -> dict[str, float]:
    return {
        "closed_world/halfmoves": float(world.plies),
        **{f"closed_world/ended/{ending}": float(world.ending is ending) for ending in Ending},
        **{f"{BROKE}/{name}": float(name in world.broke_in) for name in SLICES},
        **{f"closed_world/broke/{name}": float(name in world.broken) for name in FIELDS},
    }


def world_model_curve(rows: Sequence[Row]) -> list[Point]:
    """The share of games that are still correct after each ply; games with another end are censored there."""
    return survival_curve([_duration(row) for row in rows])


def world_model_measures(rows: Sequence[Row]) -> dict[str, Measure]:
    """`closed_world/survival/<plies>` at the plies of `SURVIVAL_AT` that a game reached.

    Also at those after the one in which the last game broke; there `n`, the number of games at risk, is 0.
    """
    return survival_measures([_duration(row) for row in rows], SURVIVAL_AT)


def survival_measures(durations: Sequence[Duration], steps: Sequence[int]) -> dict[str, Measure]:
    """See `world_model_measures`."""
    curve = survival_curve(durations)
    by_step = {point.step: Measure(point.share, point.low, point.high, point.at_risk) for point in curve}
    if curve and curve[-1].share == 0:
        none_left = replace(by_step[curve[-1].step], n=0)
        by_step |= {step: none_left for step in steps if step > curve[-1].step}
    return {f"closed_world/survival/{step:03d}": by_step[step] for step in steps if step in by_step}


def _duration(row: Row) -> Duration:
    return Duration(int(row.values["closed_world/halfmoves"]), row.values[BROKE] == 1.0)

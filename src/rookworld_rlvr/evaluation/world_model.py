"""The model in its own world: it chooses a move, answers for the environment itself, and plays on from that.

What is asked is how long its state stays that of a real game, and what breaks first.
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
from .parts import PARTS, parts_of
from .players import DecodingConfig, Player, ask, published_decoding
from .suite import Suite, SuiteName, by_chunks
from .table import Measure, Row

# A chunk: a stop loses no more games than this, and a progress bar moves.
SIDE_BY_SIDE = 25
UNPARSABLE = "unparsable"
FIELDS = (*FenField, "reward", "terminated", "truncated", UNPARSABLE)
# Plies after which the survival of the learned world is reported.
SURVIVAL_AT = (10, 20, 40, 80, 160, 320)


class WorldPlayer(StrEnum):
    """Who chooses the moves."""

    model = "model"
    """The model's own policy half."""
    random = "random"
    """Any legal move: longer games for a model whose own moves soon are illegal."""


class Ending(StrEnum):
    """How a game in the model's world ended; all but the first are no fault of the environment half."""

    broke = "broke"
    """Its state differs from the real game's."""
    over = "over"
    """By rule, and the model said so. Or by a fivefold repetition that the prompt's history cannot prove: an
    arbiter's call, whatever the model said."""
    illegal_move = "illegal_move"
    """The policy's move was illegal, and the model said so."""
    no_move = "no_move"
    """The policy wrote nothing of a move's form, so that there was nothing to answer."""
    cut = "cut"
    """The limit of plies."""


BROKE = f"closed_world/ended/{Ending.broke}"


@dataclass(slots=True)
class WorldModelConfig:
    """How many games, how long, and who moves."""

    games: int = 100
    """Games played."""
    start: Start = Start.openings
    """Where they begin: behind `openings`, whose moves are the history the model is shown, or `standard`."""
    max_plies: int = 500
    """A game is cut there."""
    player: WorldPlayer = WorldPlayer.model
    decoding: DecodingConfig = field(default_factory=published_decoding)
    """How the policy half is sampled; the environment half is asked greedily."""

    def __post_init__(self) -> None:
        if self.games < 0 or self.max_plies < 1:
            raise ValueError(f"world_model: expected games from 0 and max_plies from 1, got {self}")


@dataclass(slots=True)
class _World:
    """A game as the model has it, beside the real one."""

    number: int
    game: chess.Board
    """The real one, with its whole stack."""
    fen: str
    """The model's own state, at first the real one."""
    plies: int = 0
    """Transitions that were true so far, a rightly refused illegal move included."""
    ending: Ending | None = None
    broken: tuple[str, ...] = ()
    """The fields that differ, of `FIELDS`."""
    broke_in: tuple[str, ...] = ()
    """The parts of the real position whose transition broke it."""

    def prompt(self, uci: str) -> str:
        return render_environment_prompt(self.fen, uci, self._history(uci))

    def take(self, uci: str, completion: str) -> None:
        """Compare the model's answer with the truth, and play on from it."""
        history, parts = self._history(uci), parts_of(self.game)
        truth = step_game(self.game, uci)
        # A game may be over by a fivefold repetition that the history shown cannot prove: either answer is right.
        right = [truth, step(self.fen, uci, history)] if truth.terminated else [truth]
        answer = parse_environment(completion)
        broken = min((_broken(each, answer) for each in right), key=len)
        if broken or isinstance(answer, ParseFailure):
            self.ending, self.broken, self.broke_in = Ending.broke, broken, parts
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
    """A row a game; those of a chunk are played side by side. The result also has the curve.

    The seed decides which openings. Values: `closed_world/halfmoves`, true transitions in a row;
    `closed_world/ended/<how>`, where it broke also by the parts of the position it broke in; and
    `closed_world/broke/<field>`, 1 where the game broke and that field was wrong.
    """

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        worlds = [_World(game.number, board := game.board(), board.fen()) for game in chunk]
        while going := [world for world in worlds if world.ending is None]:
            _advance(generator, tokenizer, player, going, config.max_plies)
        return [Row(world.number, asked, _values(world)) for asked, world in zip(chunk, worlds, strict=True)]

    asked = [PlannedGame(number, config.start, seed) for number in range(config.games)]
    return Suite(
        SuiteName.world_model,
        asked,
        by_chunks(asked, SIDE_BY_SIDE, answer),
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
    """One ply of every world: the policy half is asked, then the environment half."""
    texts = player.choose([parse_fen(world.fen) for world in worlds], [world.number for world in worlds])
    moved = [(world, text) for world, text in zip(worlds, texts, strict=True) if is_uci(text)]
    prompts = [world.prompt(text) for world, text in moved]
    for (world, text), answer in zip(moved, ask(generator, tokenizer, prompts, DecodingConfig()), strict=True):
        world.take(text, answer)
        if world.ending is None and world.plies >= max_plies:
            world.ending = Ending.cut
    for world, text in zip(worlds, texts, strict=True):
        if not is_uci(text):
            world.ending = Ending.no_move


def _values(world: _World) -> dict[str, float]:
    return {
        "closed_world/halfmoves": float(world.plies),
        **{f"closed_world/ended/{ending}": float(world.ending is ending) for ending in Ending},
        **{f"{BROKE}/{part}": float(part in world.broke_in) for part in PARTS},
        **{f"closed_world/broke/{name}": float(name in world.broken) for name in FIELDS},
    }


def world_model_curve(rows: Sequence[Row]) -> list[Point]:
    """The share of worlds still true after so many plies; games that ended otherwise are censored there."""
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

"""The trained model against the one that the run began from: games from paired openings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import chess

from ..evaluation.match import MakePlayer, MatchConfig, match_suite
from ..evaluation.players import ModelPlayer, Player
from ..evaluation.suite import suite_table
from ..evaluation.table import Measure
from ..model.policy import Policy
from ..model.sharded import unshard
from ..rollout.generator import Generator
from ..stability.faults import StepAbandonedError
from .config import RunConfig
from .run import Run

SCORE, ELO = "match/score", "match/elo"


def play_against_start(run: Run) -> dict[str, Measure]:
    """`match/score` and `match/elo` with their intervals, `n` in games; nothing where no match is asked for.

    Both sample as published self-play did; an illegal answer is asked again, then replaced (see `evaluation.match`).
    Raises StepAbandonedError where a stop was asked for, GeneratorError.
    """
    if not run.config.match_pairs or not run.held_out or run.make_generator is None:
        return {}
    policy, original = run.context.policy, run.context.references.original
    with unshard(policy.model, original.model):
        return _played(run, policy, original)


def _played(run: Run, policy: Policy, original: Policy) -> dict[str, Measure]:
    assert run.make_generator is not None
    run.context.generator.sync(policy.model)
    theirs = run.make_generator(original)
    theirs.sync(original.model)
    config = match_config(run.config)
    world = run.context.world
    suite = match_suite(
        _players(run, run.context.generator, policy, config),
        _players(run, theirs, original, config),
        config,
        pairs=world.share(range(config.pairs)),
        seed=run.sampling.seed,
    )
    rows = world.gather_in_order(lambda: [row for chunk in suite.rows(0) for row in chunk], "the match")
    table = suite_table(suite, rows)
    return {key: _in_games(table[key]) for key in (SCORE, ELO)}


def match_config(config: RunConfig) -> MatchConfig:
    """As `evaluate suites=[match]` plays, but for the length of the games."""
    return MatchConfig(opponent="start", pairs=config.match_pairs, max_plies=config.match_plies)


def _players(run: Run, generator: Generator, policy: Policy, config: MatchConfig) -> MakePlayer:
    """Players of a model, by seed; they stop where the run is asked to."""

    def player(seed: int) -> Player:
        model = ModelPlayer(generator, policy.tokenizer, config.decoding, seed)
        return StoppablePlayer(model, lambda: run.stop_requested)

    return player


@dataclass(frozen=True, slots=True)
class StoppablePlayer:
    """A player that raises StepAbandonedError instead of choosing once `stop_requested` says so."""

    player: Player
    stop_requested: Callable[[], bool]

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`."""
        if self.stop_requested():
            raise StepAbandonedError
        return self.player.choose(boards, numbers)


def _in_games(measure: Measure) -> Measure:
    """Rows are pairs of games."""
    return Measure(measure.value, measure.low, measure.high, 2 * measure.n)

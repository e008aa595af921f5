"""Match of the trained model against the starting model."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any

import chess
import torch

from ..errors import ScorerError, first_line
from ..evaluation.adjudication import Referee, open_referee
from ..evaluation.config import Decoding
from ..evaluation.legal_choice import decoding_of, model_player
from ..evaluation.match import (
    MakePlayer,
    MatchConfig,
    MatchRulesConfig,
    MatchSetting,
    kept_open,
    match_suite,
    with_length,
)
from ..evaluation.players import Player
from ..evaluation.suite import SuiteName, suite_table
from ..evaluation.table import Measure, to_json
from ..model.policy import Policy
from ..model.sharded import unshard
from ..progress import progress
from ..rollout.generator import Generator, GeneratorError
from ..stability.faults import StopRequestedError
from ..stockfish.engine import engine_config
from ..tasks import Task
from .config import RunConfig
from .run import Run


@dataclass(frozen=True, slots=True)
class MatchResult:
    """Result of the match against the starting model; empty if none was played."""

    table: Mapping[str, Measure] = field(default_factory=dict)
    """Measures by the keys of the suite `match`; `n` counts games."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Pentanomial counts, likelihood of superiority, the adjudicator, and the decoding of the moves."""

    def to_json(self) -> dict[str, Any]:
        """Return the summary's `match`: the table with keys without the suite's name, and the facts."""
        table = to_json(self.table)
        return {key.removeprefix(f"{SuiteName.match}/"): entry for key, entry in table.items()} | dict(self.facts)


def play_against_start(run: Run) -> MatchResult:
    """Play the match of the trained model against the starting model.

    The result is empty if no match is configured, or if no task of the run names a move.

    Both models sample as the published self-play did, by default among the legal moves. An illegal move is sampled
    again, then replaced (see `evaluation.match`). If Stockfish does not work, games are adjudicated by material, and a
    line says so. Without a generator or memory there is no match, and a line says so. Raises StopRequestedError if a
    stop was requested.
    """
    if not run.config.evaluation.match_pairs or not run.data.held_out or run.config.data.player() is None:
        return MatchResult()
    try:
        return run.context.world.barrier(lambda: _match(run), "the match")
    except (GeneratorError, ScorerError, torch.OutOfMemoryError) as error:
        run.say(f"match: it is left out: {first_line(error)}")
        return MatchResult()


def _match(run: Run) -> MatchResult:
    policy, original = run.context.policy, run.context.references.original
    with (
        run.context.averaged_policy(),
        unshard(policy.model, original.model),
        open_referee(engine_config(run.config.rubric.stockfish), forgiving=True) as referee,
    ):
        if referee.reason:
            run.say(f"match: adjudicated by material: {referee.reason}")
        return _played(run, policy, original, referee)


def match_config(config: RunConfig) -> MatchConfig:
    """Return the match of `evaluate suites=[match]` by default, with the starting model as the opponent."""
    return with_length(MatchRulesConfig(opponent="start"), config.evaluation)


def _played(run: Run, policy: Policy, original: Policy, referee: Referee) -> MatchResult:
    run.context.sampler.generator.sync(policy.model)
    theirs = run.make_generator(original)
    theirs.sync(original.model)
    config, world, known = match_config(run.config), run.context.world, referee.reason
    pairs = world.share(range(config.pairs))
    with progress(run.console, "match, at most", 2 * len(pairs) * config.max_plies, unit="moves") as show:
        count = 0

        def chosen(moves: int) -> None:
            nonlocal count
            count += moves
            show(count)

        suite = match_suite(
            _players(run, run.context.sampler.generator, policy, chosen),
            kept_open(_players(run, theirs, original, chosen)),
            config,
            MatchSetting(lambda: nullcontext(referee), run.config.seed),
            pairs=pairs,
        )
        rows = world.gather_in_order(lambda: [row for chunk in suite.rows(0) for row in chunk], "the match")
    names, reasons = zip(*world.all_gather(lambda: (referee.name, referee.reason), "the referees"), strict=True)
    for reason in {*reasons} - {"", known}:
        run.say(f"match: the engine failed, so further games are adjudicated by material: {reason}")
    # The suite counts pairs of games, the table games.
    table = {key: replace(measure, n=2 * measure.n) for key, measure in suite_table(suite, rows).items()}
    facts = {"adjudicator": "; ".join(dict.fromkeys(names)), "decoding": _decoding(run)}
    return MatchResult(table, {**suite.conclude(rows), **facts})


def _players(run: Run, generator: Generator, policy: Policy, chosen: Callable[[int], None]) -> MakePlayer:
    """Return a function that makes a player of the model from a seed.

    The match makes one player for first attempts and one for further attempts. Only the first one calls `chosen`.
    """
    observers = chain([chosen], repeat(lambda _moves: None))

    def player(seed: int) -> Player:
        return WatchedPlayer(player_of(run, generator, policy, seed), run, next(observers))

    return player


def player_of(run: Run, generator: Generator, policy: Policy, seed: int) -> Player:
    """Return a player of the match: the policy by the run's prompts and decoding."""
    decoding = match_config(run.config).decoding
    return model_player(policy, generator, decoding, seed, _task(run), run.config.evaluation.decoding)


def _decoding(run: Run) -> Decoding:
    return decoding_of(run.context.policy, _task(run), run.config.evaluation.decoding)


def _task(run: Run) -> Task:
    task = run.config.data.player()
    assert task is not None
    return task


@dataclass(frozen=True, slots=True)
class WatchedPlayer:
    """Player that raises StopRequestedError instead of choosing moves once a stop of the run was requested."""

    player: Player
    run: Run
    chosen: Callable[[int], None]
    """Called with the number of moves after each choice."""

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`."""
        if self.run.stop_requested:
            raise StopRequestedError
        moves = self.player.choose(boards, numbers)
        self.chosen(len(moves))
        return moves

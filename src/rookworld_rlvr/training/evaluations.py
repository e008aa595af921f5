"""Evaluations of a run: held-out rows before and after, the learning curve, and the match against the start."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import chess

from ..evaluation import Gain, Measure, Row, paired_gain, summarise, to_json
from ..evaluation.adjudication import Referee, open_referee
from ..evaluation.amplification import best_move_probabilities
from ..evaluation.completions import Sampling, evaluate, evaluate_sampled
from ..evaluation.headline import GREEDY, LEAST_ROWS, SCORED
from ..evaluation.keys import SAMPLED, SPREAD
from ..evaluation.match import MakePlayer, MatchConfig, match_suite
from ..evaluation.mate_in_one import MateInOne, mate_in_one_suite
from ..evaluation.players import ModelPlayer, Player, rule_losses
from ..evaluation.suite import SuiteName, suite_table
from ..model.policy import Policy
from ..model.sharded import unshard
from ..rollout.generator import Generator
from ..stability.faults import StepAbandonedError
from ..tasks import Example
from .collection import synced_sampler
from .config import RunConfig
from .run import Run, progress


def evaluated(run: Run, name: str) -> list[Row]:
    """Held-out rows, decoded greedily, then the first of them sampled, then the mates. Raises StepAbandonedError.

    The first policy rows also have the probability and the rank of their best move (see `evaluation.amplification`).
    """
    with run.context.averaged_policy():
        return _evaluated(run, name)


def _evaluated(run: Run, name: str) -> list[Row]:
    policy, config = run.context.policy, run.config
    greedy = evaluate_rows(run, name, run.data.held_out)
    best_moves = best_move_probabilities(
        policy,
        run.sampled,
        micro_batch_size=config.generator.batch_size,
        temperature=config.generator.temperature,
        world=run.context.world,
    )
    rows = [
        replace(row, values={**row.values, **best_moves.get(example, {})})
        for example, row in zip(run.data.held_out, greedy, strict=True)
    ]
    rows += evaluate_sampled_rows(run, name)
    return [*rows, *_evaluate_mates(run, name, len(rows))]


def items(run: Run) -> list[Hashable]:
    """The items of the rows of `evaluated`, in order."""
    return [*run.data.held_out, *((SAMPLED, example) for example in run.sampled), *_mates(run)]


def _mates(run: Run) -> Sequence[MateInOne]:
    return run.data.mates if run.data.held_out else ()


def _evaluate_mates(run: Run, name: str, first: int) -> list[Row]:
    """The greedy moves in the mates in one of a file, numbered from `first`."""
    if not _mates(run):
        return []
    context, world = run.context, run.context.world
    with _generator(run), progress(run.console, f"evaluation {name}, mates in one", len(_mates(run))) as show:
        player, advance = ModelPlayer(context.generator, context.policy.tokenizer), _stoppable(run, show)

        def scored() -> list[Row]:
            rows: list[Row] = []
            for chunk in mate_in_one_suite(player, world.share(_mates(run))).rows(0):
                rows += chunk
                advance(len(rows))
            return rows

        return _numbered(world.gather_in_order(scored, f"evaluation {name}, mates in one"), first)


def evaluate_rows(run: Run, name: str, rows: Sequence[Example]) -> list[Row]:
    """Rows decoded greedily by the policy as it is. Raises StepAbandonedError if a stop was requested."""
    if not rows:
        return []
    world = run.context.world
    with _generator(run), progress(run.console, f"evaluation {name}", len(rows)) as show:

        def scored() -> list[Row]:
            return evaluate(
                run.context.generator,
                run.context.policy.tokenizer,
                world.share(rows),
                engine=run.evaluator,
                progress=_stoppable(run, show),
            )

        return _numbered(world.gather_in_order(scored, f"evaluation {name}"))


def evaluate_sampled_rows(run: Run, name: str) -> list[Row]:
    """The first held-out rows, sampled from the policy as it is. Raises StepAbandonedError if a stop was requested."""
    if not run.sampled:
        return []
    world = run.context.world
    with _generator(run), progress(run.console, f"evaluation {name}, sampled", len(run.sampled)) as show:

        def scored() -> list[Row]:
            return evaluate_sampled(
                run.context.generator,
                run.context.policy.tokenizer,
                world.share(run.sampled),
                run.sampling,
                measure=run.evaluator,
                progress=_stoppable(run, show),
            )

        return _numbered(world.gather_in_order(scored, f"evaluation {name}, sampled"), first=len(run.data.held_out))


def validate(run: Run) -> Mapping[str, float]:
    """The learning curve's figures of the averaged policy: one sample per held-back row, the same seeds each time."""
    world, context = run.context.world, run.context
    sampling = Sampling(run.config.generator.temperature, samples=1, seed=run.config.seed)

    def scored() -> list[Row]:
        return evaluate_sampled(
            context.generator,
            context.policy.tokenizer,
            world.share(run.data.validation),
            sampling,
            measure=run.evaluator,
        )

    with context.averaged_policy(), _generator(run):
        return validation_metrics(world.gather_in_order(scored, "validation"))


def validation_metrics(rows: Sequence[Row]) -> Mapping[str, float]:
    """`validation/score`, the mean of SCORED over the tasks that have rows, these, and keys with enough rows.

    The score looks at labels and rules alone, because not every position has move evaluations. Empty without rows.
    """
    values_by_key = {key: [row.values[f"{SAMPLED}/{key}"] for row in rows if f"{SAMPLED}/{key}" in row.values]
                     for key in GREEDY}  # fmt: skip
    scored = [fmean(values_by_key[key]) for key in SCORED.values() if values_by_key[key]]
    if not scored:
        return {}
    means = {
        f"validation/{key}": fmean(values)
        for key, values in values_by_key.items()
        if len(values) >= LEAST_ROWS or (values and key in SCORED.values())
    }
    return {"validation/score": fmean(scored), **means}


def start_of_curve(run: Run) -> dict[str, float]:
    """The learning curve's figures before the first step, and the losses of simple rules on the same rows."""
    losses = run.context.world.rank_0_only(
        lambda: rule_losses(run.evaluator.analyses(run.data.validation)), "the simple rules"
    )
    return {**validate(run), **{f"validation/rule/{name}": loss for name, loss in losses.items()}}


def tables(before: list[Row], after: list[Row]) -> dict[str, Any]:
    """The summary's tables: `before`, `after`, their paired `gain`, and under `spread` what sharpening lowers."""
    gain: Mapping[str, Measure | Gain] = paired_gain(before, after) if after else {}
    parts = {"before": summarise(before), "after": summarise(after), "gain": gain}
    summary = {name: to_json(_of_spread(table, False)) for name, table in parts.items()}
    return summary | {"spread": {name: to_json(_of_spread(parts[name], True)) for name in ("before", "after")}}


@dataclass(frozen=True, slots=True)
class MatchResult:
    """Result of the match against the start; empty if none was played."""

    table: Mapping[str, Measure] = field(default_factory=dict)
    """The keys of the suite `match`; `n` counts games."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Pentanomial counts, likelihood of superiority and the adjudicator."""

    def to_json(self) -> dict[str, Any]:
        """The summary's `match`: keys without the suite's name, and the facts."""
        table = to_json(self.table)
        return {key.removeprefix(f"{SuiteName.match}/"): entry for key, entry in table.items()} | dict(self.facts)


def play_against_start(run: Run) -> MatchResult:
    """The match of the trained model against the start; empty if no match is configured.

    Both models sample as published self-play did; an illegal move is sampled again, then replaced (see
    `evaluation.match`). Raises StepAbandonedError if a stop was requested, GeneratorError, ScorerError.
    """
    if not run.config.match_pairs or not run.data.held_out:
        return MatchResult()
    policy, original = run.context.policy, run.context.references.original
    with (
        run.context.averaged_policy(),
        unshard(policy.model, original.model),
        open_referee(run.config.rubric.stockfish) as referee,
    ):
        if referee.reason:
            run.console.print(f"match: adjudicated by material: {referee.reason}", highlight=False)
        return _played(run, policy, original, referee)


def match_config(config: RunConfig) -> MatchConfig:
    """The match of `evaluate suites=[match]`, except for the length of the games."""
    return MatchConfig(opponent="start", pairs=config.match_pairs, max_plies=config.match_plies)


def _played(run: Run, policy: Policy, original: Policy, referee: Referee) -> MatchResult:
    run.context.generator.sync(policy.model)
    theirs = run.make_generator(original)
    theirs.sync(original.model)
    config, world = match_config(run.config), run.context.world
    pairs = world.share(range(config.pairs))
    with progress(run.console, "match, at most", 2 * len(pairs) * config.max_plies, unit="moves") as show:
        moves = _Moves(show)
        suite = match_suite(
            _players(run, run.context.generator, policy, config, moves),
            _players(run, theirs, original, config, moves),
            config,
            referee=lambda: nullcontext(referee),
            pairs=pairs,
            seed=run.config.seed,
        )
        rows = world.gather_in_order(lambda: [row for chunk in suite.rows(0) for row in chunk], "the match")
    table = {key: _in_games(measure) for key, measure in suite_table(suite, rows).items()}
    return MatchResult(table, {**suite.conclude(rows), "adjudicator": referee.name})


@dataclass(slots=True)
class _Moves:
    """Moves of a match so far."""

    show: Callable[[int], None]
    count: int = 0

    def add(self, moves: int) -> None:
        self.count += moves
        self.show(self.count)


def _players(run: Run, generator: Generator, policy: Policy, config: MatchConfig, moves: _Moves) -> MakePlayer:
    """Players of a model, by seed; they stop if a stop was requested.

    The match makes one that plays and one for second attempts, whose moves do not count.
    """
    made: list[Player] = []

    def player(seed: int) -> Player:
        model = ModelPlayer(generator, policy.tokenizer, config.decoding, seed)
        made.append(StoppablePlayer(model, lambda: run.stop_requested, None if made else moves))
        return made[-1]

    return player


@dataclass(frozen=True, slots=True)
class StoppablePlayer:
    """A player that raises StepAbandonedError instead of choosing once `stop_requested` says so."""

    player: Player
    stop_requested: Callable[[], bool]
    moves: _Moves | None = None

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`."""
        if self.stop_requested():
            raise StepAbandonedError
        chosen = self.player.choose(boards, numbers)
        if self.moves is not None:
            self.moves.add(len(chosen))
        return chosen


@contextmanager
def _generator(run: Run) -> Iterator[None]:
    """Inside, the generator samples from the policy as it is."""
    context = run.context
    if context.prefetch is not None:
        context.prefetch.wait()
    with synced_sampler(context, context.generator.sync):
        yield


def _stoppable(run: Run, show: Callable[[int], None]) -> Callable[[int], None]:
    """Shows this rank's progress as that of all, and raises StepAbandonedError if a stop was requested."""

    def advance(done: int) -> None:
        show(done * run.context.world.size)
        if run.stop_requested:
            raise StepAbandonedError

    return advance


def _numbered(rows: Sequence[Row], first: int = 0) -> list[Row]:
    """Rows of several ranks, numbered in order."""
    return [replace(row, index=first + i) for i, row in enumerate(rows)]


def _of_spread(table: Mapping[str, Measure | Gain], wanted: bool) -> dict[str, Measure | Gain]:
    return {key: entry for key, entry in table.items() if key.startswith(f"{SPREAD}/") is wanted}


def _in_games(measure: Measure) -> Measure:
    """A measure of pairs of games, whose `n` counts games."""
    return Measure(measure.value, measure.low, measure.high, 2 * measure.n)

"""The trained model against the one that the run began from: games from paired openings."""

from functools import partial

from ..evaluation import Row
from ..evaluation.match import MatchConfig, match_suite
from ..evaluation.players import ModelPlayer
from ..evaluation.suite import suite_table
from ..evaluation.table import Measure
from ..stability.faults import StepAbandonedError
from .run import Run, TrainerConfig

SCORE, ELO = "match/score", "match/elo"


def play_against_start(run: Run) -> dict[str, Measure]:
    """`match/score` and `match/elo` with their intervals, `n` in games; nothing where no match is asked for.

    Both sample as published self-play did; an illegal answer is asked again, then replaced (see `evaluation.match`).
    Raises StepAbandonedError where a stop was asked for, GeneratorError.
    """
    if not run.config.match_pairs or not run.held_out or run.make_generator is None:
        return {}
    policy, original = run.context.policy, run.context.references.original
    run.context.generator.sync(policy.model)
    theirs = run.make_generator(original)
    theirs.sync(original.model)
    config = match_config(run.config)
    suite = match_suite(
        partial(ModelPlayer, run.context.generator, policy.tokenizer, config.decoding),
        partial(ModelPlayer, theirs, original.tokenizer, config.decoding),
        config,
        seed=run.sampling.seed,
    )
    rows: list[Row] = []
    for chunk in suite.rows(0):
        rows += chunk
        if run.stop_requested:
            raise StepAbandonedError
    table = suite_table(suite, rows)
    return {key: _in_games(table[key]) for key in (SCORE, ELO)}


def match_config(config: TrainerConfig) -> MatchConfig:
    """As `evaluate suites=[match]` plays, but for the length of the games."""
    return MatchConfig(opponent="start", pairs=config.match_pairs, max_halfmoves=config.match_halfmoves)


def _in_games(measure: Measure) -> Measure:
    """Rows are pairs of games."""
    return Measure(measure.value, measure.low, measure.high, 2 * measure.n)

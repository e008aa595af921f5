"""From a configuration to the suites it asks for."""

from collections.abc import Callable
from functools import partial

from ..errors import UserError
from ..evaluation.balanced import balanced_suite
from ..evaluation.held_out import held_out_suite
from ..evaluation.label_loss import label_losses
from ..evaluation.match import RULES, MakePlayer, match_suite
from ..evaluation.players import DecodingConfig, ModelPlayer
from ..evaluation.retention import Asked, retention_suite
from ..evaluation.run import greedy_texts
from ..evaluation.suite import Suite, SuiteName
from ..model.policy import Policy
from ..model.weights import checksum
from ..rollout.generator import Generator
from ..tasks import Task
from ..tasks.corpus import example_key
from ..training.data import evaluation_rows
from .evaluated import Evaluated, load_model
from .game_suites import engine_match, mates, puzzles, selfplay, world_model
from .generators import in_this_process, make_generator


def build_suites(evaluated: Evaluated) -> list[Suite]:
    """The suites of the configuration, in its order. Raises UserError where one has nothing to ask."""
    suites = [BUILDERS[name](evaluated) for name in evaluated.config.suites]
    for suite in suites:
        if not suite.items:
            raise UserError(f"suites: expected something to ask of {suite.name}, got nothing: {dict(suite.facts)}")
    return suites


def _held_out(task: Task, evaluated: Evaluated) -> Suite:
    data = evaluated.data
    return held_out_suite(
        task,
        data.held_out,
        _asked(evaluated.policy, evaluated.generator).complete,
        trained=data.trained,
        most=evaluated.config.evaluation_rows,
        engine=evaluated.engine,
    )


def _balanced(evaluated: Evaluated) -> Suite:
    config = evaluated.config
    complete = _asked(evaluated.policy, evaluated.generator).complete
    return balanced_suite(config.balanced, complete, seed=config.seed, excluded=evaluated.data.trained)


def _retention(evaluated: Evaluated) -> Suite:
    config, data = evaluated.config, evaluated.data
    if not config.retention.baseline:
        raise UserError("retention.baseline: expected the starting checkpoint's folder or hub name, got none")
    try:
        baseline = load_model(config, config.retention.baseline)
        generator = make_generator(baseline, in_this_process(config.generator))
    except UserError as error:
        raise UserError(f"retention.baseline: {error}") from error
    kept = tuple(row for row in data.held_out if example_key(row) not in data.trained)
    return retention_suite(
        _asked(evaluated.policy, evaluated.generator),
        _asked(baseline, generator),
        evaluation_rows(kept, config.evaluation_rows),
        facts={
            "baseline": {"path": config.retention.baseline, "checksum": checksum(baseline.model)},
            "rows_in_training": len(data.held_out) - len(kept),
        },
    )


def _match(evaluated: Evaluated) -> Suite:
    config, seed = evaluated.config.match, evaluated.config.seed
    names = (evaluated.config.model.path, config.opponent)
    ours = _player_maker(evaluated.policy, evaluated.generator, config.decoding)
    if config.opponent in RULES:
        return match_suite(ours, RULES[config.opponent], config, seed=seed, names=names)
    try:
        policy = load_model(evaluated.config, config.opponent)
        generator = make_generator(policy, in_this_process(evaluated.config.generator))
    except UserError as error:
        wanted = f"{', '.join(RULES)} or a model"
        raise UserError(f"match.opponent: expected {wanted}, got {config.opponent}: {error}") from error
    generator.sync(policy.model)
    theirs = _player_maker(policy, generator, config.decoding)
    return match_suite(ours, theirs, config, seed=seed, names=names, facts={"opponent": checksum(policy.model)})


def _player_maker(policy: Policy, generator: Generator, decoding: DecodingConfig) -> MakePlayer:
    return partial(ModelPlayer, generator, policy.tokenizer, decoding)


def _asked(policy: Policy, generator: Generator) -> Asked:
    return Asked(
        complete=partial(greedy_texts, generator, policy.tokenizer),
        losses=partial(label_losses, policy),
    )


BUILDERS: dict[SuiteName, Callable[[Evaluated], Suite]] = {
    SuiteName.policy: partial(_held_out, Task.policy),
    SuiteName.environment: partial(_held_out, Task.environment),
    SuiteName.balanced: _balanced,
    SuiteName.mate_in_one: mates,
    SuiteName.puzzles: puzzles,
    SuiteName.selfplay: selfplay,
    SuiteName.world_model: world_model,
    SuiteName.engine_match: engine_match,
    SuiteName.match: _match,
    SuiteName.retention: _retention,
}

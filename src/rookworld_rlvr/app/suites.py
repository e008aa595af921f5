"""From a configuration to the suites it asks for."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..evaluation.balanced import balanced_suite
from ..evaluation.held_out import held_out_suite
from ..evaluation.label_loss import label_losses
from ..evaluation.retention import Asked, retention_suite
from ..evaluation.run import greedy_texts
from ..evaluation.suite import Suite, SuiteName
from ..rollout.generator import Generator, GeneratorBaseConfig, GeneratorKind
from ..rollout.weights import checksum
from ..tasks import Task
from ..tasks.corpus import example_key
from ..training.data import evaluation_rows
from ..training.errors import UserError
from ..training.policy import Policy
from .evaluated import Evaluated, load_model
from .game_suites import closed_world, engine_match, mates, puzzles, selfplay
from .wiring import make_generator

VLLM = (GeneratorKind.vllm, GeneratorKind.vllm_server)


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
        generator = make_generator(baseline, _of_this_process(config.generator))
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


def _of_this_process(config: GeneratorBaseConfig) -> GeneratorBaseConfig:
    """vLLM, here or as a server, holds one model, and that is the evaluated one; `hf` takes any other beside it."""
    return replace(config, kind=GeneratorKind.hf) if config.kind in VLLM else config


def _asked(policy: Policy, generator: Generator) -> Asked:
    return Asked(
        complete=partial(greedy_texts, generator, policy.tokenizer),
        losses=partial(label_losses, policy.model, policy.tokenizer),
    )


BUILDERS: dict[SuiteName, Callable[[Evaluated], Suite]] = {
    SuiteName.policy: partial(_held_out, Task.policy),
    SuiteName.environment: partial(_held_out, Task.environment),
    SuiteName.balanced: _balanced,
    SuiteName.mate_in_one: mates,
    SuiteName.puzzles: puzzles,
    SuiteName.selfplay: selfplay,
    SuiteName.closed_world: closed_world,
    SuiteName.engine_match: engine_match,
    SuiteName.retention: _retention,
}

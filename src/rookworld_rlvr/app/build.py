"""Construction of a run, its scorer and its other objects from a configuration."""

import random
import shutil
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ..errors import UserError, prefixed
from ..evaluation.legal_choice import require_move_tokens
from ..files import write_text
from ..model.device import select_device
from ..model.loading import load_policy
from ..model.lora import require_no_adapter
from ..model.policy import Policy
from ..model.sharded import require_sharding, shard
from ..model.world import Distributed, World
from ..progress import ConsoleStream
from ..rewards import Rubric
from ..rewards.evaluation_cache import EvaluationCache, load_cache
from ..rewards.move_evaluations import MoveEvaluations
from ..rewards.rubric import MoveSource
from ..rewards.score import Scorer
from ..rewards.scorer import make_scorer
from ..stability.guards import Guards
from ..stability.reference import References
from ..stockfish.engine import EngineConfig, engine_config
from ..stockfish.pool import EnginePool
from ..tasks.corpus import example_key
from ..tasks.prompt_stream import PromptStream, shares
from ..training.checkpoint import find_run
from ..training.checks import first_bad_parameter
from ..training.collection import Sampler
from ..training.config import RunConfig, Tracker
from ..training.data import Data, hold_back, load_data, unseen_mates
from ..training.memory import measure_peak
from ..training.optim import make_optimizer
from ..training.run import Run
from ..training.run_files import CONFIG_FILE, METRICS_FILE, make_run_folder
from ..training.sinks import ConsoleSink, JsonlSink, Observer, Sink, make_tracker, require_tracker
from ..training.state import StepContext
from .generators import config_for_second_model, make_generator
from .processes import join_world, local_rank, started_by_torchrun, threads_of_a_rank

# Width of the console in characters; wider than any table.
LINE = 1000


def make_console(*, quiet: bool = False) -> Console:
    """Return a console that is wide enough never to shorten a line. A narrower terminal wraps lines itself."""
    return Console(file=sys.stdout, width=LINE, quiet=quiet, highlight=False)


def run_console(*, quiet: bool) -> Console:
    """Return the console of a run, which continues if the console cannot be written to."""
    stream: Any = ConsoleStream(sys.stdout)
    return Console(file=stream, width=LINE, quiet=quiet, highlight=False)


def print_lines(console: Console, *lines: str) -> None:
    """Print lines as they are. Brackets, which a path may have, are not markup, and rich does not wrap the lines."""
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def set_threads(threads: int) -> None:
    """Set the number of CPU threads. 0: torch chooses. Raises UserError for a number below 0."""
    if threads < 0:
        raise UserError(f"threads: expected 0 or more, got {threads}")
    if threads:
        torch.set_num_threads(threads)


def warn_of_weights(policy: Policy, path: str) -> None:
    """Print a line on standard error if a weight of the model at `path` is not finite."""
    if name := first_bad_parameter(policy.model):
        line = f"model.path: {path} has weights that are not finite, the first is {name}: the model has diverged"
        print(f"rookworld: {line}", file=sys.stderr)


def build_run(config: RunConfig, raw: DictConfig, *, label: str = "") -> Run:
    """Build a run: load and check everything, then make its folder. A run that cannot start makes no folder.

    `label` is appended to the name of the folder. Raises UserError.
    """
    run = build_unsaved_run(config)
    try:
        run.config_text = OmegaConf.to_yaml(raw, resolve=True)
        require_tracker(config.logging.tracker)
        if config.resume:
            run.folder, _ = find_run(config.resume)
        else:
            run.folder = run.context.world.rank_0_only(lambda: _new_folder(run, label), "the run's folder")
        run.sinks = run.context.world.barrier(lambda: _make_sinks(run, raw), "the trackers")
    except BaseException:
        run.close()
        raise
    return run


def build_unsaved_run(config: RunConfig) -> Run:
    """Build a run without a folder or sinks, for commands such as `smoke`. Raises UserError."""
    device = select_device(config.device, local_rank())
    world = join_world(config.processes, device)
    return world.barrier(lambda: _build(config, device, world), "the start of the run")


def _build(config: RunConfig, device: torch.device, world: World) -> Run:
    set_threads(config.threads or threads_of_a_rank(world))
    random.seed(config.seed)
    torch.manual_seed(config.seed)
    data = _load_data(config)
    prompts = PromptStream(data.train, shares(config.data.tasks), config.seed)
    in_shards = config.distributed is Distributed.fsdp2 and started_by_torchrun()
    if in_shards:
        require_sharding()
        require_no_adapter(config.model.lora)
        if config.generator.cuda_graph:
            raise UserError("generator.cuda_graph: expected distributed=ddp, got fsdp2, which moves the weights")
    policy = load_policy(config.model, device, config.precision)
    if config.objective.all_moves_coef > 0:
        with prefixed("objective.all_moves_coef", ValueError):
            for task in config.data.task_objects():
                require_move_tokens(policy, task)
    generator = make_generator(policy, config.generator, world)
    # Built after everything else that may be refused, because engines run from here on.
    scorer, evaluations = make_scorers(config)
    references = References(policy, config.reference)
    if in_shards:
        shard(policy.model, policy.device, trained=True)
        for model in {id(side): side.model for side in (references.current, references.original)}.values():
            shard(model, policy.device, trained=False)
    context = StepContext(
        config=config,
        policy=policy,
        references=references,
        sampler=Sampler(
            generator,
            scorer,
            prompts,
            policy.tokenizer,
            world,
            temperature=config.generator.temperature,
            seed=config.seed,
        ),
        world=world,
        optimizer=make_optimizer(policy.model.parameters(), config.optim),
        guards=Guards(),
        hooks=[measure_peak],
    )
    return Run(
        config=config,
        context=context,
        data=data,
        console=run_console(quiet=not world.is_rank_0),
        evaluations=evaluations,
        make_generator=lambda other: make_generator(other, config_for_second_model(config.generator)),
    )


def _load_data(config: RunConfig) -> Data:
    """Load the rows of a run, and hold back those of the learning curve even if it is off. Raises UserError."""
    data = load_data(config.data, seed=config.seed, evaluation_rows_per_task=config.evaluation.rows)
    if config.evaluation.mates:
        mates, _ = unseen_mates(config.evaluation.mates, frozenset(map(example_key, data.train)))
        data = replace(data, mates=tuple(mates))
    data = hold_back(data, config.evaluation.curve_rows)
    for task, share in shares(config.data.tasks).items():
        if share and not any(example.task == task for example in data.train):
            raise UserError(f"evaluation.curve_rows: expected to leave training rows of task {task}, got none left")
    return data


def _new_folder(run: Run, label: str) -> Path:
    """Make the run's folder, write its configuration to it, and return it."""
    name = f"{run.config.name}-{label}" if label else run.config.name
    folder = make_run_folder(Path(run.config.output_root).expanduser(), name, now=datetime.now())
    write_text(folder / CONFIG_FILE, run.config_text)
    return folder


def _make_sinks(run: Run, raw: DictConfig) -> list[Sink]:
    """Return the sinks of rank 0, the record first; none on other ranks. Raises UserError.

    If a tracker does not start, the folder of a new run is removed.
    """
    config, tracker = run.config, run.config.logging.tracker
    if not run.context.world.is_rank_0:
        return []
    console = Observer("the console's line", ConsoleSink(run.console, config.steps), run.say)
    sinks: list[Sink] = [JsonlSink(run.folder / METRICS_FILE), console]
    if tracker is Tracker.none:
        return sinks
    settings = OmegaConf.to_container(raw, resolve=True, enum_to_str=True)
    assert isinstance(settings, dict)
    named = {str(key): value for key, value in settings.items()}
    try:
        made = make_tracker(tracker, run.folder, named)
    except UserError:
        if not config.resume:
            shutil.rmtree(run.folder, ignore_errors=True)
        raise
    return [*sinks, Observer(f"logging.tracker={tracker}", made, run.say)]


def make_scorers(config: RunConfig) -> tuple[Scorer, MoveEvaluations]:
    """Return the scorer, and the move evaluations for held-out rows. Raises UserError.

    With source=engine the engines are running when this returns. With source=cached they start when they are needed.
    """
    rubric = config.rubric
    with prefixed("rubric", ValueError):
        Rubric(rubric)
    cache = _cache(rubric.move_evals, "rubric.move_evals")
    if rubric.source is MoveSource.engine:
        pool = open_pool(engine_config(rubric.stockfish), "rubric.stockfish")
        return make_scorer(rubric, pool), MoveEvaluations(load_cache(""), pool)
    return make_scorer(rubric), MoveEvaluations(cache)


def make_move_evaluations(config: EngineConfig, nodes: int, move_evals: str) -> MoveEvaluations:
    """Return evaluations by engines if `nodes` is above 0, otherwise those of a file.

    The caller closes them. Raises UserError.
    """
    cache = _cache(move_evals, "move_evals")
    if nodes:
        return MoveEvaluations(load_cache(""), open_pool(config, "stockfish"), nodes=nodes)
    return MoveEvaluations(cache)


def open_pool(config: EngineConfig, where: str) -> EnginePool:
    """Start the engines. Raises UserError if there is no engine or if it is too old."""
    with prefixed(where, ValueError):
        return EnginePool(config)


def _cache(source: str, where: str) -> EvaluationCache:
    with prefixed(where, UserError):
        return load_cache(source)

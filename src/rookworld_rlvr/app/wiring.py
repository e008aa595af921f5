"""From a configuration to the objects a run works with."""

import sys
from datetime import datetime
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ..errors import UserError
from ..evaluation.sampled import Sampling
from ..files import write_text
from ..model.device import select_device
from ..model.policy import Policy, load_policy
from ..model.sharded import shard
from ..model.world import Distributed, World
from ..rewards.scorer import Scorer
from ..rollout.generator import Generator
from ..stability.guards import Guards
from ..stability.kl_control import KLController
from ..stability.recovery import RecoveryState
from ..stability.reference import ReferenceMode, References
from ..tasks import Example
from ..tasks.corpus import example_key
from ..tasks.prompt_stream import PromptStream
from ..tasks.self_play_prompts import SelfPlayPrompts
from ..training.checkpoint import find_run
from ..training.config import RunConfig, Tracker
from ..training.context import StepContext
from ..training.data import Data, evaluation_rows, load_data
from ..training.loop import METRICS_FILE
from ..training.memory import keep_flat
from ..training.one_step_off_policy import OneStepOffPolicy
from ..training.optim import Clock, make_optimizer
from ..training.run import Run
from ..training.run_folder import CONFIG_FILE, make_run_folder
from ..training.seeding import seed_everything
from ..training.self_play_files import SelfPlayFiles
from ..training.sinks import Cards, ConsoleSink, JsonlSink, Sink, TensorBoardSink, require_tracker
from ..training.synchronous import Synchronous
from ..training.validation import hold_back
from .generators import in_this_process, make_generator
from .processes import join_world, local_rank, threads_of_a_rank
from .scorers import make_scorers

# Wider than any table.
LINE = 1000


def make_console(*, quiet: bool = False) -> Console:
    """The console: as wide as its lines, so that nothing is cut; a terminal that is narrower breaks them itself."""
    return Console(file=sys.stdout, width=LINE, quiet=quiet)


def set_threads(threads: int) -> None:
    """CPU threads, 0: torch's own choice. Raises UserError below 0."""
    if threads < 0:
        raise UserError(f"threads: expected 0 or more, got {threads}")
    if threads:
        torch.set_num_threads(threads)


def build_run(config: RunConfig, raw: DictConfig) -> Run:
    """Load and check everything, then make the folder: a run that cannot start leaves nothing behind."""
    run = build_unsaved_run(config)
    try:
        _add_folder(run, config, raw)
    except BaseException:
        run.close()
        raise
    return run


def _add_folder(run: Run, config: RunConfig, raw: DictConfig) -> None:
    run.config_text = OmegaConf.to_yaml(raw, resolve=True)
    require_tracker(config.logging.tracker)
    root = Path(config.output_root).expanduser()
    if config.resume:
        run.folder, _ = find_run(config.resume)
    else:
        run.folder = run.context.world.rank_0_only(
            lambda: _new_folder(root, config.name, run.config_text), "the run's folder"
        )
        run.latest_in = root
    run.self_play_files = SelfPlayFiles(run.folder) if config.data.self_play.fraction else None
    run.sinks = _make_sinks(config, raw, run) if run.context.world.is_rank_0 else []


def _new_folder(root: Path, name: str, config_text: str) -> Path:
    """A run's folder with its configuration in it."""
    folder = make_run_folder(root, name, now=datetime.now())
    write_text(folder / CONFIG_FILE, config_text)
    return folder


def build_unsaved_run(config: RunConfig) -> Run:
    """Build a run without a folder or sinks, as `smoke` needs it."""
    device = select_device(config.device, local_rank())
    world = join_world(config.distributed.kind, config.distributed.timeout_s, device)
    try:
        return _build_unsaved_run(config, device, world)
    except BaseException as error:
        world.failed(error)
        raise


def _build_unsaved_run(config: RunConfig, device: torch.device, world: World) -> Run:
    set_threads(config.threads or threads_of_a_rank(world))
    seed_everything(config.seed)
    data = load_data(config.data, seed=config.seed)
    train_examples, validation_examples = _held_back(config, data.train)
    self_play = _self_play_prompts(config, data, validation_examples)
    _require_references_that_fit(config)
    _require_batches_that_can_be_early(config)
    policy = load_policy(config.model, device, config.precision)
    generator = make_generator(policy, config.generator, world)
    # Last of what may be refused: engines run from here on.
    scorer, engine = make_scorers(config)
    prompts = PromptStream(train_examples, config.data.mixture, config.seed, self_play)
    return Run(
        context=_step_context(config, policy, generator, scorer, prompts, world),
        config=config,
        reference=config.reference,
        recovery=config.recovery,
        train_examples=train_examples,
        validation_examples=validation_examples,
        held_out=evaluation_rows(data.held_out, config.evaluation_rows),
        folder=Path(),
        sinks=[],
        console=make_console(quiet=not world.is_rank_0),
        rubric_warmup_steps=config.rubric.warmup_steps,
        resume=config.resume,
        engine=engine,
        sampling=Sampling(config.generator.temperature, seed=config.seed),
        notes=data.notes,
        make_generator=lambda other: make_generator(other, in_this_process(config.generator)),
    )


def _require_references_that_fit(config: RunConfig) -> None:
    """Raises UserError for adapters whose reference, the model without them, would be moved or cut into shards."""
    rank, mode = config.model.lora.rank, config.reference.mode
    if rank and config.distributed.kind is Distributed.fsdp2:
        raise UserError(f"distributed: expected none or ddp with model.lora.rank={rank}, got fsdp2")
    if rank and mode is not ReferenceMode.frozen:
        raise UserError(f"reference.mode: expected frozen with model.lora.rank={rank}, got {mode}")


def _require_batches_that_can_be_early(config: RunConfig) -> None:
    """Raises UserError where a batch is sampled ahead that depends on what is trained meanwhile."""
    of_the_step = {
        "distributed": config.distributed.kind is not Distributed.none,
        "data.self_play.fraction": config.data.self_play.fraction,
        "objective.collection.kl_cap": config.objective.collection.kl_cap,
    }
    needed = [name for name, value in of_the_step.items() if value]
    if config.max_staleness and needed:
        raise UserError(f"max_staleness: expected 0 with {' and '.join(needed)}, got {config.max_staleness}")


def _step_context(
    config: RunConfig, policy: Policy, generator: Generator, scorer: Scorer, prompts: PromptStream, world: World
) -> StepContext:
    references = References(policy, config.reference)
    if config.distributed.kind is Distributed.fsdp2:
        shard(policy.model, policy.device, trained=True)
        for model in {id(side): side.model for side in (references.current, references.original)}.values():
            shard(model, policy.device, trained=False)
    return StepContext(
        policy=policy,
        references=references,
        generator=generator,
        scorer=scorer,
        prompts=prompts,
        batches=OneStepOffPolicy(policy) if config.max_staleness else Synchronous(),
        seed=config.seed,
        world=world,
        optimizer=make_optimizer(policy.model.parameters(), config.optim),
        objective=config.objective,
        kl=config.kl,
        optim=config.optim,
        kl_controller=KLController(config.kl),
        guards=Guards(config.recovery.guard),
        guarded=config.recovery.enabled,
        recovery=RecoveryState(),
        clock=Clock(),
        temperature=config.generator.temperature,
        max_tokens=config.generator.max_new_tokens,
        total_steps=config.steps,
        hooks=[keep_flat],
    )


def _held_back(config: RunConfig, examples: tuple[Example, ...]) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Training and validation rows; the latter only where something looks at them."""
    if not config.validation.every and config.reference.mode is not ReferenceMode.on_improvement:
        return examples, ()
    train_examples, validation_examples = hold_back(examples, config.validation.rows)
    for task, share in config.data.mixture.proportions().items():
        if share and not any(example.task is task for example in train_examples):
            raise UserError(f"validation.rows: expected to leave training rows of task {task}, got none left")
    return train_examples, validation_examples


def _self_play_prompts(
    config: RunConfig, data: Data, validation_examples: tuple[Example, ...]
) -> SelfPlayPrompts | None:
    """Games that ask no position that is held out or left out; None where none are asked for. Raises UserError."""
    if not config.data.self_play.fraction:
        return None
    if not config.data.mixture.policy:
        raise UserError(
            "data.self_play.fraction: expected data.mixture.policy above 0, as games go on by the completions of "
            f"P: prompts, got a fraction of {config.data.self_play.fraction} and no such prompts"
        )
    excluded = data.excluded | frozenset(map(example_key, validation_examples))
    try:
        return SelfPlayPrompts(config.data.self_play, seed=config.seed, excluded=excluded)
    except ValueError as error:
        raise UserError(str(error)) from error


def _make_sinks(config: RunConfig, raw: DictConfig, run: Run) -> list[Sink]:
    sinks: list[Sink] = [
        JsonlSink(run.folder / METRICS_FILE),
        ConsoleSink(run.console, config.steps),
    ]
    tracker = config.logging.tracker
    if tracker is Tracker.none:
        return sinks
    # Only a tracker draws boards while a run goes on.
    from ..report.cards import cards_html, cards_markdown

    cards = Cards(cards_html, cards_markdown)
    settings = OmegaConf.to_container(raw, resolve=True, enum_to_str=True)
    assert isinstance(settings, dict)
    named = {str(key): value for key, value in settings.items()}
    if tracker is Tracker.tensorboard:
        return [*sinks, TensorBoardSink(run.folder, cards)]
    if tracker is Tracker.wandb:
        from ..training.wandb_sink import WandbSink

        return [*sinks, WandbSink(config.logging, run.folder, named, cards)]
    from ..training.trackio_sink import TrackioSink

    return [*sinks, TrackioSink(config.logging, run.folder, named, cards)]

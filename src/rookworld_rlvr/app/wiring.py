"""From a configuration to the objects a run works with."""

import sys
from datetime import datetime
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ..rewards import Rubric
from ..rollout.generator import GeneratorConfig
from ..rollout.hf_generator import HFGenerator
from ..tasks.sampler import Sampler
from ..training.checkpoint import find_checkpoint
from ..training.data import evaluation_rows, load_data
from ..training.errors import UserError
from ..training.optim import make_optimizer
from ..training.policy import Policy, load_policy, select_device
from ..training.recovery import RecoveryState
from ..training.reference import make_reference
from ..training.run_folder import make_run_folder, point_latest
from ..training.seeding import seed_everything
from ..training.sinks import ConsoleSink, JsonlSink, Sink, TensorBoardSink, Tracker, require_tracker
from ..training.step import StepContext
from ..training.trainer import METRICS_FILE, Run
from .config import RunConfig

CONFIG_FILE = "config.yaml"


def make_console() -> Console:
    """The console: as wide as its lines where output is a file, so that none is broken."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160)


def set_threads(threads: int) -> None:
    """CPU threads, 0: torch's own choice. Raises UserError below 0."""
    if threads < 0:
        raise UserError(f"threads: expected 0 or more, got {threads}")
    if threads:
        torch.set_num_threads(threads)


def make_generator(policy: Policy, config: GeneratorConfig) -> HFGenerator:
    """The generator that the configuration names."""
    return HFGenerator(
        policy.model,
        config,
        eos_id=int(policy.tokenizer.eos_token_id),
        pad_id=policy.pad_id,
        autocast=policy.autocast,
    )


def build_run(config: RunConfig, raw: DictConfig) -> Run:
    """Load and check everything, then make the folder: a run that cannot start leaves nothing behind."""
    run = build_unsaved_run(config)
    require_tracker(config.logging.tracker)
    checkpoint = find_checkpoint(config.resume) if config.resume else None
    root = Path(config.output_root).expanduser()
    if checkpoint is None:
        run.folder = make_run_folder(root, config.name, now=datetime.now())
        point_latest(root, run.folder)
    else:
        run.folder = checkpoint.parents[1]
    OmegaConf.save(raw, run.folder / CONFIG_FILE, resolve=True)
    run.sinks = _make_sinks(config, raw, run)
    return run


def build_unsaved_run(config: RunConfig) -> Run:
    """The same without a folder or sinks, as `smoke` needs it."""
    set_threads(config.threads)
    seed_everything(config.seed)
    device = select_device(config.device)
    data = load_data(config.data, seed=config.seed)
    policy = load_policy(config.model, device, config.precision)
    context = StepContext(
        policy=policy,
        reference=make_reference(policy),
        generator=make_generator(policy, config.generator),
        rubric=_make_rubric(config),
        sampler=Sampler(data.train, config.data.mixture, config.seed),
        optimizer=make_optimizer(policy.model.parameters(), config.optim),
        objective=config.objective,
        kl=config.kl,
        optim=config.optim,
        recovery=RecoveryState(),
        temperature=config.generator.temperature,
        total_steps=config.steps,
    )
    return Run(
        context=context,
        config=config,
        reference=config.reference,
        recovery=config.recovery,
        train_examples=data.train,
        held_out=evaluation_rows(data.held_out, config.evaluation_rows),
        folder=Path(),
        sinks=[],
        console=make_console(),
        resume=config.resume,
    )


def _make_rubric(config: RunConfig) -> Rubric:
    try:
        return Rubric(config.rubric)
    except ValueError as error:
        raise UserError(f"rubric: {error}") from error


def _make_sinks(config: RunConfig, raw: DictConfig, run: Run) -> list[Sink]:
    sinks: list[Sink] = [
        JsonlSink(run.folder / METRICS_FILE),
        ConsoleSink(run.console, config.steps, config.logging.console_every),
    ]
    if config.logging.tracker is Tracker.tensorboard:
        sinks.append(TensorBoardSink(run.folder))
    if config.logging.tracker is Tracker.wandb:
        from ..training.wandb_sink import WandbSink

        settings = OmegaConf.to_container(raw, resolve=True)
        assert isinstance(settings, dict)
        sinks.append(WandbSink(config.logging, run.folder, {str(key): value for key, value in settings.items()}))
    return sinks

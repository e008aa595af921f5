"""Configurations composed as the command line composes them, and what can be observed of each."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir

from rookworld_rlvr.app.config import EvaluateConfig, RunConfig, WarmstartRunConfig
from rookworld_rlvr.app.hydra_command import SCHEMAS, conf_folder, to_dataclass
from rookworld_rlvr.app.wiring import build_unsaved_run
from rookworld_rlvr.objective import clipped_policy_loss
from rookworld_rlvr.rewards import Rubric
from rookworld_rlvr.training.errors import TrainingGaveUpError, UserError
from rookworld_rlvr.training.metrics import step_metrics
from rookworld_rlvr.training.recovery import RecoveryState, record_update
from rookworld_rlvr.training.step import grpo_step

SCHEMA_OF = {"train": RunConfig, "evaluate": EvaluateConfig, "warmstart": WarmstartRunConfig}
Composed = RunConfig | EvaluateConfig | WarmstartRunConfig


@pytest.fixture(scope="session")
def composed() -> Callable[..., Composed]:
    """The configuration of a command under overrides, as its dataclasses."""

    def make(*overrides: str, command: str = "train") -> Composed:
        SCHEMAS.store(name=f"{command}_schema", node=SCHEMA_OF[command])
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            config: Composed = to_dataclass(compose(command, list(overrides)))
        return config

    return make


OF_THE_MACHINE = ("time/", "throughput/", "memory/")
FEN = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
NEXT = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
LABEL = "M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0.3 0.2 0.1 0.0 -0.1 B: e2e4"
P_PROBES = [
    "",
    "M: e2e4 E: 0.1",
    LABEL + " and more",
    "M: e2e4 x E: y 0.5 B: z",
    "M: e2e4 E: nan inf B: e9",
    "M: e2e4 e2e4 d2d4 E: 0.1 0.1 -2.0 B: d2d4",
    "M: e2e4 E: 0.1 B: g1f3",
    "M: a2a3 E: 0.1 B: a2a3",
]
A_PROBES = [
    f"{NEXT}+0.001",
    f"{NEXT}+0.001+0+0+more",
    "8/8 w - - 0 1+x+0+0",
    f"{NEXT}+x+2+0",
    f"{NEXT}+0.001+0+2",
    f"{FEN}+0.5+0+1",
    f"{NEXT.replace(' 0 1', ' 1 1')}+0.5+1+0",
    f"{NEXT.replace('4P3', '8')}+1.0+0+0",
]


def totals(config: RunConfig) -> list[float]:
    rubric = Rubric(config.rubric)
    asked = [(f"P: {FEN}", text, LABEL) for text in P_PROBES]
    asked += [(f"A: {FEN}+e2e4+e2e4+", text, None) for text in A_PROBES]  # type: ignore[misc]
    return [rubric.score(*arguments, step=step).total for arguments in asked for step in (None, 3)]


def two_steps(config: RunConfig) -> list[Any]:
    context = build_unsaved_run(config).context
    context.total_steps = 4
    found = []
    for step in (0, 1):
        metrics = step_metrics(grpo_step(context, step), context.recovery)
        found.append({key: metrics[key] for key in metrics if not key.startswith(OF_THE_MACHINE)})
    return [*found, float(sum(p.detach().double().abs().sum() for p in context.policy.model.parameters()))]


def rows(config: RunConfig) -> Any:
    try:
        run = build_unsaved_run(config)
    except UserError as error:
        return str(error)
    return run.train_examples, tuple(run.held_out)


def model(config: RunConfig) -> tuple[str, int]:
    found = build_unsaved_run(config).context.policy.model
    return found.config._attn_implementation, found.num_parameters()


def device(config: RunConfig) -> str:
    try:
        return build_unsaved_run(config).context.policy.device.type
    except UserError as error:
        return str(error)


def threads(config: RunConfig) -> int:
    try:
        build_unsaved_run(config)
        return torch.get_num_threads()
    finally:
        torch.set_num_threads(1)


def forward_passes(config: RunConfig) -> list[int]:
    """The rows of each pass through the model in one step."""
    context, sizes = build_unsaved_run(config).context, []
    context.policy.model.base_model.h[0].register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    grpo_step(context, 0)
    return sizes


def clipped_loss(config: RunConfig) -> list[float]:
    ratios = torch.tensor([[0.5, 2.0], [0.5, 2.0]])
    return (
        clipped_policy_loss(
            ratios.log(),
            torch.zeros(2, 2),
            advantages_B=torch.tensor([1.0, -1.0]),
            loss_mask=torch.ones(2, 2, dtype=torch.bool),
            clip=config.objective.clip,
        )
        .per_token.flatten()
        .tolist()
    )


def faults(config: RunConfig) -> tuple[float, int]:
    state = RecoveryState()
    with pytest.raises(TrainingGaveUpError):
        while True:
            record_update(state, config.recovery, fault="loss")
    return state.lr_scale, state.skipped


@pytest.fixture(scope="session")
def observers() -> dict[str, Callable[[RunConfig], Any]]:
    """What a configuration leads to, in cheap and repeatable ways."""
    found = (totals, two_steps, rows, model, device, threads, forward_passes, clipped_loss, faults)
    return {observer.__name__: observer for observer in found}

"""Every file under conf/ composes into its dataclass and changes only the values that its name announces."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.app.arguments import conf_folder
from rookworld_rlvr.app.config import BenchRunConfig, EvaluateConfig, SFTRunConfig
from rookworld_rlvr.objective import AdvantageScale, KLForm, LossKind, ZeroVariance
from rookworld_rlvr.rollout.generator import GeneratorKind
from rookworld_rlvr.stability.faults import FaultKind
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.diagnosis import SUGGESTIONS

CONF = conf_folder()
COMMANDS = {
    "train": RunConfig,
    "bench": BenchRunConfig,
    "evaluate": EvaluateConfig,
    "sft": SFTRunConfig,
}
# Settings of most papers: advantages are divided by the group's std, and no loss term covers all legal moves.
GROUP_STD: dict[str, Any] = {
    "objective.advantage.scale": AdvantageScale.group,
    "objective.advantage.std_floor": 1e-4,
    "objective.all_moves_coef": 0.0,
}
# The values that each option of a group changes, by key. All other values must stay as they are.
CHANGES: dict[str, dict[str, Any]] = {
    "objective=dapo": {**GROUP_STD, "objective.collection.zero_variance": ZeroVariance.refill},
    "objective=grpo": {**GROUP_STD, "objective.loss": LossKind.grpo, "objective.clip.high": 0.2},
    "objective=dr_grpo": {
        "objective.all_moves_coef": 0.0,
        "objective.loss": LossKind.dr_grpo,
        "objective.clip.high": 0.2,
        "objective.advantage.scale": AdvantageScale.none,
    },
    "objective=cispo": {
        **GROUP_STD,
        "objective.loss": LossKind.cispo,
        "objective.clip.low": 1.0,
        "objective.clip.high": 4.0,
        "objective.collection.zero_variance": ZeroVariance.refill,
    },
    "objective=gspo": {
        **GROUP_STD,
        "objective.loss": LossKind.gspo,
        # The ratio is one per completion, so tokens are not corrected for the sampler's rounding.
        "objective.mismatch_cap": 0.0,
        "objective.clip.low": 3e-4,
        "objective.clip.high": 4e-4,
    },
    "experiment=rookworld_124m": {
        "name": "rookworld-124m",
        "model.path": "jrahn/RookWorld-LM-124M",
        "optim.lr": 1e-6,
        "optim.micro_batch_size": 16,
    },
    "experiment=policy_only": {
        "name": "policy-only",
        "data.tasks": ["policy", "environment:0"],
    },
    "experiment=environment_only": {
        "name": "environment-only",
        "data.tasks": ["policy:0", "environment"],
    },
    "experiment=chat": {
        "name": "chat",
        "steps": 240,
        "start_share": 0.0,
        "data.tasks": ["chat"],
        "data.chat.prefill": "auto",
        # The limit of answers that are begun, by the task.
        "generator.max_new_tokens": 16,
        "objective.prompts_per_step": 4,
        "objective.group_size": 4,
        "objective.all_moves_coef": 5.0,
        "objective.all_moves_temperature": 0.1,
        "kl.form": KLForm.off,
        "optim.lr": 1e-4,
        "optim.warmup_steps": 15,
        "optim.micro_batch_size": 8,
        "recovery.kl_limit": 0.0,
        "evaluation.rows": 512,
        "evaluation.sampled_rows": 0,
        "evaluation.curve_rows": 64,
        "evaluation.curve_every": 40,
        "evaluation.decoding": "text",
        "evaluation.match_pairs": 0,
    },
    "experiment=long": {
        "name": "long",
        "steps": 480,
        "objective.prompts_per_step": 32,
    },
    "debug=overfit": {
        "name": "overfit",
        "steps": 32,
        "evaluation.rows": 0,
        "evaluation.match_pairs": 0,
        "data.limit": 4,
        "data.tasks": ["policy", "environment"],
        "objective.prompts_per_step": 4,
        "objective.group_size": 16,
        "kl.form": KLForm.off,
        "optim.lr": 5e-4,
        "optim.warmup_steps": 0,
    },
    "debug=short": {
        "evaluation.match_pairs": 2,
        "evaluation.match_plies": 10,
        "name": "short",
        "steps": 3,
        "evaluation.rows": 16,
        "checkpoint_every": 2,
        "evaluation.curve_rows": 16,
        "objective.prompts_per_step": 2,
        "objective.group_size": 4,
    },
}


def set_path(config: Any, path: str, value: Any) -> None:
    *owners, name = path.split(".")
    for owner in owners:
        config = getattr(config, owner)
    setattr(config, name, value)


def get_path(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def test_every_conf_file_is_a_command_or_a_tested_option() -> None:
    files = {path.relative_to(CONF).with_suffix("") for path in CONF.rglob("*.yaml")}
    assert {str(path) for path in files if path.parent == Path()} == COMMANDS.keys()
    assert {f"{path.parent}={path.name}" for path in files if path.parent != Path()} == CHANGES.keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_command_defaults_equal_its_dataclass_defaults(command: str, composed: Callable[..., Any]) -> None:
    assert composed(command=command) == COMMANDS[command]()


@pytest.mark.parametrize("option", CHANGES)
def test_group_option_changes_only_the_expected_values(option: str, composed: Callable[..., Any]) -> None:
    expected = RunConfig()
    for path, value in CHANGES[option].items():
        set_path(expected, path, value)
    assert composed(option) == expected


@pytest.mark.parametrize("choice", [AdvantageScale, KLForm, LossKind, GeneratorKind])
def test_enum_values_equal_their_names(choice: type[StrEnum]) -> None:
    assert [member.name for member in choice] == [member.value for member in choice]


def test_single_value_overrides_its_group_in_either_order(composed: Callable[..., Any]) -> None:
    for given in (["objective=grpo", "objective.clip.high=0.5"], ["objective.clip.high=0.5", "objective=grpo"]):
        assert composed(*given).objective.clip.high == 0.5


def test_each_loss_has_a_group_file_with_its_papers_settings(composed: Callable[..., Any]) -> None:
    configs = [composed(option) for option in CHANGES if option.startswith("objective=")]
    assert {config.objective.loss for config in configs} == set(LossKind)


def test_suggested_overrides_are_accepted_and_change_the_config(composed: Callable[..., Any]) -> None:
    assert SUGGESTIONS.keys() == set(FaultKind)
    before = composed("optim.lr=1", "rubric.source=labels", "threads=1")
    for kind, suggested in SUGGESTIONS.items():
        given = suggested.format(lr=1e-5, kl_coef=0.1).split()
        after = composed("optim.lr=1", "rubric.source=labels", "threads=1", *given)
        assert after != before, kind

"""Every option of a run has an observable effect when the command line changes it, or is refused.

The first test fails until a new option has an entry in OPTIONS. `"group.option": Option(value)` is enough if the value
changes the metrics of two steps or is refused. The quick tests change one option for each observer, `test.sh all`
changes every option.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.training.config import RunConfig

OF_THE_MACHINE = ("time/", "throughput/", "memory/")


@dataclass(frozen=True)
class Option:
    """A changed option value, and the observer that must see its effect; by default the metrics of two steps."""

    value: Any
    observer: str = "two_steps"
    beside: tuple[str, ...] = ()
    """Overrides of both runs that make the effect observable."""


def leaves(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for option in fields(config):
        value = getattr(config, option.name)
        yield from leaves(value, f"{path}{option.name}.") if is_dataclass(value) else [(path + option.name, value)]


LEAVES = dict(leaves(RunConfig()))
KL = ("kl.coef=1", "optim.lr=0.01", "recovery.kl_limit=0")
# With these updates the policy moves so far from the sampling policy that the clip takes effect.
FAR = ("objective.epochs=3", "optim.lr=0.005")
# Settings of the failing server that the observer `server` starts.
SERVER = ("generator.kind=vllm_server", "generator.vllm.url=http://127.0.0.1:1")
ADAPTED = ("model.lora.rank=4",)
BY_ENGINE = ("rubric.source=engine",)
# Endings of the weights and scales that have an effect only if an engine scores.
OF_ENGINE = ("halving_loss",)
CHAT = ("data.tasks=[chat]",)
# Data whose positions have move evaluations.
EVALUATED = ("rubric.source=cached", "data.train=default", "data.held_out=default")
OPTIONS: dict[str, Option] = {
    path: Option(value * 1.3, "totals", BY_ENGINE if path.endswith(OF_ENGINE) else ())
    for path, value in LEAVES.items()
    if path.startswith("rubric.") and isinstance(value, float)
} | {
    "rubric.policy.missed_mate": Option(1.0, "totals", BY_ENGINE),
    "rubric.chat.missed_mate": Option(1.0, "totals", BY_ENGINE),
    "data.chat.preset": Option("r1", "rows", CHAT),
    "data.chat.form": Option("boxed", "rows", CHAT),
    "data.chat.notation": Option("san", "rows", CHAT),
    "data.chat.legal_moves": Option(False, "rows", CHAT),
    "data.chat.board": Option(True, "rows", CHAT),
    "data.chat.thinking": Option(True, "rows", CHAT),
    "data.chat.prefill": Option("auto", "rows", CHAT),
    "rubric.source": Option("rules", "totals"),
    "rubric.move_evals": Option("/nope", "refused"),
    "rubric.stockfish.path": Option("/nope", "verdicts"),
    "rubric.stockfish.nodes": Option(77, "verdicts"),
    "rubric.stockfish.processes": Option(2, "verdicts"),
    "steps": Option(1, "folder"),
    "max_minutes": Option(1e-9, "folder"),
    "checkpoint_every": Option(1, "folder"),
    "evaluation.rows": Option(2, "folder"),
    "evaluation.sampled_rows": Option(1, "folder"),
    "evaluation.mates": Option("/nope", "refused"),
    "evaluation.match_pairs": Option(7, "match"),
    "evaluation.match_plies": Option(7, "match"),
    "evaluation.decoding": Option("text", "match"),
    "evaluation.curve_every": Option(2, "folder", ("evaluation.curve_rows=2",)),
    "evaluation.curve_rows": Option(2, "rows", ("evaluation.curve_rows=3",)),
    "name": Option("other", "folder"),
    "output_root": Option("elsewhere", "folder"),
    "logging.tracker": Option("tensorboard", "folder"),
    "resume": Option("/nope", "refused"),
    "processes": Option(0, "refused"),
    "distributed": Option("none", "refused"),
    "generator.kind": Option("none", "refused"),
    "device": Option("cuda", "device"),
    "threads": Option(2, "threads"),
    "model.path": Option("tiny", "model"),
    "model.activation_checkpointing": Option(True, "block_passes"),
    "model.lora.rank": Option(4),
    "model.lora.alpha": Option(8.0, beside=ADAPTED),
    "model.lora.targets": Option("[c_fc]", beside=ADAPTED),
    "precision": Option("bf16"),
    "seed": Option(1),
    "data.train": Option("default", "rows"),
    "data.held_out": Option("default", "rows"),
    "data.limit": Option(10, "rows"),
    "data.exclude": Option("[default]", "rows", ("data.train=default", "data.held_out=default")),
    "data.tasks": Option("[environment]"),
    "generator.temperature": Option(0.8),
    "generator.max_new_tokens": Option(20),
    "generator.batch_size": Option(
        4, "forward_passes", ("data.tasks=[policy,environment:0]", "objective.prompts_per_step=4")
    ),
    "generator.cuda_graph": Option(True),
    "generator.vllm.kv_cache_gib": Option(2.0, "engines"),
    "generator.vllm.gpu_memory_fraction": Option(0.5, "engines"),
    "generator.vllm.url": Option("http://127.0.0.1:2", "server", SERVER),
    "objective.loss": Option("grpo"),
    "objective.prompts_per_step": Option(3),
    "objective.group_size": Option(5),
    "objective.epochs": Option(2),
    "objective.minibatches": Option(2),
    "objective.collection.zero_variance": Option("drop", beside=("generator.max_new_tokens=4",)),
    "objective.collection.truncated": Option("mask", beside=("generator.max_new_tokens=20",)),
    "objective.advantage.scale": Option("group"),
    "objective.advantage.std_floor": Option(2.0),
    "objective.clip.low": Option(0.001, beside=FAR),
    "objective.clip.high": Option(0.001, beside=FAR),
    "objective.mismatch_cap": Option(3.0, "biased_sampler"),
    "objective.entropy_coef": Option(0.1),
    "objective.all_moves_coef": Option(0, beside=EVALUATED),
    "objective.all_moves_temperature": Option(0.5, beside=EVALUATED),
    "start_share": Option(0.0, "folder"),
    "kl.form": Option("exact", beside=KL),
    "kl.coef": Option(2.0, beside=KL),
    "kl.warmup_steps": Option(4, beside=KL),
    "reference.refresh_every": Option(2, "references"),
    "recovery.enabled": Option(False, "escalation"),
    "recovery.recovery_lr_factor": Option(0.25, "escalation"),
    "recovery.max_consecutive_nans": Option(2, "escalation"),
    "recovery.kl_limit": Option(0.5, "alarms"),
    "optim.lr": Option(0.001),
    "optim.warmup_steps": Option(5),
    "optim.min_lr_fraction": Option(0.9),
    "optim.weight_decay": Option(0.5),
    "optim.max_grad_norm": Option(1e-9),
    "optim.micro_batch_size": Option(2, "forward_passes"),
}
EXIT_DONE, EXIT_GAVE_UP = 0, 4


def folder(root: Path, arguments: list[str], capfd: pytest.CaptureFixture[str]) -> Any:
    """Return the results of a run of two steps: exit code, metrics, summary, files and output, without times."""
    capfd.readouterr()
    code = main(["train", *arguments])
    assert code in (EXIT_DONE, EXIT_GAVE_UP)
    [latest] = root.glob("*/latest")
    run = latest.resolve()
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = {} if code else json.loads((run / "summary.json").read_text())
    observed = (
        code,
        [{key: row[key] for key in row if not key.startswith(OF_THE_MACHINE)} for row in metrics],
        [summary.get(key) for key in ("stopped", "before", "recovery")],
        summary.get("hashes", {}).get("model after"),
        (run / "rollouts.jsonl").read_text().count("\n"),
        sorted(path.name for path in [*run.iterdir(), *run.glob("checkpoints/*"), *run.glob("faults/*")]),
        (latest.parent.name, OmegaConf.load(run / "config.yaml").name in run.name, run.name.split("-")[3]),
        [line.split()[1] for line in capfd.readouterr().out.splitlines() if line.startswith("step ")],
    )
    latest.unlink()
    return observed


def observed_or_refused(observe: Callable[[RunConfig], Any], compose: Callable[[], RunConfig]) -> Any:
    """Return what is observed of a configuration, or the message of its refusal."""
    try:
        return observe(compose())
    except (UserError, ValueError, HydraException) as error:
        return str(error)


def options(wanted: Callable[[str], bool]) -> list[Any]:
    """Return the options of the wanted observers. All but each observer's first option are slow."""
    first = {option.observer: path for path, option in reversed(OPTIONS.items())}.values()
    paths = [path for path, option in OPTIONS.items() if wanted(option.observer)]
    return [path if path in first else pytest.param(path, marks=pytest.mark.slow) for path in paths]


@pytest.fixture(scope="module")
def unchanged() -> dict[tuple[str, ...], Any]:
    """Return a cache of observations without the change, by observer and overrides. Many options share one."""
    return {}


def test_every_train_option_is_in_the_table() -> None:
    assert OPTIONS.keys() == LEAVES.keys()


@pytest.mark.parametrize("path", options(lambda observer: observer not in ("folder", "refused")))
def test_changed_train_option_has_an_observable_effect(
    path: str,
    composed: Callable[..., RunConfig],
    small_overrides: list[str],
    corpus: Any,
    observers: dict[str, Callable[[RunConfig], Any]],
    unchanged: dict[tuple[str, ...], Any],
) -> None:
    option = OPTIONS[path]
    given = [*small_overrides, "generator.max_new_tokens=32"]
    given += [override.format(dataset=corpus.train.parent) for override in option.beside]
    observe, key = observers[option.observer], (option.observer, *option.beside)
    if key not in unchanged:
        unchanged[key] = observe(composed(*given))
        assert unchanged[key] == observe(composed(*given))
    assert unchanged[key] != observed_or_refused(observe, lambda: composed(*given, f"{path}={option.value}"))


@pytest.mark.parametrize("path", options(lambda observer: observer == "folder"))
def test_changed_train_option_changes_the_runs_output(
    path: str,
    small_overrides: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    unchanged: dict[tuple[str, ...], Any],
) -> None:
    option = OPTIONS[path]
    given = [*small_overrides, "generator.max_new_tokens=32", f"output_root={tmp_path / 'outputs'}", "steps=2"]
    given += option.beside
    value = tmp_path / option.value if path == "output_root" else option.value
    key = ("folder", *option.beside)
    if key not in unchanged:
        unchanged[key] = folder(tmp_path, given, capfd)
        assert unchanged[key] == folder(tmp_path, given, capfd)
    assert unchanged[key] != folder(tmp_path, [*given, f"{path}={value}"], capfd)


@pytest.mark.parametrize("path", [path for path in OPTIONS if OPTIONS[path].observer == "refused"])
def test_invalid_train_option_is_refused_by_name(
    path: str, small_overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", *small_overrides, f"output_root={tmp_path / 'outputs'}", f"{path}={OPTIONS[path].value}"]
    assert main(arguments) == 2 and path.split(".")[-1] in capfd.readouterr().err

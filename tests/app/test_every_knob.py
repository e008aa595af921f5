"""Every knob of a run, changed on the command line, changes something that can be observed, or is refused.

A new leaf of the configuration fails the first test until it has an entry here. The quick checks change one knob by
each observer, `test.sh all` every one.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.training.config import RunConfig

OF_THE_MACHINE = ("time/", "throughput/", "memory/")


@dataclass(frozen=True)
class Knob:
    """How a leaf is changed and where that shows."""

    value: Any
    observer: str
    beside: tuple[str, ...] = ()
    """Overrides of both runs that let the change show."""


def leaves(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for knob in fields(config):
        value = getattr(config, knob.name)
        yield from leaves(value, f"{path}{knob.name}.") if is_dataclass(value) else [(path + knob.name, value)]


LEAVES = dict(leaves(RunConfig()))
KL = ("kl.coef=1", "optim.lr=0.01", "recovery.guard.kl_limit=0")
# Updates far enough from the policy that sampled for a clip to bind.
FAR = ("objective.epochs=3", "optim.lr=0.005")
ADAPTIVE_KL = ("kl.control=adaptive",)
# A server that fails after a while, see the observer.
SERVER = ("generator=vllm_server", "generator.vllm.urls=[http://127.0.0.1:1]", "generator.vllm.retries=0")
SHORT_SEARCH = ("rubric.stockfish.timeout_s=0.3",)
BY_ENGINE = ("rubric.source=engine",)
# Weights and scales that count only where an engine judges.
OF_ENGINE = ("_value", "halving_loss")
SELF_PLAY = ("data.self_play.fraction=1", "data.mixture.environment=0")
COMPILED = ("model.compile",)
KNOBS: dict[str, Knob] = {
    path: Knob(value * 1.3, "totals", ("rubric.warmup_steps=10", *(BY_ENGINE if path.endswith(OF_ENGINE) else ())))
    for path, value in LEAVES.items()
    if path.startswith("rubric.") and isinstance(value, float)
} | {
    "rubric.policy.missed_mate": Knob(1.0, "totals", BY_ENGINE),
    "rubric.source": Knob("rules", "totals"),
    "rubric.move_evals": Knob("/nope", "refused"),
    "rubric.stockfish.path": Knob("/nope", "verdicts"),
    "rubric.stockfish.nodes": Knob(77, "verdicts"),
    "rubric.stockfish.processes": Knob(2, "verdicts"),
    "rubric.stockfish.timeout_s": Knob(0.4, "deadline", SHORT_SEARCH),
    "rubric.stockfish.cache": Knob(False, "verdicts"),
    "evaluation_nodes": Knob(77, "measures"),
    "rubric.warmup_steps": Knob(7, "totals"),
    "steps": Knob(1, "folder"),
    "max_minutes": Knob(1e-9, "folder"),
    "checkpoint_every": Knob(1, "folder", ("keep_checkpoints=9",)),
    "keep_checkpoints": Knob(1, "folder", ("checkpoint_every=1",)),
    "evaluation_rows": Knob(2, "folder"),
    "sampled_rows": Knob(1, "folder"),
    "match_pairs": Knob(7, "match"),
    "match_plies": Knob(7, "match"),
    "rollouts_every": Knob(2, "folder", ("steps=3",)),
    "validation.every": Knob(2, "folder", ("validation.rows=8",)),
    "validation.rows": Knob(3, "rows", ("validation.every=1", "validation.rows=8")),
    "name": Knob("other", "folder"),
    "output_root": Knob("elsewhere", "folder"),
    "logging.tracker": Knob("tensorboard", "folder"),
    "logging.project": Knob("other", "folder", ("logging=wandb",)),
    "resume": Knob("/nope", "refused"),
    "processes": Knob(2, "refused"),
    "max_staleness": Knob(1, "two_steps"),
    "distributed.kind": Knob("ddp", "missed", ("distributed.timeout_s=0.3",)),
    "distributed.timeout_s": Knob(0.4, "missed", ("distributed.kind=ddp", "distributed.timeout_s=0.3")),
    "generator.kind": Knob("none", "refused"),
    "device": Knob("cuda", "device"),
    "threads": Knob(2, "threads"),
    "model.attention": Knob("sdpa", "model"),
    "model.dropout": Knob(0.3, "two_steps", ("recovery.guard.kl_limit=0",)),
    "model.path": Knob("tiny", "model"),
    "model.activation_checkpointing": Knob(True, "block_passes"),
    "model.compile": Knob(True, "compiled_graphs"),
    "model.lora.rank": Knob(4, "two_steps"),
    "model.lora.alpha": Knob(8, "two_steps", ("model.lora.rank=4",)),
    "model.lora.targets": Knob("c_attn", "two_steps", ("model.lora.rank=4",)),
    "precision": Knob("bf16", "two_steps"),
    "seed": Knob(1, "two_steps"),
    "data.train": Knob("default", "rows"),
    "data.held_out": Knob("default", "rows"),
    "data.split": Knob("nope", "rows", ("data.train={dataset}",)),
    "data.limit": Knob(10, "rows"),
    "data.exclude": Knob("[default]", "rows", ("data.train=default", "data.held_out=default")),
    "data.mixture.policy": Knob(0, "two_steps"),
    "data.mixture.environment": Knob(0, "two_steps"),
    "data.mixture.adaptive": Knob(1, "draws"),
    "data.self_play.fraction": Knob(1, "two_steps"),
    "data.self_play.games": Knob(1, "two_steps", SELF_PLAY),
    "generator.temperature": Knob(0.8, "two_steps"),
    "generator.max_new_tokens": Knob(20, "two_steps"),
    "generator.batch_size": Knob(4, "forward_passes", ("data.mixture.environment=0", "objective.prompts_per_step=4")),
    "generator.draft_tokens": Knob(
        0, "forward_passes", ("model.path=tiny", "data.train=default", "data.held_out=default", "data.mixture.policy=0")
    ),
    "model.packing": Knob(False, "two_steps"),
    "kl.measured": Knob(False, "two_steps", ("kl.coef=0",)),
    "generator.vllm.kv_cache_gib": Knob(2.0, "engines"),
    "generator.vllm.gpu_memory_fraction": Knob(0.5, "engines"),
    "generator.vllm.urls": Knob("[http://127.0.0.1:2]", "server", SERVER),
    "generator.vllm.sync_folder": Knob("/nope", "server", SERVER),
    "generator.vllm.timeout_s": Knob(0.05, "server", SERVER),
    "generator.vllm.retries": Knob(1, "server", SERVER),
    "objective.loss": Knob("grpo", "two_steps"),
    "objective.prompts_per_step": Knob(3, "two_steps"),
    "objective.group_size": Knob(5, "two_steps"),
    "objective.epochs": Knob(2, "two_steps"),
    "objective.minibatches": Knob(2, "two_steps"),
    "objective.collection.zero_variance": Knob("drop", "two_steps", ("objective.advantage.outcome_filter=true",)),
    "objective.collection.truncated": Knob("mask", "two_steps", ("generator.max_new_tokens=20",)),
    "objective.collection.kl_cap": Knob(1e-6, "two_steps"),
    "objective.advantage.scale": Knob("group", "two_steps"),
    "objective.advantage.std_floor": Knob(2.0, "two_steps"),
    "objective.advantage.outcome_filter": Knob("true", "two_steps"),
    "objective.clip.clip_low": Knob(0.001, "two_steps", FAR),
    "objective.clip.clip_high": Knob(0.001, "two_steps", FAR),
    "objective.mismatch.mode": Knob("token_mask", "biased_sampler"),
    "objective.mismatch.cap": Knob(3.0, "biased_sampler"),
    "objective.entropy_coef": Knob(0.1, "two_steps"),
    "kl.form": Knob("exact", "two_steps", KL),
    "kl.control": Knob("adaptive", "coefficients"),
    "kl.coef": Knob(2.0, "two_steps", KL),
    "kl.warmup_steps": Knob(4, "two_steps", KL),
    "kl.target": Knob(0.2, "coefficients", ADAPTIVE_KL),
    "kl.min_coef": Knob(0.045, "coefficients", ADAPTIVE_KL),
    "reference.mode": Knob("every", "references", ("reference.refresh_every=2",)),
    "reference.refresh_every": Knob(1, "references", ("reference.mode=every",)),
    "recovery.enabled": Knob(False, "escalation"),
    "recovery.recovery_lr_factor": Knob(0.25, "escalation"),
    "recovery.max_consecutive_nans": Knob(2, "escalation"),
    "recovery.restore_after": Knob(3, "escalation"),
    "recovery.max_restores": Knob(1, "escalation"),
    "recovery.guard.spike_factor": Knob(20.0, "alarms"),
    "recovery.guard.kl_limit": Knob(0.5, "alarms"),
    "optim.lr": Knob(0.001, "two_steps"),
    "optim.warmup_steps": Knob(5, "two_steps"),
    "optim.min_lr_fraction": Knob(0.9, "two_steps"),
    "optim.weight_decay": Knob(0.5, "two_steps"),
    "optim.beta1": Knob(0.5, "two_steps"),
    "optim.beta2": Knob(0.5, "two_steps"),
    "optim.max_grad_norm": Knob(1e-9, "two_steps"),
    "optim.micro_batch_size": Knob(2, "forward_passes"),
}
EXIT_DONE, EXIT_GAVE_UP = 0, 4


def folder(
    root: Path,
    arguments: list[str],
    capfd: pytest.CaptureFixture[str],
    wandb_records: Callable[[Path], list[Any]],
) -> Any:
    """All that a run of two steps leaves behind, less times."""
    capfd.readouterr()
    code = main(["train", *arguments])
    assert code in (EXIT_DONE, EXIT_GAVE_UP)
    [latest] = root.glob("*/latest")
    run = latest.resolve()
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = {} if code else json.loads((run / "summary.json").read_text())
    logs = [record for log in run.glob("wandb/*/*.wandb") for record in wandb_records(log)]
    projects = [record.run.project for record in logs if record.WhichOneof("record_type") == "run"]
    found = (
        code,
        [{key: row[key] for key in row if not key.startswith(OF_THE_MACHINE)} for row in metrics],
        [summary.get(key) for key in ("stopped", "before", "recovery")],
        (run / "rollouts.jsonl").read_text().count("\n"),
        sorted(path.name for path in [*run.iterdir(), *run.glob("checkpoints/*"), *run.glob("faults/*")]),
        (latest.parent.name, OmegaConf.load(run / "config.yaml").name in run.name, run.name.split("-")[3]),
        [line.split()[1] for line in capfd.readouterr().out.splitlines() if line.startswith("step ")],
        projects,
    )
    latest.unlink()
    return found


def knobs(wanted: Callable[[str], bool]) -> list[Any]:
    """The knobs of these observers; the quick checks change the first of each, but compile nothing."""
    first = {knob.observer: path for path, knob in reversed(KNOBS.items()) if path not in COMPILED}.values()
    paths = [path for path, knob in KNOBS.items() if wanted(knob.observer)]
    return [path if path in first else pytest.param(path, marks=pytest.mark.slow) for path in paths]


@pytest.fixture(scope="module")
def unchanged() -> dict[tuple[str, ...], Any]:
    """What was observed without the change, by observer and overrides; the same for many knobs."""
    return {}


def test_every_leaf_of_the_configuration_has_an_entry() -> None:
    assert KNOBS.keys() == LEAVES.keys()


@pytest.mark.parametrize("path", knobs(lambda observer: observer not in ("folder", "refused")))
def test_a_knob_changes_what_is_observed(
    path: str,
    composed: Callable[..., RunConfig],
    small_overrides: list[str],
    corpus: Any,
    observers: dict[str, Callable[[RunConfig], Any]],
    unchanged: dict[tuple[str, ...], Any],
) -> None:
    knob = KNOBS[path]
    given = [*small_overrides, "generator.max_new_tokens=32"]
    given += [override.format(dataset=corpus.train.parent) for override in knob.beside]
    observe, key = observers[knob.observer], (knob.observer, *knob.beside)
    if key not in unchanged:
        unchanged[key] = observe(composed(*given))
        assert unchanged[key] == observe(composed(*given))
    assert unchanged[key] != observe(composed(*given, f"{path}={knob.value}"))


@pytest.mark.parametrize("path", knobs(lambda observer: observer == "folder"))
def test_a_knob_changes_what_a_run_leaves_behind(
    path: str,
    small_overrides: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    unchanged: dict[tuple[str, ...], Any],
    wandb_records: Callable[[Path], list[Any]],
) -> None:
    knob = KNOBS[path]
    given = [*small_overrides, "generator.max_new_tokens=32", f"output_root={tmp_path / 'outputs'}", "steps=2"]
    given += knob.beside
    value = tmp_path / knob.value if path == "output_root" else knob.value
    key = ("folder", *knob.beside)
    if key not in unchanged:
        unchanged[key] = folder(tmp_path, given, capfd, wandb_records)
        assert unchanged[key] == folder(tmp_path, given, capfd, wandb_records)
    assert unchanged[key] != folder(tmp_path, [*given, f"{path}={value}"], capfd, wandb_records)


@pytest.mark.parametrize("path", [path for path in KNOBS if KNOBS[path].observer == "refused"])
def test_a_knob_that_must_not_be_changed_is_refused(
    path: str, small_overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", *small_overrides, f"output_root={tmp_path / 'outputs'}", f"{path}={KNOBS[path].value}"]
    assert main(arguments) == 2 and path.split(".")[-1] in capfd.readouterr().err

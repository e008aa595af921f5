"""Runs that train an adapter: what changes, what checkpoints have, resume, recovery, export and replayed faults."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.errors import TrainingGaveUpError
from rookworld_rlvr.model.adapter import adapter_weights, named_weights
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.model.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.training.checkpoint import STATE_FILE
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.state import Event, Moment, StepContext
from rookworld_rlvr.training.step import grpo_step
from rookworld_rlvr.training.trainer import train as train_run

MakeRun = Callable[..., Run]
Train = Callable[..., Path]
OF_THE_MACHINE = ("time/", "throughput/", "memory/")
LORA = ("model.lora.rank=4", "model.lora.alpha=16", "optim.lr=0.02")
GIVEN = (*LORA, "evaluation.rows=0", "generator.max_new_tokens=16", "checkpoint_every=1")
WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def keep_all(set_limits: Callable[..., None]) -> None:
    set_limits(KEEP_CHECKPOINTS=9)


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step-{step}"


def state(folder: Path, step: int) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(checkpoint(folder, step) / STATE_FILE, weights_only=True)
    return loaded


def metrics(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if not key.startswith(OF_THE_MACHINE)} for row in rows]


def loaded_checksum(folder: Path) -> str:
    return checksum(load_policy(ModelConfig(path=str(folder)), torch.device("cpu"), Precision.fp32).model)


def assert_equal_bits(ours: Any, theirs: Any) -> None:
    if isinstance(ours, torch.Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_equal_bits(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_equal_bits(one, other)
    else:
        assert ours == theirs


@pytest.mark.parametrize("overrides", [[], ["model.activation_checkpointing=true"], ["threads=2"]], ids=str)
def test_steps_change_the_adapter_and_no_bit_of_the_frozen_weights(make_run: MakeRun, overrides: list[str]) -> None:
    threads = torch.get_num_threads()
    try:
        context = make_run(*GIVEN, "kl.coef=0.05", *overrides).context
        policy, original = context.policy, context.references.original
        before, adapter = checksum(original.model), adapter_weights(policy.model)
        kls = []
        for step in range(3):
            report = grpo_step(context, step)
            assert report.fault is None and report.update_norm > 0
            kls.append(report.tokens.kl_exact_mean)
        assert abs(kls[0]) < 1e-7 < kls[1]
        assert checksum(original.model) == before != checksum(policy.model)
        assert set(context.optimizer.state) == set(adapter.values())
        # The reference reads the very tensors beside which the adapter is.
        names = {name: own for name, own in original.model.named_parameters()}
        assert any(names[name].data_ptr() == own.data_ptr() for name, own in named_weights(policy.model))
    finally:
        torch.set_num_threads(threads)


def test_activation_checkpointing_changes_no_bits_of_an_adapter(make_run: MakeRun) -> None:
    sums = []
    for wanted in ("false", "true"):
        context = make_run(*GIVEN, f"model.activation_checkpointing={wanted}").context
        for step in range(2):
            grpo_step(context, step)
        sums.append(checksum(context.policy.model))
    assert sums[0] == sums[1]


def test_checkpoints_have_the_adapter_and_the_last_one_merged_weights(train: Train, small_model: Path) -> None:
    folder = train(*GIVEN, "steps=2", "start_share=0.5")
    for step, merged in ((1, False), (2, True)):
        files = {path.name for path in checkpoint(folder, step).iterdir()}
        assert files >= {STATE_FILE, "tokenizer.json", "config.yaml"}
        assert (WEIGHTS in files, ADAPTER_CONFIG in files, ADAPTER_WEIGHTS in files) == (merged, not merged, not merged)
        saved = state(folder, step)
        assert saved["policy"].keys() == {"adapter", "scaling", "base"} and saved["policy"]["scaling"] == 4.0
        assert all(".lora_" in name for name in saved["policy"]["adapter"])
        assert saved["references"]["current"] is None and saved["references"]["original"] is None
        assert len(saved["optimizer"]["state"]) == len(saved["policy"]["adapter"])
    last, hashes = checkpoint(folder, 2), json.loads((folder / "summary.json").read_text())["hashes"]
    plain = AutoModelForCausalLM.from_pretrained(last, dtype=torch.float32)
    assert checksum(plain) == loaded_checksum(last) == hashes["model after"]
    assert loaded_checksum(small_model) == hashes["model before"] == state(folder, 1)["policy"]["base"]
    start = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32)
    assert plain.state_dict().keys() == start.state_dict().keys()
    # W + scaling · B·A, of which the average with the start keeps a half; GPT-2 stores the transpose.
    factors = state(folder, 2)["policy"]["adapter"]
    [a] = (value for name, value in factors.items() if "mlp.c_fc.lora_A" in name)
    [b] = (value for name, value in factors.items() if "mlp.c_fc.lora_B" in name)
    weight = "transformer.h.0.mlp.c_fc.weight"
    expected = start.get_parameter(weight) + 0.5 * 4.0 * (b @ a).T
    assert torch.equal(plain.get_parameter(weight), expected) and (b @ a).abs().max() > 1e-3


def test_best_checkpoint_has_merged_weights(train: Train) -> None:
    folder = train(*GIVEN, "steps=3", "evaluation.curve_every=1", "evaluation.curve_rows=2")
    best = (folder / "checkpoints" / "best").resolve()
    assert (best / WEIGHTS).is_file() and not (best / ADAPTER_CONFIG).exists()


@pytest.mark.parametrize(
    "overrides", [["kl.coef=0.05"], ["kl.coef=0.05", "reference.refresh_every=2", "start_share=0"]], ids=str
)
def test_resumed_run_of_an_adapter_equals_an_uninterrupted_one(train: Train, overrides: list[str]) -> None:
    given = (*GIVEN, "steps=4", *overrides)
    whole = train(*given, root="whole")
    killed = train(*given, root="killed")
    for step in (3, 4):
        shutil.rmtree(checkpoint(killed, step))
    for name in ("summary.json", "report.html"):
        (killed / name).unlink(missing_ok=True)
    assert main(["train", f"resume={killed}"]) == 0
    assert metrics(killed) == metrics(whole)
    for step in (3, 4):
        assert_equal_bits(state(killed, step), state(whole, step))
    for file in (f"step-3/{ADAPTER_WEIGHTS}", f"step-3/{ADAPTER_CONFIG}", f"step-4/{WEIGHTS}"):
        ours, theirs = ((folder / "checkpoints" / file).read_bytes() for folder in (killed, whole))
        assert ours == theirs, file


def test_resume_with_another_adapter_or_base_is_refused_in_one_line(
    train: Train, small_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = train(*GIVEN, "steps=1")
    other = tmp_path / "other"
    shutil.copytree(small_model, other)
    model = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32)
    torch.nn.init.ones_(model.transformer.ln_f.weight)
    model.save_pretrained(other)
    for changed, named in (
        ("model.lora.alpha=8", "model.lora.alpha"),
        ("model.lora.rank=2", "model.lora.rank"),
        ("model.lora.rank=0", "model.lora.rank"),
        ("model.lora.targets=[c_fc]", "same layers"),
        (f"model.path={other}", "model.path"),
    ):
        (folder / "summary.json").unlink(missing_ok=True)
        capfd.readouterr()
        assert main(["train", f"resume={folder}", "steps=2", changed]) == 2
        error = capfd.readouterr().err
        assert named in error and error.count("\n") == 1, error


def test_damaged_adapter_is_restored_from_the_last_good_checkpoint(
    make_saved_run: MakeRun, set_limits: Callable[..., None]
) -> None:
    set_limits(GOOD_STEPS=1, RAMP_STEPS=1, HISTORY=2)
    run = make_saved_run(*GIVEN, "steps=5")
    base = checksum(run.context.references.original.model)

    def damage(moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.updated and event.step == 3:
            next(iter(adapter_weights(context.policy.model).values())).data[0, 0] = float("nan")

    run.context.hooks.append(damage)
    summary = train_run(run)
    assert summary["recovery"] == {"faults": 1, "restores": 1} and summary["steps"] == 5
    assert checksum(run.context.references.original.model) == base == state(run.folder, 5)["policy"]["base"]
    assert all(torch.isfinite(value).all() for value in state(run.folder, 5)["policy"]["adapter"].values())


def test_export_merges_the_adapter_of_any_checkpoint(train: Train, tmp_path: Path) -> None:
    folder = train(*GIVEN, "steps=2")
    for name in ("step-1", "last"):
        target = tmp_path / name
        assert main(["export", str(folder), "--to", str(target), "--checkpoint", name]) == 0
        files = {path.name for path in target.iterdir()}
        assert {WEIGHTS, "config.json", "tokenizer.json", "README.md"} <= files
        assert not {ADAPTER_CONFIG, ADAPTER_WEIGHTS, STATE_FILE} & files
        exported = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        assert checksum(exported) == loaded_checksum(checkpoint(folder, int(name[-1]) if name != "last" else 2))
        assert len(AutoTokenizer.from_pretrained(target)) == exported.config.vocab_size


def test_fault_that_ends_a_run_of_an_adapter_is_replayed_with_its_weights(
    make_saved_run: MakeRun, capfd: pytest.CaptureFixture[str]
) -> None:
    run = make_saved_run(*GIVEN, "steps=3", "recovery.max_consecutive_nans=1", "recovery.enabled=false")

    def damage(moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.micro_batch and event.step:
            adapter_weights(context.policy.model).popitem()[1].data[0, 0] = float("nan")

    run.context.hooks.append(damage)
    with pytest.raises(TrainingGaveUpError, match="faults in a row"):
        train_run(run)
    [fault] = sorted((run.folder / "faults").glob("step-*.pt"))[-1:]
    capfd.readouterr()
    assert main(["inspect", str(fault)]) == 0
    out = capfd.readouterr().out
    assert "lora_B.default.weight" in out and "weights: those of the fault" in out and "again: " in out

"""Checkpoints remain readable and finite after kills, full disks and non-finite states."""

import json
import math
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from rookworld_rlvr.app import build
from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.hydra_command import EXIT_CODES
from rookworld_rlvr.errors import TrainingGaveUpError, UserError
from rookworld_rlvr.files import write_text
from rookworld_rlvr.model.loading import load_policy
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.training import checkpoint as checkpoint_module
from rookworld_rlvr.training import state as training_state_module
from rookworld_rlvr.training.checkpoint import (
    find_run,
    list_checkpoints,
    load_checkpoint,
    rng_state,
    save_checkpoint,
    set_rng_state,
)
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.state import Event, Moment, StepContext
from rookworld_rlvr.training.trainer import train as train_run

Train = Callable[..., Path]
Forked = Callable[[Callable[[], int]], int]
MakeRun = Callable[..., Run]
SHORT = ("generator.max_new_tokens=16", "evaluation.rows=0", "optim.lr=0.001")
OF_THE_MACHINE = ("time/", "throughput/", "memory/")
FILES = {
    "config.json",
    "config.yaml",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "trainer_state.pt",
}
STATE_KEYS = {
    "step",
    "policy",
    "references",
    "optimizer",
    "schedule_step",
    "guards",
    "rng",
    "prompts",
    "recovery",
}
TRASH = (".writing-*", ".removing-*")


def names(run_folder: Path) -> list[str]:
    return [path.name for path in list_checkpoints(run_folder)]


def links(run_folder: Path) -> dict[str, str]:
    paths = (path for path in (run_folder / "checkpoints").iterdir() if path.is_symlink())
    return {path.name: path.readlink().name for path in paths}


def trash(run_folder: Path) -> list[Path]:
    return [path for pattern in TRASH for path in (run_folder / "checkpoints").glob(pattern)]


def state(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(folder / "trainer_state.pt", weights_only=True)
    return loaded


def assert_all_readable(run_folder: Path) -> None:
    """Assert that each checkpoint has all state and, as its model, the mean of the policy and the starting model."""
    for folder in list_checkpoints(run_folder):
        model = AutoModelForCausalLM.from_pretrained(folder)
        ours = state(folder)
        assert ours.keys() == STATE_KEYS and folder.name == f"step-{ours['step']}"
        own, start = ours["policy"], ours["references"]["original"] or ours["references"]["current"]
        means = {name: value.lerp(start[name], 0.5) for name, value in own.items()}
        assert all(torch.equal(value, means[name]) for name, value in model.state_dict().items())


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: row[key] for key in row if not key.startswith(OF_THE_MACHINE)} for row in rows]


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested containers by path; a tensor becomes its dtype and exact values."""
    if isinstance(value, torch.Tensor):
        return {path: (value.dtype, value.tolist())}
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {name: leaf for key, one in items for name, leaf in leaves(one, f"{path}/{key}").items()}
    return {path: value}


@pytest.fixture
def saved(make_saved_run: MakeRun) -> Run:
    """A run with checkpoints of steps 1 and 2, whose optimiser has moments."""
    run = make_saved_run(*SHORT)
    run.context.recovery.best_score = 0.5
    model = run.context.policy.model
    for step in (1, 2):
        model(torch.tensor([[step]])).logits.sum().backward()
        run.context.optimizer.step()
        save_checkpoint(run.folder, run.context, step=step, keep=2)
    return run


def test_a_checkpoint_holds_the_model_the_config_and_all_state(train: Train) -> None:
    folder = train("steps=1", *SHORT)
    assert {path.name for path in (folder / "checkpoints/step-1").iterdir()} == FILES
    assert (folder / "checkpoints/step-1/config.yaml").read_bytes() == (folder / "config.yaml").read_bytes()
    assert AutoTokenizer.from_pretrained(folder / "checkpoints/step-1")("P: ").input_ids == [3]
    assert names(folder) == ["step-0", "step-1"]
    assert_all_readable(folder)


def test_newest_best_last_good_and_candidate_checkpoints_are_kept(saved: Run) -> None:
    recovery = saved.context.recovery
    recovery.last_good_step, recovery.best_step, recovery.candidates = 1, 2, [3]
    for step in (3, 4, 5):
        save_checkpoint(saved.folder, saved.context, step=step, keep=1)
    assert names(saved.folder) == ["step-1", "step-2", "step-3", "step-5"]
    assert links(saved.folder) == {"best": "step-2", "last_good": "step-1", "last": "step-5"}
    recovery.last_good_step, recovery.best_step, recovery.candidates = 3, 5, []
    save_checkpoint(saved.folder, saved.context, step=6, keep=2)
    assert names(saved.folder) == ["step-3", "step-5", "step-6"]
    assert links(saved.folder) == {"best": "step-5", "last_good": "step-3", "last": "step-6"}


def test_best_link_points_to_newest_checkpoint_if_none_was_validated(saved: Run) -> None:
    saved.context.recovery.best_score, saved.context.recovery.best_step = -math.inf, 1
    save_checkpoint(saved.folder, saved.context, step=3, keep=1)
    assert links(saved.folder)["best"] == "step-3" and names(saved.folder) == ["step-1", "step-3"]


def test_checkpoints_are_sorted_by_step_and_newest_is_resumed(saved: Run) -> None:
    for step in (9, 10):
        save_checkpoint(saved.folder, saved.context, step=step, keep=9)
    shutil.copytree(saved.folder / "checkpoints/step-10", saved.folder / "checkpoints/step-10.kept")
    assert names(saved.folder) == ["step-1", "step-2", "step-9", "step-10"]
    assert find_run(str(saved.folder)) == (saved.folder, saved.folder / "checkpoints/step-10")
    saved.context.recovery.best_step = 2
    save_checkpoint(saved.folder, saved.context, step=11, keep=9)
    assert find_run(str(saved.folder / "checkpoints/best")) == (saved.folder, saved.folder / "checkpoints/step-2")


def test_link_to_removed_checkpoint_is_removed(saved: Run) -> None:
    saved.context.recovery.best_step = 2
    save_checkpoint(saved.folder, saved.context, step=3, keep=9)
    assert links(saved.folder) == {"best": "step-2", "last": "step-3"}
    shutil.rmtree(saved.folder / "checkpoints/step-2")
    save_checkpoint(saved.folder, saved.context, step=4, keep=9)
    assert links(saved.folder) == {"last": "step-4"}


def poison_moments(context: StepContext) -> None:
    """Make an optimiser moment NaN; the weights stay finite until the next update."""
    first = next(context.policy.model.parameters())
    context.optimizer.state[first]["exp_avg"].view(-1)[0] = torch.nan


def assert_finite(folder: Path) -> None:
    saved_state = state(folder)
    moments = [value for values in saved_state["optimizer"]["state"].values() for value in values.values()]
    assert all(value.isfinite().all() for value in [*moments, *saved_state["policy"].values()])


def test_non_finite_state_at_save_is_restored_and_not_saved(
    make_saved_run: MakeRun, set_limits: Callable[..., None]
) -> None:
    set_limits(GOOD_STEPS=1, KEEP_CHECKPOINTS=9)
    run = make_saved_run("steps=5", "checkpoint_every=2", *SHORT)

    def poison(moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.updated and event.step + 1 == 4:
            poison_moments(context)

    run.context.hooks.append(poison)
    train_run(run)
    assert [row["recovery/restores"] for row in metrics(run.folder)] == [0, 0, 0, 1, 1]
    assert names(run.folder) == ["step-0", "step-2", "step-4", "step-5"]
    for folder in list_checkpoints(run.folder):
        assert_finite(folder)
    good, restored = (state(run.folder / f"checkpoints/step-{step}")["policy"] for step in (2, 4))
    assert all(torch.equal(good[name], restored[name]) for name in good)


def test_stopped_run_does_not_save_non_finite_state(make_saved_run: MakeRun) -> None:
    run = make_saved_run("steps=9", "checkpoint_every=2", *SHORT)

    def poison_and_stop(moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.updated and event.step + 1 == 3:
            poison_moments(context)
            run.stop_requested = True

    run.context.hooks.append(poison_and_stop)
    assert train_run(run)["stopped"] == "interrupted"
    assert names(run.folder) == ["step-0", "step-2"]
    assert_finite(run.folder / "checkpoints/step-2")
    assert main(["train", f"resume={run.folder}", "steps=4"]) == 0
    assert [row["recovery/skipped"] for row in metrics(run.folder)] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "full_at",
    [
        "trainer_state.pt",
        pytest.param("model.safetensors", marks=pytest.mark.slow),
        pytest.param("metrics.jsonl", marks=pytest.mark.slow),
    ],
)
def test_full_disk_ends_run_with_one_line_and_it_resumes_to_same_bits(
    train: Train, small_overrides: list[str], tmp_path: Path, forked: Forked, full_at: str
) -> None:
    given = ("steps=6", "checkpoint_every=2", *SHORT)
    whole = train(*given, root="whole")
    root, log = tmp_path / "outputs", tmp_path / "log.txt"

    def fill(*_: Any) -> None:
        """Limit the size of files from the fourth step on: writes then fail as on a full disk."""
        folder = root / "latest"
        done = folder / "metrics.jsonl"
        if not done.is_file() or done.read_text().count("\n") != 3:
            return
        model_size = (folder / "checkpoints/step-2/model.safetensors").stat().st_size
        limits = {
            "model.safetensors": model_size - 1000,
            "trainer_state.pt": model_size + 1000,
            "metrics.jsonl": done.stat().st_size + 100,
        }
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits[full_at], limits[full_at]))

    def work() -> int:
        def load(*arguments: Any) -> Policy:
            policy = load_policy(*arguments)
            policy.model.transformer.register_forward_pre_hook(fill)
            return policy

        build.load_policy = load
        with log.open("w", buffering=1) as sys.stderr, Path(os.devnull).open("w") as sys.stdout:
            return main(["train", *small_overrides, *given, f"output_root={root}"])

    assert forked(work) == 2
    (line,) = log.read_text().splitlines()
    folder = (root / "latest").resolve()
    if full_at == "metrics.jsonl":
        assert "[Errno 27] File too large" in line
        assert not (folder / "metrics.jsonl").read_text().endswith("\n")
    else:
        assert f"checkpoint: expected to write {folder}/checkpoints/step-4, " in line and "MiB free there" in line
    assert names(folder) == ["step-0", "step-2"] and trash(folder) == []
    assert_all_readable(folder)
    assert main(["train", f"resume={folder}"]) == 0
    assert metrics(folder) == metrics(whole)
    model = "checkpoints/step-6/model.safetensors"
    assert (folder / model).read_bytes() == (whole / model).read_bytes()


FILE_OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink")


def killed_while_saving(forked: Forked, run: Run, folder: Path, *, at_operation: int) -> int:
    """Save step 3 as the best and drop step 1, killed before a file operation counted from 1; return the exit code."""

    def work() -> int:
        seen = iter(range(1, 10**6))

        def kill(event: str, _details: Any) -> None:
            if event in FILE_OPERATIONS and next(seen) == at_operation:
                os.kill(os.getpid(), signal.SIGKILL)

        run.context.recovery.last_good_step, run.context.recovery.best_step = 2, 3
        sys.addaudithook(kill)
        save_checkpoint(folder, run.context, step=3, keep=1)
        return 0

    return forked(work)


@pytest.mark.slow
def test_kill_between_file_operations_leaves_loadable_checkpoints(saved: Run, tmp_path: Path, forked: Forked) -> None:
    saved.context.recovery.last_good_step, saved.context.recovery.best_step = 1, 2
    save_checkpoint(saved.folder, saved.context, step=2, keep=2)
    seen: list[tuple[str, ...]] = []
    for operation in range(1, 1000):
        folder = tmp_path / f"killed-{operation}"
        shutil.copytree(saved.folder, folder, symlinks=True)
        code = killed_while_saving(forked, saved, folder, at_operation=operation)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        left = names(folder)
        if not seen or left != list(seen[-1]):
            seen.append(tuple(left))
        assert_all_readable(folder)
        assert all((folder / "checkpoints" / target).is_dir() for target in links(folder).values())
        newest = find_run(str(folder))[1]
        assert newest is not None and load_checkpoint(newest, saved.context) in (2, 3)
        save_checkpoint(folder, saved.context, step=4, keep=9)
        assert trash(folder) == []
        shutil.rmtree(folder)
    # There are never fewer checkpoints than before: the new one is complete before the old one is removed.
    assert seen == [("step-1", "step-2"), ("step-1", "step-2", "step-3"), ("step-2", "step-3")]
    assert operation > 20
    assert links(folder) == {"best": "step-3", "last_good": "step-2", "last": "step-3"}


@pytest.mark.parametrize("written", [1000, 30_000, 100_000, 300_000])
def test_kill_inside_a_file_write_keeps_earlier_checkpoints(saved: Run, forked: Forked, written: int) -> None:
    sizes = [path.stat().st_size for path in (saved.folder / "checkpoints/step-2").iterdir()]
    assert written < max(sizes)

    def work() -> int:
        # Python ignores SIGXFSZ. Its default is to kill the process, here at that byte of the first file to reach it.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (written, written))
        save_checkpoint(saved.folder, saved.context, step=3, keep=1)
        return 0

    assert forked(work) == -signal.SIGXFSZ
    assert names(saved.folder) == ["step-1", "step-2"] and len(trash(saved.folder)) == 1
    assert_all_readable(saved.folder)
    save_checkpoint(saved.folder, saved.context, step=3, keep=9)
    assert names(saved.folder) == ["step-1", "step-2", "step-3"] and trash(saved.folder) == []


def test_kill_while_writing_text_file_keeps_old_file(tmp_path: Path, forked: Forked) -> None:
    file = tmp_path / "metrics.jsonl"
    write_text(file, "old")

    def work() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        write_text(file, "new" * 1000)
        return 0

    assert forked(work) == -signal.SIGXFSZ
    assert file.read_text() == "old"
    write_text(file, "new")
    assert file.read_text() == "new" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"not a checkpoint at all"])
def test_damaged_trainer_state_is_refused_in_one_line(saved: Run, damage: Callable[[bytes], bytes]) -> None:
    newest = saved.folder / "checkpoints/step-2"
    file = newest / "trainer_state.pt"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=f"expected a checkpoint of this model and data in {newest}: ") as raised:
        load_checkpoint(newest, saved.context)
    assert "\n" not in str(raised.value)
    assert load_checkpoint(saved.folder / "checkpoints/step-1", saved.context) == 1


class Touch:
    """An object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_pickled_code_in_checkpoint_is_refused_and_not_run(saved: Run, tmp_path: Path) -> None:
    folder, mark = saved.folder / "checkpoints/step-2", tmp_path / "code ran"
    torch.save({**state(folder), "step": Touch(mark)}, folder / "trainer_state.pt")
    with pytest.raises(UserError, match="expected a checkpoint of this model") as raised:
        load_checkpoint(folder, saved.context)
    assert "\n" not in str(raised.value) and not mark.exists()


def test_loading_checkpoint_restores_every_part_of_state(saved: Run) -> None:
    context, checkpoint = saved.context, saved.folder / "checkpoints/step-2"
    before = state(checkpoint)
    context.sampler.prompts.draw(5)
    context.schedule_step, context.recovery.restores, context.recovery.candidates = 7, 3, [9]
    context.guards.grad_norm.observe(1.0, 0.1)
    torch.rand(1)
    nn.init.normal_(context.policy.model.lm_head.weight)
    nn.init.normal_(context.references.current.model.lm_head.weight)
    for moments in context.optimizer.state.values():
        moments["exp_avg"].normal_()
    changed = state(save_checkpoint(saved.folder, context, step=3, keep=9))
    assert not {key for key in STATE_KEYS if leaves(before[key]) == leaves(changed[key])}
    assert load_checkpoint(checkpoint, context) == 2
    shutil.rmtree(checkpoint)
    assert leaves(state(save_checkpoint(saved.folder, context, step=2, keep=9))) == leaves(before)


def test_restored_random_state_draws_same_numbers() -> None:
    kept = rng_state()
    drawn = (random.random(), torch.rand(3).tolist())
    assert (random.random(), torch.rand(3).tolist()) != drawn
    set_rng_state(kept)
    assert (random.random(), torch.rand(3).tolist()) == drawn
    # A state from more devices than this machine has.
    set_rng_state(kept | {"accelerators": [torch.zeros(16, dtype=torch.uint8)] * (torch.cuda.device_count() + 1)})


def test_original_reference_that_is_not_finite_is_restored_and_not_saved(
    make_saved_run: MakeRun, set_limits: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    set_limits(GOOD_STEPS=1, KEEP_CHECKPOINTS=9)
    run = make_saved_run("steps=4", "checkpoint_every=1", "reference.refresh_every=2", *SHORT)

    def poison(moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.updated and event.step + 1 == 3:
            context.references.original.model.transformer.ln_f.weight[0] = torch.nan

    run.context.hooks.append(poison)
    train_run(run)
    assert "restore: parameter (original reference: transformer.ln_f.weight: not finite" in capfd.readouterr().out
    assert [row["recovery/restores"] for row in metrics(run.folder)] == [0, 0, 1, 1]
    for folder in list_checkpoints(run.folder):
        model = AutoModelForCausalLM.from_pretrained(folder)
        assert all(value.isfinite().all() for value in model.state_dict().values())


@pytest.mark.parametrize("given", ["checkpoint_every=1", "evaluation.curve_every=1"])
def test_memory_that_runs_out_while_weights_are_averaged_is_a_memory_fault(
    given: str, make_saved_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_saved_run("steps=4", given, "evaluation.curve_rows=1", *SHORT)

    def averaged(model: nn.Module, other: nn.Module, share: float) -> Any:
        if run.context.schedule_step == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nand more")
        return real(model, other, share)

    real = training_state_module.averaged
    monkeypatch.setattr(training_state_module, "averaged", averaged)
    with pytest.raises(TrainingGaveUpError, match=r"^step 2: memory \(.*: CUDA out of memory.*; see .*diagnosis.txt$"):
        train_run(run)
    diagnosis = (run.folder / "diagnosis.txt").read_text()
    assert "fault           memory" in diagnosis and "generator.batch_size=16" in diagnosis
    assert EXIT_CODES[TrainingGaveUpError] == EXIT_CODES[torch.OutOfMemoryError] == 4
    monkeypatch.undo()
    assert trash(run.folder) == [] and (run.folder / "faults/step-2.pt").is_file()
    assert_all_readable(run.folder)


def test_memory_that_runs_out_in_a_save_does_not_blame_the_disk(saved: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def cpu_state_dict(_: nn.Module) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(checkpoint_module, "cpu_state_dict", cpu_state_dict)
    with pytest.raises(torch.OutOfMemoryError):
        save_checkpoint(saved.folder, saved.context, step=3, keep=2)
    assert names(saved.folder) == ["step-1", "step-2"] and trash(saved.folder) == []

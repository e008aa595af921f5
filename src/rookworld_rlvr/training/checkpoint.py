"""Checkpoints: folders that `from_pretrained` loads, with the state from which a run resumes bit for bit.

A folder appears and disappears by one rename, so a killed process leaves no half-written checkpoint. `loop` checks that
the state is finite before it is saved. The newest few, the best and the last good checkpoint are kept.

With an adapter (`model.adapter`) a checkpoint has the adapter, as peft writes it, and not the weights that it belongs
to. The best one so far and the last one of a run have ordinary weights in its place, with the adapter merged.
"""

import copy
import math
import random
import shutil
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor

from ..errors import UserError, first_line
from ..files import follow, point, sync, unpoint
from ..model.adapter import has_adapter
from ..model.device import random_states, set_random_states
from ..model.lora import save_adapter
from ..model.sharded import distribute
from ..model.weights import cpu_state_dict, load_training_state, to_cpu, training_state
from .run_files import CONFIG_FILE
from .state import StepContext

STATE_FILE = "trainer_state.pt"
FOLDER = "checkpoints"
WRITING, REMOVING = ".writing-", ".removing-"
BEST, LAST_GOOD, LAST = "best", "last_good", "last"
MIB = 2**20
Loaded = TypeVar("Loaded")

# Parts of a state, see `_state`.
STATE_KEYS = frozenset(
    ("step", "policy", "references", "optimizer", "schedule_step", "guards", "rng", "prompts", "recovery")
)


class DamagedCheckpointError(UserError):
    """A checkpoint whose state cannot be read: it is truncated, missing or has been changed."""


Gathered = tuple[dict[str, Tensor], dict[str, Any]]
"""Weights for other software, averaged with the starting model's, and the state from which the run resumes. Both have
the full tensors of all ranks on rank 0, and empty ones or none on the others."""


def save_checkpoint(run_folder: Path, context: StepContext, *, step: int, keep: int, last: bool = False) -> Path:
    """Write `checkpoints/step-N`, then remove all but the newest `keep`, the best, the last good and its candidates.

    `last` is True for the checkpoint that ends the run.

    Rank 0 writes, but all ranks must call this together, because each may hold a part of the weights.

    An existing checkpoint of this step is left unchanged. Raises UserError if the checkpoint cannot be written; the
    existing checkpoints are then untouched. Raises torch.OutOfMemoryError.
    """
    gathered: Gathered | None = None
    if context.policy.sharded:
        with context.averaged_policy():
            # Copied, because with a single rank gathering returns the weights themselves.
            weights = copy.deepcopy(cpu_state_dict(context.policy.model))
        gathered = weights, _state(context, step)
    return context.world.rank_0_only(lambda: _save(run_folder, context, gathered, step, keep, last), "a checkpoint")


def _save(run_folder: Path, context: StepContext, gathered: Gathered | None, step: int, keep: int, last: bool) -> Path:
    final = checkpoint_folder(run_folder, step)
    if not final.exists():
        try:
            _write(run_folder, context, gathered, final, last=last)
        except torch.OutOfMemoryError:
            # A RuntimeError too, but no fault of the disk.
            _sweep(final.parent)
            raise
        except (OSError, RuntimeError, SafetensorError) as error:
            # torch's message does not say that the disk is full.
            free = f"{shutil.disk_usage(run_folder).free // MIB} MiB free there"
            _sweep(final.parent)
            raise UserError(f"checkpoint: expected to write {final}, {free}, got: {first_line(error)}") from error
    recovery = context.recovery
    # If no checkpoint was validated, `best` points to the newest, which the run evaluates at its end.
    best = step if recovery.best_score == -math.inf else recovery.best_step
    for name, number in ((BEST, best), (LAST_GOOD, recovery.last_good_step), (LAST, step)):
        folder = checkpoint_folder(run_folder, number)
        # A resume from an earlier checkpoint may have removed the folder.
        if folder.exists():
            point(final.parent / name, folder)
        else:
            unpoint(final.parent / name)
    pinned = (recovery.best_step, recovery.last_good_step, *recovery.candidates)
    stay = {final, *list_checkpoints(run_folder)[-keep:]}
    stay |= {checkpoint_folder(run_folder, number) for number in pinned}
    remove(folder for folder in list_checkpoints(run_folder) if folder not in stay)
    return final


def load_checkpoint(folder: Path, context: StepContext) -> int:
    """Load the whole saved state; return the number of steps done.

    Raises DamagedCheckpointError, and then nothing is changed; UserError if it is a state of another model or data.
    """
    state = _read(folder)
    try:
        context.sampler.prompts.load_state_dict(state["prompts"])
        _load_training_state(context, state)
        context.guards.load_state_dict(state["guards"])
        context.recovery.load_state_dict(state["recovery"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(_unreadable(folder, error)) from error
    return int(state["step"])


def restore_checkpoint(folder: Path, context: StepContext) -> int:
    """Load what recovery restores; return the checkpoint's step.

    This is everything but the prompt stream, the state of recovery, and the guards' statistics.
    """
    state = _read(folder)
    _load_training_state(context, state)
    return int(state["step"])


def rng_state() -> dict[str, Any]:
    """Return the random state to resume from, including that of accelerators if this process has used one."""
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "accelerators": random_states()}


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore a state from `rng_state`, on as many accelerators as there are now."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"].cpu())
    set_random_states(state["accelerators"])


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return run_folder / FOLDER / f"step-{step}"


def checkpoint_step(folder: Path) -> int:
    """Return the step of a checkpoint's folder."""
    return int(folder.name.removeprefix("step-"))


def list_checkpoints(run_folder: Path) -> list[Path]:
    """Return the finished checkpoints of a run, oldest first. Other folders beside them are ignored."""
    folders = (run_folder / FOLDER).glob("step-*")
    return sorted((path for path in folders if path.name.removeprefix("step-").isdecimal()), key=checkpoint_step)


def first_whole(folders: Iterable[Path], load: Callable[[Path], Loaded], say: Callable[[str], None]) -> Loaded:
    """Return the result of `load` for the first checkpoint that is not damaged; `say` names each that is passed over.

    Raises DamagedCheckpointError, about the first, if all are damaged.
    """
    failures: list[DamagedCheckpointError] = []
    for folder in folders:
        if failures:
            say(f"{failures[-1]}; {folder.name} is used in its place")
        try:
            return load(folder)
        except DamagedCheckpointError as error:
            failures.append(error)
    raise failures[0]


def find_run(resume: str) -> tuple[Path, Path | None]:
    """Return the run's folder that `resume=` names, and the checkpoint: the one named, or the newest.

    The checkpoint is None if the run was stopped before its first one; the run then starts again. Raises UserError.
    """
    folder = follow(Path(resume).expanduser())
    if (folder / STATE_FILE).is_file():
        return _from_here(folder.resolve().parents[1]), _from_here(folder.resolve())
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"resume: expected a run's folder with checkpoints, or a checkpoint, got {resume}")
    folder = _from_here(folder.resolve())
    return folder, next(iter(reversed(list_checkpoints(folder))), None)


def checkpoints_to_resume(resume: str) -> list[Path]:
    """Return the checkpoint that `resume=` names or, if it names a run, all of the run, the newest first.

    Raises UserError.
    """
    folder, checkpoint = find_run(resume)
    if checkpoint is None or (follow(Path(resume).expanduser()) / STATE_FILE).is_file():
        return [checkpoint] if checkpoint else []
    return list_checkpoints(folder)[::-1]


def _from_here(folder: Path) -> Path:
    """Return the folder relative to the working directory, if it lies inside."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def remove(folders: Iterable[Path]) -> None:
    """Remove checkpoints. Each is renamed first, so that a half-removed one does not look like a checkpoint."""
    for folder in folders:
        doomed = folder.with_name(f"{REMOVING}{folder.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _write(run_folder: Path, context: StepContext, gathered: Gathered | None, final: Path, *, last: bool) -> None:
    final.parent.mkdir(exist_ok=True)
    _sweep(final.parent)
    step = checkpoint_step(final)
    writing = final.with_name(f"{WRITING}{step}")
    writing.mkdir()
    policy, recovery = context.policy, context.recovery
    best = step == recovery.best_step and recovery.best_score > -math.inf
    with nullcontext() if gathered else context.averaged_policy():
        if has_adapter(policy.model) and not (best or last):
            save_adapter(policy.model, writing)
        else:
            policy.model.save_pretrained(writing, state_dict=gathered[0] if gathered else cpu_state_dict(policy.model))
    policy.tokenizer.save_pretrained(writing)
    torch.save(gathered[1] if gathered else _state(context, step), writing / STATE_FILE)
    if (run_folder / CONFIG_FILE).is_file():
        shutil.copyfile(run_folder / CONFIG_FILE, writing / CONFIG_FILE)
    for path in (*writing.iterdir(), writing):
        sync(path)
    writing.rename(final)
    sync(final.parent)


def _sweep(parent: Path) -> None:
    """Remove unfinished folders that a killed process left."""
    for prefix in (WRITING, REMOVING):
        for left in parent.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)


def _read(folder: Path) -> dict[str, Any]:
    try:
        # Only tensors and plain values: unpickling anything else could run code by whoever wrote the file.
        state: dict[str, Any] = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise ValueError(f"expected a dictionary in {STATE_FILE}, got {type(state).__name__}")
        if missing := STATE_KEYS - state.keys():
            raise ValueError(f"expected all parts of a state in {STATE_FILE}, got none of {', '.join(sorted(missing))}")
    except torch.OutOfMemoryError:
        raise
    # An unpickler that reads damaged bytes may raise any exception.
    except Exception as error:
        raise DamagedCheckpointError(_unreadable(folder, error)) from error
    return state


def _unreadable(folder: Path, error: Exception) -> str:
    return f"resume: expected a checkpoint of this model and data in {folder}: {first_line(error)}"


def _state(context: StepContext, step: int) -> dict[str, Any]:
    """Return the state from which a run resumes. Tensors are full and on the CPU, so that any device can read them."""
    return {
        "step": step,
        "policy": training_state(context.policy.model),
        "references": context.references.state_dict(),
        "optimizer": to_cpu(context.optimizer.state_dict(), keep=context.world.is_rank_0),
        "schedule_step": context.schedule_step,
        "guards": context.guards.state_dict(),
        "rng": rng_state(),
        "prompts": context.sampler.prompts.state_dict(),
        "recovery": context.recovery.state_dict(),
    }


def _load_training_state(context: StepContext, state: dict[str, Any]) -> None:
    load_training_state(context.policy.model, state["policy"])
    context.references.load_state_dict(state["references"])
    _load_optimizer(context.optimizer, state["optimizer"])
    context.schedule_step = state["schedule_step"]
    set_rng_state(state["rng"])


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the moments from `state`, but keep betas and similar options as they are configured now."""
    configured = [{key: group[key] for key in group if key not in ("params", "lr")} for group in optimizer.param_groups]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        number: {name: distribute(parameters[number], value) for name, value in of_one.items()}
        for number, of_one in state["state"].items()
    }
    optimizer.load_state_dict(state | {"state": moments})
    for group, values in zip(optimizer.param_groups, configured, strict=True):
        group.update(values)

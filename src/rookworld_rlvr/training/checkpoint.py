"""Checkpoints: a folder that `from_pretrained` loads, and the state to go on from, bit for bit.

A folder appears and disappears by one rename, so a killed process leaves no half-written checkpoint. The saved state
is checked to be finite before an older checkpoint is removed. The newest few, the best and the last good one stay.
"""

import copy
import os
import random
import shutil
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from ..errors import UserError, first_line
from ..model.device import Device, random_states, set_random_states
from ..model.sharded import distribute, load_full_state
from ..model.weights import cpu_state_dict, to_cpu
from .run_files import CONFIG_FILE
from .state import StepContext

STATE_FILE = "trainer_state.pt"
FOLDER = "checkpoints"
WRITING, REMOVING = ".writing-", ".removing-"
BEST, LAST_GOOD, LAST = "best", "last_good", "last"
MIB = 2**20


Gathered = tuple[dict[str, Tensor], dict[str, Any]]
"""The weights that other software loads, averaged with the start's, and the state that the run goes on from, as full
tensors of all ranks."""


def save_checkpoint(run_folder: Path, context: StepContext, *, step: int, keep: int) -> Path:
    """Write `checkpoints/step-N`, then remove all but the newest `keep`, the best and the last good.

    Rank 0 writes; all ranks come here together, because each may hold a part of the weights.

    A checkpoint of this step that is there already is left as it is. Raises UserError where it cannot be
    written; what was there before is untouched then.
    """
    gathered: Gathered | None = None
    if context.policy.sharded:
        leads = context.world.is_rank_0
        with context.averaged_policy():
            # One rank alone gathers no copy.
            weights = copy.deepcopy(cpu_state_dict(context.policy.model, leads))
        gathered = weights, _state(context, step, leads)
    return context.world.rank_0_only(lambda: _save(run_folder, context, gathered, step, keep), "a checkpoint")


def _save(run_folder: Path, context: StepContext, gathered: Gathered | None, step: int, keep: int) -> Path:
    final = checkpoint_folder(run_folder, step)
    if not final.exists():
        try:
            _write(run_folder, context, gathered, step, final)
        except (OSError, RuntimeError, SafetensorError) as error:
            # What torch says of a full disk does not name it.
            free = f"{shutil.disk_usage(run_folder).free // MIB} MiB free there"
            _sweep(final.parent)
            raise UserError(f"checkpoint: expected to write {final}, {free}, got: {first_line(error)}") from error
    recovery = context.recovery
    # Without validation no score compares checkpoints; the newest is the one that a run evaluates at its end.
    best = recovery.best_step if context.config.validation.every else step
    for name, number in ((BEST, best), (LAST_GOOD, recovery.last_good_step), (LAST, step)):
        _point(final.parent / name, checkpoint_folder(run_folder, number))
    pinned = (recovery.best_step, recovery.last_good_step, *recovery.candidates)
    stay = {final, *list_checkpoints(run_folder)[-keep:]}
    stay |= {checkpoint_folder(run_folder, number) for number in pinned}
    remove(folder for folder in list_checkpoints(run_folder) if folder not in stay)
    return final


def load_checkpoint(folder: Path, context: StepContext) -> int:
    """Put everything back as it was saved; returns how many steps were done. Raises UserError."""
    state = _read(folder)
    try:
        context.prompts.load_state_dict(state["sampler"])
        if context.prefetch is not None:
            context.prefetch.load_state_dict(state["one_step_off_policy"])
        _put_back(context, state)
        context.guards.load_state_dict(state["guards"])
        context.recovery.load_state_dict(state["recovery"])
    except (ValueError, KeyError, RuntimeError) as error:
        raise _not_ours(folder, error) from error
    return int(state["step"])


def restore_checkpoint(folder: Path, context: StepContext) -> int:
    """Put back what recovery restores: everything but the prompts' turn and the state of recovery and guards."""
    state = _read(folder)
    if context.prefetch is not None:
        context.prefetch.drop()
    _put_back(context, state)
    context.guards.restore(state["guards"])
    return int(state["step"])


def rng_state() -> dict[str, Any]:
    """The state to go on from; of accelerators only where this process has used one."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    return state | {"accelerators": random_states()}


def set_rng_state(state: dict[str, Any]) -> None:
    """Go on from a state of `rng_state`, on as many accelerators as there are now."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"].cpu())
    # Checkpoints of before have it under another name.
    set_random_states(state.get("accelerators") or state.get(Device.cuda.value, []))


def checkpoint_folder(run_folder: Path, step: int) -> Path:
    """Folder of the checkpoint of a step."""
    return run_folder / FOLDER / f"step-{step}"


def list_checkpoints(run_folder: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first; what a reader copied beside them is none."""
    checkpoints = ((path.name.removeprefix("step-"), path) for path in (run_folder / FOLDER).glob("step-*"))
    return [path for _, path in sorted((int(number), path) for number, path in checkpoints if number.isdecimal())]


def find_run(resume: str) -> tuple[Path, Path | None]:
    """The run's folder that `resume=` means, and its checkpoint: the one named, or the newest.

    A run that was stopped before its first checkpoint has none, and begins anew. Raises UserError.
    """
    folder = Path(resume).expanduser()
    if (folder / STATE_FILE).is_file():
        return _from_here(folder.resolve().parents[1]), _from_here(folder.resolve())
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"resume: expected a run's folder with checkpoints, or a checkpoint, got {resume}")
    folder = _from_here(folder.resolve())
    return folder, next(iter(reversed(list_checkpoints(folder))), None)


def _from_here(folder: Path) -> Path:
    """The folder relative to the present one, if it lies inside."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder


def remove(folders: Iterable[Path]) -> None:
    """Remove checkpoints; one that is half removed no longer bears a checkpoint's name."""
    for folder in folders:
        doomed = folder.with_name(f"{REMOVING}{folder.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _write(run_folder: Path, context: StepContext, gathered: Gathered | None, step: int, final: Path) -> None:
    final.parent.mkdir(exist_ok=True)
    _sweep(final.parent)
    writing = final.with_name(f"{WRITING}{step}")
    writing.mkdir()
    policy = context.policy
    with nullcontext() if gathered else context.averaged_policy():
        policy.model.save_pretrained(writing, state_dict=gathered[0] if gathered else cpu_state_dict(policy.model))
    policy.tokenizer.save_pretrained(writing)
    torch.save(gathered[1] if gathered else _state(context, step), writing / STATE_FILE)
    if (run_folder / CONFIG_FILE).is_file():
        shutil.copyfile(run_folder / CONFIG_FILE, writing / CONFIG_FILE)
    for path in (*writing.iterdir(), writing):
        _sync(path)
    writing.rename(final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Remove unfinished folders of a killed process."""
    for prefix in (WRITING, REMOVING):
        for left in parent.glob(f"{prefix}*"):
            shutil.rmtree(left, ignore_errors=True)


def _point(link: Path, folder: Path) -> None:
    """Lead `link` to the folder; to nothing where a resume from an earlier checkpoint has left none."""
    new = link.with_name(f".{link.name}")
    new.unlink(missing_ok=True)
    if folder.exists():
        new.symlink_to(folder.name, target_is_directory=True)
        new.replace(link)
    else:
        link.unlink(missing_ok=True)


def _read(folder: Path) -> dict[str, Any]:
    try:
        # Tensors and plain values alone: unpickling anything else could run code of whoever wrote the file.
        state: dict[str, Any] = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
        raise _not_ours(folder, error) from error
    return state


def _not_ours(folder: Path, error: Exception) -> UserError:
    return UserError(f"resume: expected a checkpoint of this model and data in {folder}: {first_line(error)}")


def _state(context: StepContext, step: int, keep: bool = True) -> dict[str, Any]:
    """All that a run goes on from; tensors are full and on the CPU, so that any device can read them."""
    return {
        "step": step,
        "policy": cpu_state_dict(context.policy.model, keep),
        "references": to_cpu(context.references.state_dict(), keep),
        "optimizer": to_cpu(context.optimizer.state_dict(), keep),
        "clock": context.clock.schedule_step,
        "kl": context.kl_controller.state_dict(),
        "guards": context.guards.state_dict(),
        "rng": rng_state(),
        "sampler": context.prompts_state(),
        "one_step_off_policy": {} if context.prefetch is None else to_cpu(context.prefetch.state_dict()),
        "recovery": context.recovery.state_dict(),
    }


def _put_back(context: StepContext, state: dict[str, Any]) -> None:
    load_full_state(context.policy.model, state["policy"])
    context.references.load_state_dict(state["references"])
    _load_optimizer(context.optimizer, state["optimizer"])
    context.clock.schedule_step = state["clock"]
    context.kl_controller.load_state_dict(state["kl"])
    set_rng_state(state["rng"])


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """The moments as they were saved; betas and the like as they are configured now."""
    configured = [{key: group[key] for key in group if key not in ("params", "lr")} for group in optimizer.param_groups]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {
        number: {name: distribute(parameters[number], value) for name, value in of_one.items()}
        for number, of_one in state["state"].items()
    }
    optimizer.load_state_dict(state | {"state": moments})
    for group, values in zip(optimizer.param_groups, configured, strict=True):
        group.update(values)

"""Checkpoints: a folder that `from_pretrained` loads, and the state to go on from, bit for bit."""

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from .errors import UserError
from .policy import Policy
from .seeding import rng_state, set_rng_state
from .step import StepContext

STATE_FILE = "trainer_state.pt"
FOLDER = "checkpoints"


def save_checkpoint(run_folder: Path, context: StepContext, *, step: int, keep: int) -> Path:
    """Write `checkpoints/step-N` whole or not at all, then remove all but the newest `keep`.

    The folder appears under its name by one rename, after everything in it was written and synced.
    """
    final = run_folder / FOLDER / f"step-{step}"
    writing = final.with_name(f".writing-{step}")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    _save_model(context.policy, writing)
    torch.save(_state(context, step), writing / STATE_FILE)
    for path in writing.iterdir():
        with path.open("rb") as written:
            os.fsync(written.fileno())
    shutil.rmtree(final, ignore_errors=True)
    writing.rename(final)
    for old in list_checkpoints(run_folder)[:-keep]:
        shutil.rmtree(old)
    return final


def load_checkpoint(folder: Path, context: StepContext) -> int:
    """Put everything back as it was saved; returns how many steps were done. Raises UserError."""
    try:
        # Our own file: it holds random states, which are no tensors.
        state: dict[str, Any] = torch.load(folder / STATE_FILE, map_location=context.policy.device, weights_only=False)
        context.sampler.load_state_dict(state["sampler"])
        context.policy.model.load_state_dict(state["policy"])
    except (OSError, ValueError, KeyError, RuntimeError, EOFError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"resume: expected a checkpoint of this model and data in {folder}: {reason}") from error
    context.reference.model.load_state_dict(state["reference"])
    context.optimizer.load_state_dict(state["optimizer"])
    for name, value in state["recovery"].items():
        setattr(context.recovery, name, value)
    set_rng_state(state["rng"])
    return int(state["step"])


def list_checkpoints(run_folder: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first."""
    found = (run_folder / FOLDER).glob("step-*")
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


def find_checkpoint(resume: str) -> Path:
    """The checkpoint that `resume=` means: a checkpoint's folder, or a run's, whose newest is taken."""
    folder = Path(resume).expanduser()
    if (folder / STATE_FILE).is_file():
        return folder
    checkpoints = list_checkpoints(folder)
    if not checkpoints:
        raise UserError(f"resume: expected a run's folder with checkpoints, or a checkpoint, got {resume}")
    return checkpoints[-1]


def _save_model(policy: Policy, folder: Path) -> None:
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def _state(context: StepContext, step: int) -> dict[str, Any]:
    return {
        "step": step,
        "policy": context.policy.model.state_dict(),
        "reference": context.reference.model.state_dict(),
        "optimizer": context.optimizer.state_dict(),
        "sampler": context.sampler.state_dict(),
        "recovery": context.recovery.state_dict(),
        "rng": rng_state(),
    }

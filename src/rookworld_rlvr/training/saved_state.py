"""State of a supervised training on disk, with a header of everything that the training depends on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import TrainingGaveUpError, UserError, first_line
from ..files import replacing

STATE_FILE = "training_state.pt"
ADVICE = "another output folder starts a new training"

Header = Mapping[str, str | int | float]
"""All values that decide the trained weights, by the option that sets each."""


class NotFiniteError(ArithmeticError):
    """A loss, gradient, weight or moment of a training is not finite."""


def require_finite(state: Any, name: str) -> None:
    """Raise NotFiniteError that names the first tensor with a NaN or an infinity, in nested dictionaries and lists."""
    if isinstance(state, Tensor):
        if state.is_floating_point() and not state.isfinite().all():
            raise NotFiniteError(f"expected finite numbers to save, got others in {name}")
    elif isinstance(state, Mapping | list):
        for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
            require_finite(value, f"{name}.{key}")


def gave_up(error: NotFiniteError, folder: Path, step: int, advice: str) -> TrainingGaveUpError:
    """Return the error that ends a training in `folder` after `step` steps; the state that it saved last stays."""
    kept = "the state that was saved last is kept" if (folder / STATE_FILE).is_file() else "nothing is saved"
    return TrainingGaveUpError(f"after {step} steps: {error}; {kept} in {folder}; {advice} in another folder")


def save_state(folder: Path, header: Header, state: Mapping[str, Any]) -> None:
    """Write the header and the state by one rename, so that an interrupt leaves the earlier file in place."""
    with replacing(folder / STATE_FILE) as writing:
        torch.save({"header": dict(header), **state}, writing)


def read_state(folder: Path, header: Header, device: torch.device) -> dict[str, Any] | None:
    """Return the state in `folder`, or None if there is none. Raises UserError if it has another header."""
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    state = _load(path, device)
    saved: Header = state["header"]
    for option in {**header, **saved}:
        if saved.get(option) != header.get(option):
            expected = f"{saved.get(option)}, as in the training that is saved in {folder}"
            raise UserError(f"{option}: expected {expected}, got {header.get(option)}; {ADVICE}")
    return state


def _load(path: Path, device: torch.device) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    # An unpickler that reads damaged bytes may raise any exception.
    except Exception as error:
        reason = first_line(error)
        raise UserError(f"output: expected the state of a training in {path}, got {reason}; {ADVICE}") from error
    if not isinstance(state, dict) or not isinstance(state.get("header"), dict):
        raise UserError(f"output: expected the state of a training in {path}, got a file without a header; {ADVICE}")
    return state

"""A warm start on disk, with what it depends on: another run's is not gone on with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import UserError

STATE_FILE = "warmstart_state.pt"
ANEW = "another output= begins anew"

Header = Mapping[str, str | int | float]
"""What a run depends on, by the knob that says so."""


def save_state(folder: Path, header: Header, state: Mapping[str, Any]) -> None:
    """There whole or not at all."""
    unfinished = folder / "state.tmp"
    torch.save({"header": dict(header), **state}, unfinished)
    unfinished.replace(folder / STATE_FILE)


def read_state(folder: Path, header: Header, device: torch.device) -> dict[str, Any] | None:
    """What was saved in `folder`, None where nothing was. Raises UserError unless it was with the same header."""
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    state = load_state(folder, device, "output")
    begun: Header = state["header"]
    for knob in {**header, **begun}:
        if begun.get(knob) != header.get(knob):
            with_it = f"{begun.get(knob)}, which {folder} was begun with"
            raise UserError(f"{knob}: expected {with_it}, got {header.get(knob)}; {ANEW}")
    return state


def load_state(folder: Path, device: torch.device, knob: str) -> dict[str, Any]:
    """What was saved in `folder`, whatever it was begun with. Raises UserError, which names the knob of the folder."""
    path = folder / STATE_FILE
    wanted = f"{knob}: expected the state of a warm start in {path}"
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    # Damaged bytes are read as other ones, on which an unpickler fails in any way.
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{wanted}, got {reason}; {ANEW}") from error
    if not isinstance(state, dict) or not isinstance(state.get("header"), dict):
        raise UserError(f"{wanted}, got one that does not say what it was begun with; {ANEW}")
    return state

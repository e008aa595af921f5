"""Seeds, and the state of every random generator that training draws from."""

import random
from typing import Any

import torch

from ..model.device import Device, random_states, set_random_states


def seed_everything(seed: int) -> None:
    """Seed python and torch, every device."""
    random.seed(seed)
    torch.manual_seed(seed)


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

"""Seeds, and the state of every random generator that training draws from."""

import random
from typing import Any

import torch


def seed_everything(seed: int) -> None:
    """Seed python and torch, every device."""
    random.seed(seed)
    torch.manual_seed(seed)


def rng_state() -> dict[str, Any]:
    """The state to go on from; of CUDA devices only where this process has used one."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Go on from a state of `rng_state`, on as many CUDA devices as there are now."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"].cpu())
    for device, device_state in zip(range(torch.cuda.device_count()), state.get("cuda", ()), strict=False):
        torch.cuda.set_rng_state(device_state.cpu(), device)

"""A model's weights: their number, checksums to compare sampler and trainer, the average of two models, CPU copies.

An adapter (`model.adapter`) is merged wherever other software sees the weights, and is all that a training state has.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .adapter import (
    FACTOR_B,
    adapter_scaling,
    adapter_weights,
    has_adapter,
    load_adapter_weights,
    merged_state_dict,
    named_weights,
    origin_of,
    plain_name,
)
from .sharded import full_state, full_tensor, is_sharded, load_full_state, reshard, unshard

# Number of parameters below which a model counts as small.
SMALL_MODEL = 32_000_000


def is_small(model: nn.Module) -> bool:
    """Return True for a model whose passes take longer for their many calls than for their arithmetic."""
    return sum(weight.numel() for weight in model.parameters()) < SMALL_MODEL


def checksum(model: nn.Module) -> str:
    """Return a short hash of every parameter's name, dtype, shape and bytes; an adapter is merged into them.

    Any changed bit changes it, except the sign of a zero. Ranks that hold shards of the model must call this together.
    """
    with unshard(model):
        return checksum_of(named_weights(model))


def checksum_of(named: Iterable[tuple[str, Tensor]]) -> str:
    """Return the checksum of named tensors, in their order."""
    digest = hashlib.sha256()
    for name, parameter in named:
        digest.update(f"{name}{parameter.dtype}{tuple(parameter.shape)}".encode())
        # -0 becomes 0: a sampler that reads its weights back by a matrix product cannot distinguish the two.
        raw = (parameter.detach() + 0).contiguous().cpu().flatten().view(torch.uint8)
        digest.update(raw.numpy().tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def averaged(model: nn.Module, other: nn.Module, share: float) -> Iterator[None]:
    """Replace the model's weights, within the context, by their average with `other`, which has the weight `share`.

    `share` is in [0, 1]. Afterwards the weights are restored bit for bit. Ranks that hold shards must enter the
    context together. If the model has an adapter, `other` must have its frozen weights alone. Source: WiSE-FT, arXiv
    2109.01903.
    """
    if not share:
        yield
        return
    reshard(model, other)
    others = dict(other.named_parameters())
    # W and W + scaling · B·A have the average W + scaling · ((1 - share) · B)·A. The average of A would be another one.
    factors = [(name, factor) for name, factor in adapter_weights(model).items() if FACTOR_B in name]
    named = factors or list(model.named_parameters())
    own = [parameter for _, parameter in named]
    before = [parameter.detach().clone() for parameter in own]
    with torch.no_grad():
        for name, parameter in named:
            parameter.mul_(1 - share) if factors else parameter.lerp_(others[name], share)
    try:
        yield
    finally:
        reshard(model)
        with torch.no_grad():
            for parameter, kept in zip(own, before, strict=True):
                parameter.copy_(kept)


def to_cpu(value: Any, keep: bool = True) -> Any:
    """Copy every tensor in nested dictionaries, lists and tuples to the CPU; one that is already there is not copied.

    Shards are gathered, so all ranks that hold some must call this together. Ranks that need not `keep` the whole
    tensors get empty ones.
    """
    if isinstance(value, Tensor):
        gathered = full_tensor(value.detach())
        return gathered.cpu() if keep else gathered.new_empty(0)
    if isinstance(value, dict):
        return {key: to_cpu(entry, keep) for key, entry in value.items()}
    return type(value)(to_cpu(entry, keep) for entry in value) if type(value) in (list, tuple) else value


def cpu_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's `state_dict` on the CPU, with an adapter merged. Tied weights stay one tensor, saved once.

    Ranks that hold shards must call this together, and only rank 0 gets the weights.
    """
    state = full_state(model) if is_sharded(model) else merged_state_dict(model)
    first: dict[int, str] = {}
    rename = plain_name if has_adapter(model) else str
    named = ((rename(name), own) for name, own in model.named_parameters(remove_duplicate=False))
    tied = {name: first.setdefault(id(own), name) for name, own in named}
    copies = {name: state[name].cpu() for name in state if tied.get(name, name) == name}
    return {name: copies[tied.get(name, name)] for name in state}


def training_state(model: nn.Module) -> dict[str, Any]:
    """Return what training has changed, on the CPU: the whole `state_dict`, or an adapter and what it belongs to.

    Ranks that hold shards must call this together, and only rank 0 gets the weights.
    """
    if not has_adapter(model):
        return cpu_state_dict(model)
    return {
        "adapter": to_cpu(adapter_weights(model)),
        "scaling": adapter_scaling(model),
        "base": origin_of(model).base_checksum,
    }


def load_training_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a `training_state`, which every rank has. Raises ValueError if it belongs to another kind of model."""
    saved_adapter = "adapter" in state
    if has_adapter(model) is not saved_adapter:
        kinds = ("the whole model", "an adapter")
        raise ValueError(f"model.lora.rank: expected a state of {kinds[not saved_adapter]}, got {kinds[saved_adapter]}")
    if not saved_adapter:
        load_full_state(model, state)
        return
    _require_equal("model.path", origin_of(model).base_checksum, state["base"])
    load_adapter_weights(model, state["adapter"])
    _require_equal("model.lora.alpha divided by rank", adapter_scaling(model), state["scaling"])


def _require_equal(name: str, own: object, saved: object) -> None:
    if own != saved:
        raise ValueError(f"{name}: expected {saved}, as the adapter was trained with, got {own}")

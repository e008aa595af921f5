"""Checksums of a model's weights, to compare sampler and trainer; the average of two models; copies on the CPU."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .sharded import full_state, full_tensor, is_sharded, reshard, unshard


def checksum(model: nn.Module) -> str:
    """Return a short hash of every parameter's name, dtype, shape and bytes.

    Any changed bit changes it, except the sign of a zero. Ranks that hold shards of the model must call this together.
    """
    with unshard(model):
        return checksum_of(model.named_parameters())


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
    context together. Source: WiSE-FT, arXiv 2109.01903.
    """
    if not share:
        yield
        return
    reshard(model, other)
    own, others = list(model.parameters()), dict(other.named_parameters())
    before = [parameter.detach().clone() for parameter in own]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.lerp_(others[name], share)
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
    """Return the model's `state_dict` on the CPU. Tied weights stay one tensor, so that they are saved once.

    Ranks that hold shards must call this together, and only rank 0 gets the weights.
    """
    state = full_state(model) if is_sharded(model) else model.state_dict()
    first: dict[int, str] = {}
    tied = {name: first.setdefault(id(own), name) for name, own in model.named_parameters(remove_duplicate=False)}
    copies = {name: state[name].cpu() for name in state if tied.get(name, name) == name}
    return {name: copies[tied.get(name, name)] for name in state}

"""A checksum of a model's weights: whether a sampler holds what the trainer holds."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def checksum(model: nn.Module) -> str:
    """A short hash of every parameter's name, type and bytes; one bit changed changes it, a zero's sign does not."""
    return checksum_of(model.named_parameters())


def checksum_of(named: Iterable[tuple[str, Tensor]]) -> str:
    """A checksum of named tensors, in their order."""
    digest = hashlib.sha256()
    for name, parameter in named:
        digest.update(f"{name}{parameter.dtype}{tuple(parameter.shape)}".encode())
        # -0 becomes 0: a sampler that multiplies with its weights to read them back cannot tell the two apart.
        raw = (parameter.detach() + 0).contiguous().cpu().flatten().view(torch.uint8)
        digest.update(raw.numpy().tobytes())
    return digest.hexdigest()[:16]

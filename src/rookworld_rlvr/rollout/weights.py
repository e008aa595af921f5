"""A checksum of a model's weights: whether a sampler holds what the trainer holds."""

import hashlib

import torch
from torch import nn


def checksum(model: nn.Module) -> str:
    """A short hash of every parameter's name, type and bytes; one bit changed changes it."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(f"{name}{parameter.dtype}{tuple(parameter.shape)}".encode())
        raw = parameter.detach().contiguous().cpu().flatten().view(torch.uint8)
        digest.update(raw.numpy().tobytes())
    return digest.hexdigest()[:16]

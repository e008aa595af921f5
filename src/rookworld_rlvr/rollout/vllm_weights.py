"""The trainer's weights as a vLLM sampler should have them."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ..model.weights import checksum, checksum_of
from .generator import GeneratorError


@dataclass(frozen=True, slots=True)
class ExpectedWeights:
    """The weights that a sampler should have."""

    checksum: str
    """Checksum of the trainer's weights in their own type."""
    rounded: str
    """Checksum of the trainer's weights rounded to the sampler's type."""
    names: tuple[str, ...]

    def checksum_for(self, held: str) -> str:
        """Return the trainer's checksum if `held` is that of the rounded weights, otherwise `held`."""
        return self.checksum if held == self.rounded else held


def expected_weights(model: PreTrainedModel, dtype: torch.dtype) -> ExpectedWeights:
    """Return the weights that a sampler of this dtype should have after a sync."""
    named = [(name, parameter.detach()) for name, parameter in model.named_parameters()]
    full = checksum(model)
    same = all(parameter.dtype == dtype for _, parameter in named)
    rounded = full if same else checksum_of((name, parameter.to(dtype)) for name, parameter in named)
    return ExpectedWeights(full, rounded, tuple(name for name, _ in named))


def require_weights(expected: ExpectedWeights, held: str) -> None:
    """Raise GeneratorError if the sampler holds other weights."""
    if held != expected.rounded:
        raise GeneratorError(
            f"vllm: expected the trainer's weights {expected.rounded}, the sampler has {held or 'none'}"
        )

"""The trainer's weights as a vLLM sampler should have them."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..model.adapter import named_weights, weight_names
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
    """Return the weights that a sampler of this dtype should have after a sync; an adapter is merged."""
    full = checksum(model)
    same = all(parameter.dtype == dtype for parameter in model.parameters())
    rounded = full if same else checksum_of((name, weight.to(dtype)) for name, weight in named_weights(model))
    return ExpectedWeights(full, rounded, tuple(weight_names(model)))


def sent_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights that a sampler gets, by transformers' names, on their device; an adapter is merged.

    Weights without an adapter are the trainer's own, not copies.
    """
    return dict(named_weights(model))


def require_weights(expected: ExpectedWeights, held: str) -> None:
    """Raise GeneratorError if the sampler holds other weights."""
    if held != expected.rounded:
        raise GeneratorError(
            f"vllm: expected the trainer's weights {expected.rounded}, the sampler has {held or 'none'}"
        )

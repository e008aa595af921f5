"""What the two vLLM generators share: limits, cutting, and whether the weights are the trainer's."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from ..model.lora import plain_parameters
from ..model.weights import checksum, checksum_of
from .generator import GeneratorError, PromptLengthError, SampledCompletion

# vLLM takes seeds below this.
SEEDS = 2**31


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one prompt is answered."""

    group_size: int
    temperature: float
    """0: greedy."""
    max_tokens: int
    seed: int | None
    """None where nothing is drawn."""
    top_k: int = 0
    """0: all tokens."""


def samplings(
    limits: Sequence[int], seeds: Sequence[int], *, group_size: int, temperature: float, top_k: int
) -> list[Sampling]:
    """How each prompt is answered, with its limit of tokens and its seed; seeds are not used where nothing is drawn."""
    own = [seed % SEEDS for seed in seeds] if temperature else [None] * len(limits)
    return [Sampling(group_size, temperature, limit, seed, top_k) for limit, seed in zip(limits, own, strict=True)]


@dataclass(frozen=True, slots=True)
class Held:
    """The weights that a sampler should have."""

    checksum: str
    """Checksum of the trainer's weights in their own type."""
    rounded: str
    """Checksum of the trainer's weights rounded to the sampler's type."""
    names: tuple[str, ...]

    def named_by(self, held: str) -> str:
        """The trainer's checksum where the sampler's is that of the rounded weights, else the sampler's."""
        return self.checksum if held == self.rounded else held


def expected_weights(model: PreTrainedModel, dtype: torch.dtype) -> Held:
    """What a sampler of this type should have once it took over the model's weights."""
    named = list(plain_parameters(model))
    full, adapted = checksum(model), len(named) < len(list(model.parameters()))
    same = not adapted and all(parameter.dtype == dtype for _, parameter in named)
    rounded = full if same else checksum_of((name, parameter.to(dtype)) for name, parameter in named)
    return Held(full, rounded, tuple(name for name, _ in named))


def require_held(expected: Held, held: str) -> None:
    """Raises GeneratorError where the sampler's weights are others."""
    if held != expected.rounded:
        raise GeneratorError(f"vllm: expected the trainer's weights {expected.rounded}, the sampler has {held}")


def room_for(prompt: Sequence[int], positions: int, max_new_tokens: int) -> int:
    """The most tokens that may follow a prompt. Raises PromptLengthError for a prompt that leaves none."""
    if len(prompt) >= positions:
        raise PromptLengthError(positions, len(prompt))
    return min(max_new_tokens, positions - len(prompt))


def cut(tokens: Sequence[int], logprobs: Sequence[float], eos_id: int) -> SampledCompletion:
    """A completion up to its end token, which is part of it."""
    finished = eos_id in tokens
    length = tokens.index(eos_id) + 1 if finished else len(tokens)
    return SampledCompletion(tuple(tokens[:length]), tuple(logprobs[:length]), finished)

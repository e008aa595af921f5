"""What generators share that sample from the trainer's own model, in this process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..model.padding import MOST_PADDING, similar_lengths
from ..model.weights import checksum
from .generator import GeneratorBaseConfig, SampledCompletion, require_seeds
from .sampling import uniform_numbers


class OwnModelGenerator(ABC):
    """See `Generator`. Samples in evaluation mode; `sync` has nothing to copy."""

    most_padding = MOST_PADDING
    """Most pads beside a prompt of those that are computed side by side."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: GeneratorBaseConfig,
        *,
        eos_id: int,
        pad_id: int,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._model, self._config = model, config
        self._eos_id, self._pad_id = eos_id, pad_id
        self._autocast = autocast

    def sync(self, model: PreTrainedModel) -> None:
        self._model = model

    def weights_checksum(self) -> str:
        return checksum(self._model)

    def generate(
        self,
        prompts: Sequence[tuple[int, ...]],
        *,
        group_size: int,
        temperature: float,
        seeds: Sequence[int] = (),
        top_k: int = 0,
    ) -> list[list[SampledCompletion]]:
        """See `Generator.generate`. Raises PromptLengthError if a prompt leaves the model no room to answer."""
        require_seeds(seeds, prompts, temperature)
        limit = self._config.max_new_tokens if temperature else 0
        groups: list[list[SampledCompletion]] = [[] for _ in prompts]
        size = max(1, self._config.batch_size // group_size)
        was_training = self._model.training
        self._model.eval()
        device = next(self._model.parameters()).device
        for chosen in similar_lengths([len(prompt) for prompt in prompts], size, self.most_padding):
            own = [seeds[i] for i in chosen] if temperature else [0] * len(chosen)
            uniform_PGT = uniform_numbers(own, group_size, limit, device)
            completions = self._sample([prompts[i] for i in chosen], uniform_PGT, temperature, top_k)
            for row, i in enumerate(chosen):
                groups[i] = completions[row * group_size : (row + 1) * group_size]
        self._model.train(was_training)
        return groups

    @abstractmethod
    def _sample(
        self, prompts: Sequence[tuple[int, ...]], uniform_PGT: Tensor, temperature: float, top_k: int
    ) -> list[SampledCompletion]:
        """G completions of each prompt, group by group, side by side; each drawn with T numbers of its own."""


def likeliest(scores: Tensor, top_k: int) -> Tensor:
    """Keep the scores (…, V) of the `top_k` likeliest tokens and set the others to -inf; 0 keeps all scores.

    If scores are equal at the border, only as many are kept as there is room for.
    """
    if not 0 < top_k < scores.shape[-1]:
        return scores
    kept = scores.topk(top_k, dim=-1)
    return torch.full_like(scores, -torch.inf).scatter(-1, kept.indices, kept.values)

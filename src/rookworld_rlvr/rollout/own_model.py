"""What generators share that sample from the trainer's own model, in this process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .generator import GeneratorConfig, SampledCompletion
from .padding import similar_lengths
from .weights import checksum


class OwnModelGenerator(ABC):
    """See `Generator`. Samples in evaluation mode; `sync` has nothing to copy."""

    def __init__(
        self,
        model: Any,
        config: GeneratorConfig,
        *,
        eos_id: int,
        pad_id: int,
        autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._model, self._config = model, config
        self._eos_id, self._pad_id = eos_id, pad_id
        self._autocast = autocast

    def sync(self, model: Any) -> None:
        self._model = model

    def weights_checksum(self) -> str:
        return checksum(self._model)

    def generate(
        self, prompts: Sequence[tuple[int, ...]], *, group_size: int, temperature: float
    ) -> list[list[SampledCompletion]]:
        """See `Generator.generate`. Raises ValueError if a prompt leaves the model no room to answer."""
        groups: list[list[SampledCompletion]] = [[] for _ in prompts]
        size = max(1, self._config.batch_size // group_size)
        was_training = self._model.training
        self._model.eval()
        for chosen in similar_lengths([len(prompt) for prompt in prompts], size):
            completions = self._sample([prompts[i] for i in chosen], group_size, temperature)
            for row, i in enumerate(chosen):
                groups[i] = completions[row * group_size : (row + 1) * group_size]
        self._model.train(was_training)
        return groups

    @abstractmethod
    def _sample(
        self, prompts: Sequence[tuple[int, ...]], group_size: int, temperature: float
    ) -> list[SampledCompletion]:
        """`group_size` completions of each prompt, group by group, side by side."""

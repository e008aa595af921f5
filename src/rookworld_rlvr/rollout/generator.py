"""Generators: prompts in, sampled completions with their log-probs out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from ..model.batch import MOST_PADDING, similar_lengths
from ..model.weights import checksum
from .sampling import uniform_numbers
from .vllm_config import VLLMConfig


class GeneratorKind(StrEnum):
    """The engine that samples."""

    static = "static"
    """Our loop over the trainer's own model: prompts computed once per group, drafts from the prompt."""
    hf = "hf"
    """transformers' `generate`: the reference the others are checked against."""
    vllm = "vllm"
    """vLLM in this process, with a copy of the weights; see docs/scaling.md."""
    vllm_server = "vllm_server"
    """vLLM in a process of its own, here or elsewhere."""


@dataclass(slots=True)
class GeneratorBaseConfig:
    """The engine that samples, and its limits."""

    kind: GeneratorKind = GeneratorKind.static
    max_new_tokens: int = 144
    """Longest completion in tokens; a longer one is truncated, counted and scored as it is."""
    batch_size: int = 128
    """Completions generated side by side; memory grows with it."""
    draft_tokens: int = 8
    """static: most tokens of the prompt that a pass tries as the completion's next ones; 0: none. Changes the
    speed alone."""
    vllm: VLLMConfig = field(default_factory=VLLMConfig)

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.batch_size < 1:
            raise ValueError("generator: expected max_new_tokens and batch_size of at least 1")
        if self.draft_tokens < 0:
            raise ValueError(f"generator.draft_tokens: expected 0 or more, got {self.draft_tokens}")


@dataclass(slots=True)
class GeneratorConfig(GeneratorBaseConfig):
    """Sampling of completions in training."""

    temperature: float = 1.0
    """Sampling temperature; all four kinds of log-prob are taken at it."""

    def __post_init__(self) -> None:
        # super() does not find a dataclass with slots.
        GeneratorBaseConfig.__post_init__(self)
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"generator.temperature: expected above 0, got {self.temperature}")


@dataclass(frozen=True, slots=True)
class SampledCompletion:
    """One completion as it was sampled; never re-tokenised."""

    tokens: tuple[int, ...]
    """Token ids, the end-of-text token included where the completion ended."""
    logprobs: tuple[float, ...]
    """Log-prob of each token at the sampling temperature, nat, float32."""
    finished: bool
    """True if it ended by itself, not by the length limit."""


class GeneratorError(RuntimeError):
    """Failure of a generator: it returned no completions, or does not sample from the trainer's weights."""


class PromptLengthError(ValueError):
    """A prompt that leaves the model no position to answer in: the data or the model is not the right one."""

    def __init__(self, positions: int, length: int) -> None:
        super().__init__(f"expected a prompt shorter than the model's {positions} positions, got {length} tokens")


def require_seeds(seeds: Sequence[int], prompts: Sequence[tuple[int, ...]], temperature: float) -> None:
    """Raises ValueError unless each prompt has a seed; greedy decoding needs none."""
    if temperature and len(seeds) != len(prompts):
        raise ValueError(f"expected a seed for each of {len(prompts)} prompts, got {len(seeds)}")


def room_for(prompt: Sequence[int], positions: int, max_new_tokens: int) -> int:
    """The most tokens that may follow a prompt. Raises PromptLengthError for a prompt that leaves none."""
    if len(prompt) >= positions:
        raise PromptLengthError(positions, len(prompt))
    return min(max_new_tokens, positions - len(prompt))


def until_end(tokens: Sequence[int], logprobs: Sequence[float], eos_id: int) -> SampledCompletion:
    """A completion up to its end token, which is part of it."""
    finished = eos_id in tokens
    length = tokens.index(eos_id) + 1 if finished else len(tokens)
    return SampledCompletion(tuple(tokens[:length]), tuple(logprobs[:length]), finished)


class Generator(Protocol):
    """Samples completions; may hold its own copy of the weights."""

    def sync(self, model: PreTrainedModel) -> None:
        """Take over the trainer's weights. Called before every collection. Raises GeneratorError."""

    def generate(
        self,
        prompts: Sequence[tuple[int, ...]],
        *,
        group_size: int,
        temperature: float,
        seeds: Sequence[int] = (),
        top_k: int = 0,
    ) -> list[list[SampledCompletion]]:
        """`group_size` completions of each prompt, in the prompts' order; temperature 0 is greedy.

        Above 0, each prompt's completions are sampled with its own one of the `seeds`, whatever is sampled beside it; a
        missing seed raises ValueError. `top_k` samples from that many likeliest tokens alone: for play, never for
        training, since log-probs stay those of the whole distribution (vLLM's become those of the truncated one).
        """

    def weights_checksum(self) -> str:
        """`checksum` of the weights it samples from."""


class TrainerModelGenerator(ABC):
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
        """G completions of each prompt, group by group, side by side; each sampled with T numbers of its own."""

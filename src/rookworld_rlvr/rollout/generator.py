"""Generators, which sample completions of prompts and return them with their log-probs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from torch import Tensor
from transformers import PreTrainedModel

from ..errors import UserError
from ..model.batch import similar_lengths
from ..model.policy import evaluation_mode
from ..model.weights import checksum
from .sampling import uniform_numbers
from .vllm_config import VLLMConfig, sampling_parameters


class GeneratorKind(StrEnum):
    """Engine that samples completions."""

    native = "native"
    """Our own loop with the trainer's model. It computes a prompt once per group."""
    hf = "hf"
    """transformers' `generate`: the reference that the others are checked against."""
    vllm = "vllm"
    """vLLM in this process, with a copy of the weights; see docs/scaling.md."""
    vllm_server = "vllm_server"
    """vLLM in a process of its own, on this machine or another."""


@dataclass(slots=True)
class GeneratorBaseConfig:
    """The engine that samples, and its limits."""

    kind: GeneratorKind = GeneratorKind.native
    max_new_tokens: int = 0
    """Maximum number of tokens of a completion. A longer one is truncated, counted as such and scored as it is. 0: the
    most that a task of `data.tasks` asks for, 144 for the policy and the environment task."""
    batch_size: int = 128
    """Number of completions generated at a time; memory grows with it."""
    vllm: VLLMConfig = field(default_factory=VLLMConfig)

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0 or self.batch_size < 1:
            raise ValueError("generator: expected max_new_tokens from 0 and batch_size from 1")


@dataclass(slots=True)
class GeneratorConfig(GeneratorBaseConfig):
    """Sampling of completions in training."""

    temperature: float = 1.0
    """Sampling temperature. Log-probs of sampler, policy, old policy and reference are all computed at it."""

    def __post_init__(self) -> None:
        # super() without arguments fails in a dataclass with slots.
        GeneratorBaseConfig.__post_init__(self)
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"generator.temperature: expected above 0, got {self.temperature}")


@dataclass(frozen=True, slots=True)
class SampledCompletion:
    """One completion as it was sampled; never re-tokenised."""

    tokens: tuple[int, ...]
    """Token ids, including the end-of-text token if the completion ended."""
    logprobs: tuple[float, ...]
    """Log-prob of each token at the sampling temperature, nat, float32."""
    finished: bool
    """True if the completion ended by itself, not by the length limit."""


Prompts = Sequence[tuple[int, ...]]
"""Token ids of prompts."""
Completions = list[list[SampledCompletion]]
"""The completions of each prompt, in the prompts' order."""


class GeneratorError(RuntimeError):
    """Failure of a generator: it returned no completions, or does not sample from the trainer's weights."""


def require_seeds(seeds: Sequence[int], prompts: Prompts, temperature: float) -> None:
    """Raise ValueError unless each prompt has a seed. Greedy decoding needs none."""
    if temperature and len(seeds) != len(prompts):
        raise ValueError(f"expected a seed for each of {len(prompts)} prompts, got {len(seeds)}")


def room_for(length: int, positions: int, max_new_tokens: int) -> int:
    """Return the maximum number of tokens after a prompt of `length` tokens. Raises UserError if there is none."""
    if length >= positions:
        raise UserError(f"expected a prompt shorter than the model's {positions} positions, got {length} tokens")
    return min(max_new_tokens, positions - length)


def until_end(tokens: Sequence[int], logprobs: Sequence[float], eos_id: int) -> SampledCompletion:
    """Return the completion up to and including its end token, or all of it if it has none."""
    finished = eos_id in tokens
    length = tokens.index(eos_id) + 1 if finished else len(tokens)
    return SampledCompletion(tuple(tokens[:length]), tuple(logprobs[:length]), finished)


class Generator(Protocol):
    """Sampler of completions, which may hold its own copy of the weights."""

    def sync(self, model: PreTrainedModel) -> None:
        """Take over the trainer's weights. Called before every collection. Raises GeneratorError."""

    def generate(
        self, prompts: Prompts, *, group_size: int, temperature: float, seeds: Sequence[int] = (), top_k: int = 0
    ) -> Completions:
        """Return `group_size` completions of each prompt, in the prompts' order; temperature 0 is greedy.

        Above 0, each prompt's completions are sampled with its own one of the `seeds` and do not depend on the other
        prompts; a missing seed raises ValueError. `top_k` above 0 samples only from that many most likely tokens: for
        play, never for training, since log-probs stay those of the whole distribution (with vLLM those of the
        truncated one).
        """

    def weights_checksum(self) -> str:
        """Return the `checksum` of the weights that it samples from."""


class TrainerModelGenerator(ABC):
    """Generator that samples from the trainer's own model in evaluation mode; `sync` copies nothing."""

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
        self, prompts: Prompts, *, group_size: int, temperature: float, seeds: Sequence[int] = (), top_k: int = 0
    ) -> Completions:
        """See `Generator.generate`. Raises UserError if a prompt leaves the model no room to answer."""
        require_seeds(seeds, prompts, temperature)
        limit = self._config.max_new_tokens if temperature else 0
        groups: Completions = [[] for _ in prompts]
        size = max(1, self._config.batch_size // group_size)
        device = next(self._model.parameters()).device
        with evaluation_mode(self._model):
            for chosen in similar_lengths([len(prompt) for prompt in prompts], size, self._most_padding(prompts)):
                own = [seeds[i] for i in chosen] if temperature else [0] * len(chosen)
                uniform_PGT = uniform_numbers(own, group_size, limit, device)
                completions = self._sample([prompts[i] for i in chosen], uniform_PGT, temperature, top_k)
                for row, i in enumerate(chosen):
                    groups[i] = completions[row * group_size : (row + 1) * group_size]
        return groups

    @property
    def _positions(self) -> int:
        """Maximum number of tokens of a prompt and its completion together."""
        return getattr(self._model.config, "max_position_embeddings", None) or 10**9

    @abstractmethod
    def _most_padding(self, prompts: Prompts) -> int:
        """Return the maximum number of pads in the shortest of the prompts that are computed together."""

    @abstractmethod
    def _sample(self, prompts: Prompts, uniform_PGT: Tensor, temperature: float, top_k: int) -> list[SampledCompletion]:
        """Return G completions of each prompt, group by group; each is sampled with T uniform numbers of its own."""


class VLLMBase(ABC):
    """Generator with vLLM, in this process or as a server, which samples from a copy of the weights."""

    _config: GeneratorBaseConfig
    _eos_id: int
    _positions: int

    def generate(
        self, prompts: Prompts, *, group_size: int, temperature: float, seeds: Sequence[int] = (), top_k: int = 0
    ) -> Completions:
        """See `Generator.generate`. Raises UserError if a prompt leaves the model no room to answer."""
        limits = [room_for(len(prompt), self._positions, self._config.max_new_tokens) for prompt in prompts]
        require_seeds(seeds, prompts, temperature)
        parameters = sampling_parameters(
            limits, seeds, group_size=group_size, temperature=temperature, top_k=top_k, eos_id=self._eos_id
        )
        return self._sample(prompts, parameters)

    @abstractmethod
    def _sample(self, prompts: Prompts, parameters: Sequence[dict[str, Any]]) -> Completions:
        """Return the completions of each prompt, sampled with its vLLM `parameters`."""

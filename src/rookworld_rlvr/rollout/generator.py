"""Generators, which sample completions of prompts and return them with their log-probs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import UserError
from ..model.batch import similar_lengths
from ..model.device import free_bytes, is_accelerator
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
    batch_size: int = 0
    """Number of completions generated at a time; memory grows with it. 0: automatic, on an accelerator all that are
    asked for together, as far as half of the free memory allows, and 128 on a CPU or with vLLM."""
    cuda_graph: bool = False
    """Run the decode steps of the `native` engine as CUDA graphs, which need no launch of each kernel. Experimental:
    not measured on a GPU yet; see docs/scaling.md."""
    vllm: VLLMConfig = field(default_factory=VLLMConfig)

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0 or self.batch_size < 0:
            raise ValueError("generator: expected max_new_tokens and batch_size from 0")


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


# Number of completions at a time on a CPU and with vLLM if none is configured.
BATCH_SIZE = 128
# Share of an accelerator's free memory that an automatic batch is computed to need at most.
MEMORY_SHARE = 0.5
# Numbers in float32 that a pass is taken to hold at a time, with room for copies: per score of attention, per unit of
# the hidden size of a prompt's token, and per logit.
HELD_SCORES, HELD_STATES, HELD_LOGITS = 4, 16, 8


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


def group_bytes(config: Any, length: int, *, new_tokens: int, group_size: int, prompts: int) -> int:
    """Return about how much memory the sampling of a group takes, in bytes, by a generous estimate from shapes.

    `config` is a transformers config, `length` the number of tokens of the prompt, which is computed `prompts` times.
    """
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    cache = 2 * config.num_hidden_layers * key_heads * width
    of_prompt = length * (cache + HELD_STATES * config.hidden_size) + HELD_SCORES * heads * length**2
    of_completion = new_tokens * cache + HELD_SCORES * heads * (length + new_tokens) + HELD_LOGITS * config.vocab_size
    return int(torch.float32.itemsize * (prompts * of_prompt + group_size * of_completion))


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

    _shares_prompts = False
    """True if a prompt is computed once for its group."""

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
        device = next(self._model.parameters()).device
        size = self._groups_at_a_time(prompts, group_size, device)
        with evaluation_mode(self._model):
            for chosen in similar_lengths([len(prompt) for prompt in prompts], size, self._most_padding(prompts)):
                own = [seeds[i] for i in chosen] if temperature else [0] * len(chosen)
                uniform_PGT = uniform_numbers(own, group_size, limit, device)
                completions = self._sample([prompts[i] for i in chosen], uniform_PGT, temperature, top_k)
                for row, i in enumerate(chosen):
                    groups[i] = completions[row * group_size : (row + 1) * group_size]
        return groups

    def _groups_at_a_time(self, prompts: Prompts, group_size: int, device: torch.device) -> int:
        """Return the number of prompts that are sampled together: as configured, or as many as memory allows."""
        if self._config.batch_size or not is_accelerator(device):
            return max(1, (self._config.batch_size or BATCH_SIZE) // group_size)
        config = self._model.config.get_text_config()
        if not all(hasattr(config, name) for name in ("num_attention_heads", "num_hidden_layers", "hidden_size")):
            return max(1, BATCH_SIZE // group_size)
        needed = group_bytes(
            config,
            max(map(len, prompts), default=0),
            new_tokens=self._config.max_new_tokens,
            group_size=group_size,
            prompts=1 if self._shares_prompts else group_size,
        )
        return max(1, int(min(len(prompts), MEMORY_SHARE * free_bytes(device) / needed)))

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

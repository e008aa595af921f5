"""What a generator is: prompts in, sampled completions with their log-probs out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from transformers import PreTrainedModel

from .vllm_config import VLLMConfig


class GeneratorKind(StrEnum):
    """Which engine samples."""

    static = "static"
    """Our loop over the trainer's own model: prompts once a group, drafts out of the prompt."""
    hf = "hf"
    """transformers' `generate`: the reference the others are checked against."""
    vllm = "vllm"
    """vLLM in this process, with a copy of the weights; see docs/scaling.md."""
    vllm_server = "vllm_server"
    """vLLM in a process of its own, here or elsewhere."""


@dataclass(slots=True)
class GeneratorBaseConfig:
    """Which engine samples, and within what bounds."""

    kind: GeneratorKind = GeneratorKind.static
    max_new_tokens: int = 144
    """Longest completion; what has not ended by then is cut, counted and scored as it is."""
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
    """How completions are sampled in training. Raises ValueError for what would break the objective."""

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
    """Whether it ended by itself, not by the length limit."""


class GeneratorError(RuntimeError):
    """A generator that did not give what it was asked for, or does not sample from the trainer's weights."""


class PromptLengthError(ValueError):
    """A prompt that leaves the model no position to answer in: the data or the model is not the right one."""

    def __init__(self, positions: int, length: int) -> None:
        super().__init__(f"expected a prompt shorter than the model's {positions} positions, got {length} tokens")


def require_seeds(seeds: Sequence[int], prompts: Sequence[tuple[int, ...]], temperature: float) -> None:
    """Raises ValueError unless each prompt has a seed; greedy decoding draws nothing and needs none."""
    if temperature and len(seeds) != len(prompts):
        raise ValueError(f"expected a seed for each of {len(prompts)} prompts, got {len(seeds)}")


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

        Above 0, each prompt's completions are drawn by its own one of the `seeds`, whatever is sampled beside it; a
        missing seed raises ValueError. `top_k` draws from that many likeliest tokens alone: for play, never for
        training, since log-probs stay those of the whole distribution (vLLM's become those of the cut one).
        """

    def weights_checksum(self) -> str:
        """`checksum` of the weights it samples from."""

"""Collection: examples → prompts → sampled completions → scores, a group for each example."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..rewards import Rubric, Score
from ..tasks import Example
from .generator import Generator, SampledCompletion


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion, sampled and judged."""

    completion: SampledCompletion
    text: str
    """What the completion's tokens decode to, special tokens left out."""
    score: Score


@dataclass(frozen=True, slots=True)
class Group:
    """All completions of one prompt."""

    example: Example
    prompt_tokens: tuple[int, ...]
    samples: tuple[Sample, ...]


def prompt_tokens(tokenizer: Any, prompt: str) -> tuple[int, ...]:
    """A prompt's ids, without the special tokens some tokenizers add."""
    return tuple(tokenizer(prompt, add_special_tokens=False).input_ids)


def completion_text(tokenizer: Any, completion: SampledCompletion) -> str:
    """What a reader of the completion sees."""
    text: str = tokenizer.decode(completion.tokens, skip_special_tokens=True)
    return text


def sample_groups(
    generator: Generator, tokenizer: Any, examples: Sequence[Example], *, group_size: int, temperature: float
) -> list[tuple[tuple[int, ...], list[SampledCompletion]]]:
    """The prompt's ids and the sampled completions of each example."""
    prompts = [prompt_tokens(tokenizer, example.prompt) for example in examples]
    sampled = generator.generate(prompts, group_size=group_size, temperature=temperature)
    return list(zip(prompts, sampled, strict=True))


def score_groups(
    sampled: Sequence[tuple[tuple[int, ...], list[SampledCompletion]]],
    tokenizer: Any,
    examples: Sequence[Example],
    *,
    rubric: Rubric,
    step: int,
) -> list[Group]:
    """Judge every completion; `step` is for the rubric's warm-up."""
    groups = []
    for example, (prompt, completions) in zip(examples, sampled, strict=True):
        texts = [completion_text(tokenizer, completion) for completion in completions]
        scores = [rubric.score(example.prompt, text, example.completion, step=step) for text in texts]
        samples = map(Sample, completions, texts, scores)
        groups.append(Group(example, prompt, tuple(samples)))
    return groups

"""Groups of sampled and scored completions, made from examples, and the batch made from groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..model.batch import Batch, collate
from ..rewards import Score
from ..rewards.scorer import Scorer, ScoreRequest
from ..tasks.types import Example
from .generator import Generator, GeneratorError, SampledCompletion

Sampled = tuple[tuple[int, ...], list[SampledCompletion]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion with its score."""

    completion: SampledCompletion
    text: str
    """The decoded tokens without special tokens."""
    score: Score


@dataclass(frozen=True, slots=True)
class Group:
    """All completions of one prompt."""

    example: Example
    prompt_tokens: tuple[int, ...]
    samples: tuple[Sample, ...]
    move_values: Mapping[str, float] = field(default_factory=dict)
    """Value of each legal move. Empty for an `A:` prompt, without evaluations, and if nothing needs the values."""


@dataclass(slots=True)
class Collected:
    """P groups of G completions, with their rewards before training; tensors are (P, G)."""

    groups: tuple[Group, ...]
    rewards_PG: Tensor
    """Rewards, float32. A hook may change them."""
    finished_PG: Tensor
    """True if the completion ended by itself, not by the length limit."""

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "Collected":
        """Return the collection of these groups, of which there must be at least one."""
        return cls(
            tuple(groups),
            torch.tensor([[sample.score.total for sample in group.samples] for group in groups]),
            torch.tensor([[sample.completion.finished for sample in group.samples] for group in groups]),
        )

    def select(self, kept_P: Tensor) -> "Collected":
        """Return the groups for which `kept_P` (P,) is True."""
        groups = tuple(group for group, kept in zip(self.groups, kept_P.tolist(), strict=True) if kept)
        return Collected(groups, self.rewards_PG[kept_P], self.finished_PG[kept_P])

    def __add__(self, other: "Collected") -> "Collected":
        rewards_PG = torch.cat([self.rewards_PG, other.rewards_PG])
        return Collected(self.groups + other.groups, rewards_PG, torch.cat([self.finished_PG, other.finished_PG]))


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: str) -> tuple[int, ...]:
    """Return a prompt's token ids, without the special tokens that some tokenizers add."""
    return tuple(tokenizer(prompt, add_special_tokens=False).input_ids)


def completion_text(tokenizer: PreTrainedTokenizerBase, completion: SampledCompletion) -> str:
    """Return the text of a completion, without special tokens."""
    text = tokenizer.decode(list(completion.tokens), skip_special_tokens=True)
    assert isinstance(text, str)
    return text


def sample_groups(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    *,
    group_size: int,
    temperature: float,
    seeds: Sequence[int] = (),
    top_k: int = 0,
) -> list[Sampled]:
    """Return the prompt's token ids and the sampled completions of each example.

    `seeds` has one seed for each example, unless decoding is greedy. For `top_k` see `Generator.generate`. Raises
    GeneratorError unless every prompt has group_size completions of at least one token.
    """
    prompts = [prompt_tokens(tokenizer, example.prompt) for example in examples]
    sampled = generator.generate(prompts, group_size=group_size, temperature=temperature, seeds=seeds, top_k=top_k)
    lengths = [sum(bool(done.tokens) for done in completions) for completions in sampled]
    if lengths != [group_size] * len(prompts):
        raise GeneratorError(
            f"expected {len(prompts)} groups of {group_size} completions, got {len(lengths)} groups of {lengths[:8]}"
        )
    return list(zip(prompts, sampled, strict=True))


def score_groups(
    sampled: Sequence[Sampled],
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    *,
    scorer: Scorer,
    all_moves: bool = False,
) -> list[Group]:
    """Score every completion, equal ones of a prompt only once. Raises ScorerError.

    With `all_moves` the groups also have the values of all legal moves.
    """
    written = {done.tokens: done for _, completions in sampled for done in completions}
    texts = {tokens: completion_text(tokenizer, done) for tokens, done in written.items()}
    requests_PG = [
        [ScoreRequest(example.prompt, texts[done.tokens], example.completion) for done in completions]
        for example, (_, completions) in zip(examples, sampled, strict=True)
    ]
    distinct = list(dict.fromkeys(request for requests in requests_PG for request in requests))
    scores = dict(zip(distinct, scorer.score_all(distinct), strict=True))
    groups = []
    for example, (prompt, completions), requests in zip(examples, sampled, requests_PG, strict=True):
        pairs = zip(completions, requests, strict=True)
        samples = (Sample(done, request.completion, scores[request]) for done, request in pairs)
        analysis = scores[requests[0]].analysis if all_moves else None
        groups.append(Group(example, prompt, tuple(samples), scorer.move_values(analysis) if analysis else {}))
    return groups


def make_batch(groups: Sequence[Group], *, pad_id: int, device: torch.device) -> Batch:
    """Return the batch of all groups, with rows in the groups' order and advantages 0."""
    done = [sample.completion for group in groups for sample in group.samples]
    prompts = [(p, group.prompt_tokens) for p, group in enumerate(groups) for _ in group.samples]
    rows = [(prompt, completion.tokens) for (_, prompt), completion in zip(prompts, done, strict=True)]
    batch = collate(rows, pad_id=pad_id, device=device)
    logprobs_N = torch.tensor([logprob for completion in done for logprob in completion.logprobs], device=device)
    return replace(
        batch,
        sampler_logprobs_BT=batch.sampler_logprobs_BT.masked_scatter(batch.loss_mask_BT, logprobs_N),
        prompts_B=torch.tensor([p for p, _ in prompts], device=device),
    )

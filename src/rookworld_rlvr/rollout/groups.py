"""Groups of sampled and scored completions, made from examples, and the batch made from groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..model.batch import Batch, collate
from ..rewards.score import MoveChoice, Score, Scorer, ScoreRequest
from ..stockfish.analysis import EngineCounts
from ..tasks.messages import ASSISTANT, Message, asks_to_think, messages_of
from ..tasks.types import Completion, Example
from .generator import Completions, Generator, GeneratorError, SampledCompletion

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
    choice: MoveChoice | None = None
    """Values of the legal moves where a completion names one. None for a task that names no move, without evaluations
    and if nothing needs the values."""


def _empty_PG(dtype: torch.dtype) -> Tensor:
    return torch.zeros(0, 0, dtype=dtype)


@dataclass(frozen=True, slots=True)
class Rollout:
    """P groups of G completions that were sampled and scored for a step, with what their sampling took."""

    groups: tuple[Group, ...] = ()
    rewards_PG: Tensor = field(default_factory=lambda: _empty_PG(torch.float32))
    """Rewards, float32."""
    finished_PG: Tensor = field(default_factory=lambda: _empty_PG(torch.bool))
    """True if the completion ended by itself, not by the length limit."""
    kept_P: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """True for a group to train on, False for one that was dropped or replaced."""
    unscored: tuple[Example, ...] = ()
    """Examples whose completions could not be sampled or scored, because of a fault."""
    engine: EngineCounts | None = None
    """Work of the scorer's engines; None without engines."""
    times_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the phases generate and score, by name."""

    @classmethod
    def of(
        cls,
        groups: Sequence[Group],
        *,
        engine: EngineCounts | None = None,
        times_s: Mapping[str, float] = MappingProxyType({}),
    ) -> "Rollout":
        """Return the rollout of these groups, of which there must be at least one; all are kept."""
        return cls(
            tuple(groups),
            torch.tensor([[sample.score.total for sample in group.samples] for group in groups]),
            torch.tensor([[sample.completion.finished for sample in group.samples] for group in groups]),
            torch.ones(len(groups), dtype=torch.bool),
            engine=engine,
            times_s=times_s,
        )

    def keeping(self, kept_P: Tensor) -> "Rollout":
        """Return the rollout with only the given groups, (P,), marked as kept."""
        return replace(self, kept_P=kept_P)

    def kept(self) -> "Rollout":
        """Return the rollout of the kept groups alone; itself if all are kept."""
        if self.kept_P.all():
            return self
        groups = tuple(group for group, kept in zip(self.groups, self.kept_P.tolist(), strict=True) if kept)
        where = self.kept_P
        return replace(
            self,
            groups=groups,
            rewards_PG=self.rewards_PG[where],
            finished_PG=self.finished_PG[where],
            kept_P=self.kept_P[where],
        )

    def dropped(self) -> tuple[Group, ...]:
        """Return the groups that were dropped or replaced."""
        return tuple(group for group, kept in zip(self.groups, self.kept_P.tolist(), strict=True) if not kept)

    def completions(self) -> list[SampledCompletion]:
        """Return all completions, in the groups' order."""
        return [sample.completion for group in self.groups for sample in group.samples]

    def __add__(self, other: "Rollout") -> "Rollout":
        engines = [engine for engine in (self.engine, other.engine) if engine is not None]
        phases = {**self.times_s, **other.times_s}
        return Rollout(
            self.groups + other.groups,
            _joined(self.rewards_PG, other.rewards_PG),
            _joined(self.finished_PG, other.finished_PG),
            torch.cat([self.kept_P, other.kept_P]),
            unscored=self.unscored + other.unscored,
            engine=sum(engines, start=EngineCounts()) if engines else None,
            times_s={phase: self.times_s.get(phase, 0.0) + other.times_s.get(phase, 0.0) for phase in phases},
        )


def _joined(one_PG: Tensor, other_PG: Tensor) -> Tensor:
    """Return the rows of both. A part without groups does not know G, the number of columns."""
    parts = [part for part in (one_PG, other_PG) if len(part)]
    return torch.cat(parts) if len(parts) > 1 else parts[0] if parts else one_PG


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompt: str) -> tuple[int, ...]:
    """Return a prompt's token ids, without the special tokens that some tokenizers add.

    Chat messages are rendered by the tokenizer's own template, which adds those that it wants.
    """
    messages = messages_of(prompt)
    text = prompt if messages is None else rendered(tokenizer, messages)
    return tuple(tokenizer(text, add_special_tokens=False).input_ids)


def move_tokens(tokenizer: PreTrainedTokenizerBase, begun: str, move: str, after: str | None = None) -> tuple[int, ...]:
    """Return the tokens of the text of a move that follows `begun`, the beginning of a completion.

    With `after` the first token that goes beyond the move is one of them; the end of text if `after` is empty. Raises
    ValueError for a tokenizer that joins the end of `begun` and the beginning of the move in one token.
    """
    before, whole = prompt_tokens(tokenizer, begun), prompt_tokens(tokenizer, begun + move + (after or ""))
    if whole[: len(before)] != before or len(whole) == len(before):
        raise ValueError(
            f"expected a tokenizer whose tokens of {begun!r} begin those of {begun + move!r}, got {before} and {whole}"
        )
    tokens = whole[len(before) :]
    if after is None:
        return tokens
    if not after:
        return (*tokens, int(tokenizer.eos_token_id))
    beyond = (count for count in range(1, len(tokens)) if len(tokenizer.decode(list(tokens[:count]))) > len(move))
    return tokens[: next(beyond, len(tokens))]


def rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> str:
    """Return chat messages as the model reads them, up to the place where its answer begins or goes on.

    A tokenizer without a template gets the contents as plain text, with an empty line between them.
    """
    begun = messages[-1]["role"] == ASSISTANT
    if not getattr(tokenizer, "chat_template", None):
        *before, last = (message["content"] for message in messages)
        return "\n\n".join([*before, last if begun else f"{last}\n\n"])
    text = tokenizer.apply_chat_template(
        [dict(message) for message in messages],
        tokenize=False,
        add_generation_prompt=not begun,
        continue_final_message=begun,
        # Templates of models that think by themselves read it; the others ignore it.
        enable_thinking=asks_to_think(messages),
    )
    assert isinstance(text, str)
    return text


def completion_text(tokenizer: PreTrainedTokenizerBase, completion: SampledCompletion) -> str:
    """Return the text of a completion, without special tokens."""
    text = tokenizer.decode(list(completion.tokens), skip_special_tokens=True)
    assert isinstance(text, str)
    return text


def sampled_text(tokenizer: PreTrainedTokenizerBase, sampled: SampledCompletion) -> Completion:
    """Return a sampled completion as text, without special tokens."""
    return Completion(completion_text(tokenizer, sampled), sampled.finished)


def sample_groups(
    generator: Generator,
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    *,
    group_size: int,
    temperature: float,
    seeds: Sequence[int] = (),
) -> list[Sampled]:
    """Return the prompt's token ids and the sampled completions of each example.

    `seeds` has one seed for each example, unless decoding is greedy. Raises GeneratorError unless every prompt has
    group_size completions of at least one token.
    """
    prompts = [prompt_tokens(tokenizer, example.prompt) for example in examples]
    sampled = generator.generate(prompts, group_size=group_size, temperature=temperature, seeds=seeds)
    require_complete(sampled, prompts=len(prompts), group_size=group_size)
    return list(zip(prompts, sampled, strict=True))


def require_complete(sampled: Completions, *, prompts: int, group_size: int) -> None:
    """Raise GeneratorError unless every prompt has group_size completions of at least one token."""
    lengths = [sum(bool(done.tokens) for done in completions) for completions in sampled]
    if lengths != [group_size] * prompts:
        raise GeneratorError(
            f"expected {prompts} groups of {group_size} completions, got {len(lengths)} groups of {lengths[:8]}"
        )


def score_groups(
    sampled: Sequence[Sampled],
    tokenizer: PreTrainedTokenizerBase,
    examples: Sequence[Example],
    *,
    scorer: Scorer,
    all_moves: bool = False,
) -> list[Group]:
    """Score every completion, equal ones of a prompt only once. Raises ScorerError.

    With `all_moves` the groups also have the values of all legal moves, where their first completion names one.
    """
    written = {done.tokens: done for _, completions in sampled for done in completions}
    texts = {tokens: completion_text(tokenizer, done) for tokens, done in written.items()}
    requests_PG = [
        [ScoreRequest(example.prompt, texts[done.tokens], example.completion, done.finished) for done in completions]
        for example, (_, completions) in zip(examples, sampled, strict=True)
    ]
    distinct = list(dict.fromkeys(request for requests in requests_PG for request in requests))
    scores = dict(zip(distinct, scorer.score_all(distinct), strict=True))
    groups = []
    for example, (prompt, completions), requests in zip(examples, sampled, requests_PG, strict=True):
        pairs = zip(completions, requests, strict=True)
        samples = (Sample(done, request.completion, scores[request]) for done, request in pairs)
        analysis = scores[requests[0]].analysis if all_moves else None
        choices = (scorer.move_choice(example.prompt, each.completion, analysis) for each in requests if analysis)
        groups.append(Group(example, prompt, tuple(samples), next((choice for choice in choices if choice), None)))
    return groups


def make_batch(groups: Sequence[Group], *, pad_id: int, device: torch.device) -> Batch:
    """Return the batch of all groups, with rows in the groups' order and advantages 0."""
    done = [sample.completion for group in groups for sample in group.samples]
    prompts = [(p, group.prompt_tokens) for p, group in enumerate(groups) for _ in group.samples]
    rows = [(prompt, completion.tokens) for (_, prompt), completion in zip(prompts, done, strict=True)]
    batch = collate(rows, pad_id=pad_id, device=device)
    batch = replace(batch, prompts_B=torch.tensor([p for p, _ in prompts], device=device))
    logprobs_N = torch.tensor([logprob for completion in done for logprob in completion.logprobs], device=device)
    sampler_logprobs_BT = torch.zeros(batch.tokens_BT.shape, device=device)
    return Batch(
        **batch.tensors(),
        sampler_logprobs_BT=sampler_logprobs_BT.masked_scatter(batch.loss_mask_BT, logprobs_N),
        advantages_B=torch.zeros(len(rows), device=device),
    )

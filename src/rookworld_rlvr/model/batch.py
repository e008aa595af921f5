"""Batches of prompts and completions as tensors, and their division into micro-batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

# Default maximum number of pads in the shortest of the rows that are computed together.
MOST_PADDING = 12


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """B rows of tokens, each a prompt followed by trained tokens, padded on the right.

    The last dimensions of a field's name are those of its tensor: `_BT` has a value per token, `_B` one per row.
    """

    tokens_BT: Tensor
    """Token ids, int64."""
    attention_BT: Tensor
    """1 for a real token, 0 for a pad."""
    positions_BT: Tensor
    """Position of each real token in its row."""
    loss_mask_BT: Tensor
    """True at t if the token at t + 1 is trained, because the state at t predicts it. The last column is False."""
    prompts_B: Tensor
    """Index of each row's prompt, int64. The rows of a group have the same index."""

    def select(self, rows: Tensor, width: int | None = None) -> Self:
        """Return the given rows (indices or a boolean mask), truncated to `width` columns."""
        columns = slice(width)
        return replace(
            self,
            **{
                name: value[rows, columns] if name.endswith("_BT") else value[rows]
                for name, value in self.tensors().items()
            },
        )

    def to(self, device: torch.device) -> Self:
        """Return a copy of the batch on another device."""
        return replace(self, **{name: value.to(device) for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return the batch's tensors by field name, without those that are None."""
        held = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        return {name: value for name, value in held.items() if value is not None}

    def trained_tokens(self) -> int:
        return int(self.loss_mask_BT.sum())

    def targets_BT(self) -> Tensor:
        """Return the token at t + 1 for each t; the last column, which has none, holds the row's first token."""
        return self.tokens_BT.roll(-1, dims=1)


@dataclass(frozen=True, slots=True)
class Batch(TokenBatch):
    """B = P·G rows, each a prompt followed by a sampled completion."""

    sampler_logprobs_BT: Tensor
    """Log-prob of the token at t + 1 under the sampler; nat, float32; 0 if that token is not trained."""
    advantages_B: Tensor
    """Advantage of each row, float32."""
    old_logprobs_BT: Tensor | None = None
    """Log-prob of the token at t + 1 before the step's first update, nat. If None, the loss uses the policy's current
    log-probs, detached, which are the same in the first update."""


BatchT = TypeVar("BatchT", bound=TokenBatch)


def joined(first: TokenBatch, second: TokenBatch) -> TokenBatch:
    """Return the rows of both batches, those of the second with the same prompt index sharing the prompt."""
    width = max(first.tokens_BT.shape[1], second.tokens_BT.shape[1])
    parts = [[getattr(batch, spec.name) for spec in fields(TokenBatch)] for batch in (first, second)]
    wide = [
        [F.pad(value, (0, width - value.shape[1])) if value.dim() > 1 else value for value in part] for part in parts
    ]
    return TokenBatch(*(torch.cat(values) for values in zip(*wide, strict=True)))


def collate(rows: Sequence[tuple[Sequence[int], Sequence[int]]], *, pad_id: int, device: torch.device) -> TokenBatch:
    """Return a batch of rows of prompt and completion tokens, at least one of each in a row; there may be no row.

    Every token of a completion is trained. Each row has a prompt index of its own.
    """
    tokens_BT, attention_BT = padded([(*prompt, *done) for prompt, done in rows], pad_id, device, "right")
    loss_mask_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
    for i, (prompt, done) in enumerate(rows):
        loss_mask_BT[i, len(prompt) - 1 : len(prompt) + len(done) - 1] = True
    prompts_B = torch.arange(len(rows), device=device)
    return TokenBatch(tokens_BT, attention_BT, position_ids(attention_BT), loss_mask_BT, prompts_B)


def micro_batch_indices(batch: TokenBatch, size: int, *, by_prompt: bool) -> list[Tensor]:
    """Return the indices of the batch's rows, divided into micro-batches of at most `size` rows.

    With `by_prompt` the rows of a prompt are adjacent, so that a micro-batch computes the prompt once. A group divided
    between micro-batches has its prompt in each. Without `by_prompt` a micro-batch has rows of similar length,
    shortest first.
    """
    device = batch.tokens_BT.device
    if by_prompt:
        return [rows for rows in batch.prompts_B.argsort(stable=True).split(size) if len(rows)]
    pieces = similar_lengths(batch.attention_BT.sum(1).tolist(), size)
    return [torch.tensor(piece, device=device) for piece in pieces]


def micro_batches(batch: BatchT, size: int, *, by_prompt: bool) -> Iterator[BatchT]:
    """Yield the micro-batches of `micro_batch_indices`, each truncated to its longest row."""
    for rows in micro_batch_indices(batch, size, by_prompt=by_prompt):
        yield batch.select(rows, int(batch.attention_BT[rows].sum(1).max()))


def similar_lengths(
    lengths: Sequence[int], size: int, most_padding: int | Callable[[int], int] = MOST_PADDING
) -> list[list[int]]:
    """Divide indices into batches of at most `size`, shortest first, with little padding in each.

    `most_padding` is the largest difference of two lengths in a batch, or gives it for the shortest length.

    The rows of the two tasks differ in length; in separate batches neither is padded to the length of the other. A
    completion that reached the length limit does not lengthen a whole batch, whose attention memory grows with the
    square of the length.

    >>> similar_lengths([70, 95, 71, 94], 8)
    [[0, 2], [3, 1]]
    """
    batches: list[list[int]] = []
    longest = -1
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or len(batches[-1]) == size or lengths[i] > longest:
            batches.append([])
            longest = lengths[i] + (most_padding(lengths[i]) if callable(most_padding) else most_padding)
        batches[-1].append(i)
    return batches


def padded(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device, side: Literal["left", "right"]
) -> tuple[Tensor, Tensor]:
    """Return tokens and attention mask, (B, T), int64, padded on one side: generation needs left, training right."""
    if not rows:
        empty = torch.zeros(0, 0, dtype=torch.long, device=device)
        return empty, empty.clone()
    tokens = [torch.tensor(row, dtype=torch.long) for row in rows]
    tokens_BT = pad_sequence(tokens, batch_first=True, padding_value=pad_id, padding_side=side)
    attention_BT = pad_sequence([torch.ones_like(row) for row in tokens], batch_first=True, padding_side=side)
    return tokens_BT.to(device), attention_BT.to(device)


def position_ids(attention_BT: Tensor) -> Tensor:
    """Return positions (B, T) that count only real tokens, so that padding shifts none.

    transformers' GPT-2 counts pads too unless positions are passed: one left pad changes log-probs by up to 3.5 nat.
    The position of a pad has no meaning.
    """
    return (attention_BT.cumsum(-1) - 1).clamp(min=0)

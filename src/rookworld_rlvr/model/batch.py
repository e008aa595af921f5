"""Rows of prompts and completions as tensors, and how they are divided for a pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

# Pads beside the shortest row of a batch.
MOST_PADDING = 12


@dataclass(frozen=True, slots=True)
class Batch:
    """B = P·G rows of prompt and completion, padded behind."""

    tokens_BT: Tensor
    """Token ids, int64."""
    attention_BT: Tensor
    """1 where a token is real."""
    positions_BT: Tensor
    """Position of each real token in its row."""
    loss_mask_BT: Tensor
    """True at t where the token at t + 1 is trained: the state at t predicts it. Last column False."""
    sampler_logprobs_BT: Tensor
    """The sampler's log-prob of the token at t + 1, nat, float32; 0 where not trained."""
    advantages_B: Tensor
    """float32."""
    prompts_B: Tensor
    """Index of each row's prompt, int64; the rows of a group share one."""
    old_logprobs_BT: Tensor | None = None
    """The log-prob of the token at t + 1 before the step's first update, nat; None where the policy that is
    differentiated is still the one that sampled."""

    def select(self, rows: Tensor, width: int | None = None) -> "Batch":
        """Some of the rows (indices or a boolean mask), truncated to `width` columns."""
        columns = slice(width)
        old_logprobs_BT = self.old_logprobs_BT
        return type(self)(
            self.tokens_BT[rows, columns],
            self.attention_BT[rows, columns],
            self.positions_BT[rows, columns],
            self.loss_mask_BT[rows, columns],
            self.sampler_logprobs_BT[rows, columns],
            self.advantages_B[rows],
            self.prompts_B[rows],
            None if old_logprobs_BT is None else old_logprobs_BT[rows, columns],
        )

    def to(self, device: torch.device) -> "Batch":
        """A copy of the batch on another device."""
        held = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        return replace(self, **{name: value.to(device) for name, value in held.items() if value is not None})

    def trained_tokens(self) -> int:
        return int(self.loss_mask_BT.sum())

    def targets_BT(self) -> Tensor:
        """The token at t + 1, the row's first where there is none."""
        return self.tokens_BT.roll(-1, dims=1)


def collate(rows: Sequence[tuple[Sequence[int], Sequence[int]]], *, pad_id: int, device: torch.device) -> Batch:
    """The batch of rows of prompt and completion tokens, at least one each; every token of a completion is trained.

    Each row has a prompt of its own; advantages and the sampler's log-probs are 0.
    """
    tokens_BT, attention_BT = right_padded([(*prompt, *done) for prompt, done in rows], pad_id, device)
    loss_mask_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
    for i, (prompt, done) in enumerate(rows):
        loss_mask_BT[i, len(prompt) - 1 : len(prompt) + len(done) - 1] = True
    return Batch(
        tokens_BT,
        attention_BT,
        position_ids(attention_BT),
        loss_mask_BT,
        torch.zeros(tokens_BT.shape, device=device),
        torch.zeros(len(rows), device=device),
        torch.arange(len(rows), device=device),
    )


def micro_batch_indices(batch: Batch, size: int, *, by_prompt: bool) -> list[Tensor]:
    """Indices of the batch's rows in pieces of at most `size`.

    A piece has rows of similar length, shortest first, or the rows of each prompt side by side, which then share the
    prompt. If `size` is no multiple of a group's rows, each piece of a divided group holds its prompt.
    """
    device = batch.tokens_BT.device
    if by_prompt:
        return [rows for rows in batch.prompts_B.argsort(stable=True).split(size) if len(rows)]
    pieces = similar_lengths(batch.attention_BT.sum(1).tolist(), size)
    return [torch.tensor(piece, device=device) for piece in pieces]


def micro_batches(batch: Batch, size: int, *, by_prompt: bool) -> Iterator[Batch]:
    """The batch in the pieces of `micro_batch_indices`, each truncated to its longest row."""
    for rows in micro_batch_indices(batch, size, by_prompt=by_prompt):
        yield batch.select(rows, int(batch.attention_BT[rows].sum(1).max()))


def similar_lengths(lengths: Sequence[int], size: int, most_padding: int = MOST_PADDING) -> list[list[int]]:
    """Indices divided into batches of at most `size`, shortest first, with little padding in each.

    The two tasks' rows differ in length: apart, neither waits for the other. And a completion that ran to the
    length limit does not make a whole batch as long: attention's memory grows with the square of it.

    >>> similar_lengths([70, 95, 71, 94], 8)
    [[0, 2], [3, 1]]
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batches and len(batches[-1]) < size and lengths[i] - lengths[batches[-1][0]] <= most_padding:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def left_padded(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and attention mask (B, T), int64, padded in front: what generation needs."""
    longest = max(map(len, rows))
    tokens = [[pad_id] * (longest - len(row)) + list(row) for row in rows]
    attention = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(tokens, device=device), torch.tensor(attention, device=device)


def right_padded(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and attention mask (B, T), int64, padded behind: what training uses."""
    longest = max(map(len, rows))
    tokens = [list(row) + [pad_id] * (longest - len(row)) for row in rows]
    attention = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    return torch.tensor(tokens, device=device), torch.tensor(attention, device=device)


def position_ids(attention_BT: Tensor) -> Tensor:
    """Positions (B, T) that count real tokens alone, so that padding shifts none.

    transformers' GPT-2 numbers from the pads unless these are passed: one left pad moves log-probs by
    up to 3.5 nat. Under a pad the position is 0 and means nothing.
    """
    return (attention_BT.cumsum(-1) - 1).clamp(min=0)

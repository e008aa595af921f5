"""Rows of different length as one tensor, and the positions that padding must not shift."""

from collections.abc import Sequence

import torch
from torch import Tensor

# Pads beside the shortest row of a batch.
MOST_PADDING = 12


def similar_lengths(lengths: Sequence[int], size: int, most_padding: int = MOST_PADDING) -> list[list[int]]:
    """Indices cut into batches of at most `size`, shortest first, with little padding in each.

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

"""Rows of different length as one tensor, and the positions that padding must not shift."""

from collections.abc import Sequence

import torch
from torch import Tensor


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

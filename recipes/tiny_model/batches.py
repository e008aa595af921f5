"""Batches of training examples as tensors, padded to the longest example."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .environment_examples import EnvironmentExample
from .policy_examples import SQUARES, Array, BoardExample, PolicyExample


@dataclass(slots=True)
class BoardBatch:
    """Targets of the heads on the boards; boards are padded to M tokens, the length of the longest."""

    repeated_BM: Tensor
    """True for the tokens of repeated pieces, which have seen the whole board."""
    own_BM: Tensor
    """True for the tokens of repeated own pieces."""
    moves_BMS: Tensor
    legal_BMS: Tensor
    attacks_BMS: Tensor
    move_values_BMS: Tensor

    def to(self, device: torch.device) -> "BoardBatch":
        """Return a copy with all tensors on another device."""
        return BoardBatch(**_moved(self, device))


@dataclass(slots=True)
class PolicyBatch:
    """A batch of `P:` examples, with the N token positions that have targets."""

    tokens_BT: Tensor
    board: BoardBatch
    hard_at: tuple[Tensor, Tensor]
    hard_ids_N: Tensor
    hard_weights_N: Tensor
    soft_at: tuple[Tensor, Tensor]
    soft_first_N: Tensor
    soft_NS: Tensor
    win_at_B: Tensor
    wins_B: Tensor

    def to(self, device: torch.device) -> "PolicyBatch":
        """Return a copy with all tensors on another device."""
        return PolicyBatch(**_moved(self, device))


@dataclass(slots=True)
class EnvironmentBatch:
    """A batch of `A:` examples, whose completions have N tokens together."""

    tokens_BT: Tensor
    completion_at: tuple[Tensor, Tensor]
    """Row and position of each token of a completion, (N,) each."""
    copied_N: Tensor
    """True for a piece that has not moved."""
    last_B: Tensor
    """Position of each prompt's last token."""
    outcomes_B: Tensor
    origins_B: Tensor
    """Position of the square that the move starts from."""
    targets_BS: Tensor

    def to(self, device: torch.device) -> "EnvironmentBatch":
        """Return a copy with all tensors on another device."""
        return EnvironmentBatch(**_moved(self, device))


def _moved(batch: Any, device: torch.device) -> dict[str, Any]:
    moved: dict[str, Any] = {}
    for spec in fields(batch):
        value = getattr(batch, spec.name)
        pair = isinstance(value, tuple)
        moved[spec.name] = tuple(part.to(device) for part in value) if pair else value.to(device)
    return moved


def pad_tokens(rows: Sequence[list[int]], pad: int) -> Tensor:
    """Return lists of tokens as (B, T), padded on the right to the longest."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=pad)


def collate_boards(examples: Sequence[BoardExample]) -> BoardBatch:
    """Return the targets of the heads on the boards, padded to the longest list of tokens."""
    longest = max(len(example.squares) for example in examples)
    starts = torch.tensor([[example.repeated_at, example.own_at, len(example.squares)] for example in examples])
    (repeated, own, ends), places = starts.T.unsqueeze(2), torch.arange(longest)
    return BoardBatch(
        (places >= repeated) & (places < ends),
        (places >= own) & (places < ends),
        _padded([example.moves for example in examples], longest),
        _padded([example.legal for example in examples], longest),
        _padded([example.attacks for example in examples], longest),
        _padded([example.move_values for example in examples], longest),
    )


def collate(examples: Sequence[PolicyExample], pad: int) -> PolicyBatch:
    """Return the batch of `P:` examples, padded to the longest, with all their targets."""
    tokens = pad_tokens([example.tokens for example in examples], pad)
    hard = [(i, at, weight) for i, example in enumerate(examples) for at, weight in example.hard]
    soft = [(i, at, first, shares) for i, example in enumerate(examples) for at, first, shares in example.soft]
    hard_rows, hard_places = torch.tensor([h[0] for h in hard]), torch.tensor([h[1] for h in hard])
    soft_rows, soft_places = torch.tensor([s[0] for s in soft]), torch.tensor([s[1] for s in soft])
    return PolicyBatch(
        tokens,
        collate_boards([example.board for example in examples]),
        (hard_rows, hard_places - 1),
        tokens[hard_rows, hard_places],
        torch.tensor([h[2] for h in hard]),
        (soft_rows, soft_places - 1),
        torch.tensor([s[2] for s in soft]),
        torch.tensor(np.stack([s[3] for s in soft]), dtype=torch.float32),
        torch.tensor([example.win_at for example in examples]),
        torch.tensor([example.win_probability for example in examples]),
    )


def collate_environment(examples: Sequence[EnvironmentExample], pad: int) -> EnvironmentBatch:
    """Return the batch of `A:` examples, padded to the longest."""
    at = [(i, place) for i, row in enumerate(examples) for place in range(row.prompt_length, len(row.tokens))]
    rows_N, places_N = torch.tensor(at).T
    return EnvironmentBatch(
        pad_tokens([example.tokens for example in examples], pad),
        (rows_N, places_N),
        torch.tensor([same for example in examples for same in example.copied]),
        torch.tensor([example.prompt_length - 1 for example in examples]),
        torch.tensor([example.outcome for example in examples]),
        torch.tensor([example.origin_at for example in examples]),
        torch.from_numpy(np.stack([example.targets for example in examples])),
    )


def _padded(boards: Sequence[Array], longest: int) -> Tensor:
    """Return the boards as (B, longest, 64), with zeros after a board's last token."""
    padded = np.zeros((len(boards), longest, SQUARES), np.float32)
    for number, board in enumerate(boards):
        padded[number, : len(board)] = board
    return torch.from_numpy(padded)

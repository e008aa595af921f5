"""A batch as one row of tokens without a pad: each prompt once, then the completions that share it.

A group of G completions of C tokens after a prompt of L tokens takes G·(L + C) tokens in rows and L + G·C here, less
one for each completion, because its last token predicts nothing. Linear layers see only real tokens. Attention takes
one length class of similar completions at a time and pads them to the longest.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import Batch
from .packed_layout import LengthClass, PackedLayout, Padded
from .padding import similar_lengths

# Lengths of a class differ by no more than this: fewer classes cost more pads, more classes more calls.
LENGTH_SPREAD = 24
# Largest share of the row that may be filler. The row is filled up to a multiple of a power of two, because a size that
# occurs again can reuse memory of its size and kernels made for it.
FILLER = 0.05


@dataclass(frozen=True, slots=True)
class Packed:
    """N tokens in all, and the M states that predict the trained ones."""

    tokens_1N: Tensor
    """With filler at the end, which attends to nothing and predicts nothing."""
    positions_1N: Tensor
    layout: PackedLayout
    states_M: Tensor
    """Where the state of each trained token lies, in the order of the batch's loss mask."""


def pack(batch: Batch) -> Packed:
    """The batch's rows, padded behind, as one. Rows of one `prompts_B` share their prompt.

    Raises ValueError for a row without a trained token, which does not tell where its prompt ends.
    """
    if not batch.loss_mask_BT.any(1).all():
        raise ValueError("expected a trained token in every row of a batch that is packed")
    device = batch.tokens_BT.device
    _, prompts_B = batch.prompts_B.unique(return_inverse=True)
    prompt_lengths_B = batch.loss_mask_BT.int().argmax(1) + 1
    lengths_B = batch.loss_mask_BT.sum(1) - 1
    count = int(prompts_B.max()) + 1
    first_P = torch.full((count,), len(prompts_B), device=device).scatter_reduce_(
        0, prompts_B, torch.arange(len(prompts_B), device=device), "amin"
    )
    prompt_lengths_P = prompt_lengths_B[first_P]
    starts_P = prompt_lengths_P.cumsum(0) - prompt_lengths_P
    starts_B = prompt_lengths_P.sum() + lengths_B.cumsum(0) - lengths_B

    at_T = torch.arange(batch.tokens_BT.shape[1], device=device)
    of_prompt_BT = at_T < prompt_lengths_B[:, None]
    prompt_at_BT = starts_P[prompts_B][:, None] + at_T
    own_at_BT = (starts_B - prompt_lengths_B)[:, None] + at_T
    input_BT = batch.loss_mask_BT & ~of_prompt_BT
    first_prompt_PT = of_prompt_BT[first_P]

    def flat(values_BT: Tensor) -> Tensor:
        flat_N = torch.cat([values_BT[first_P][first_prompt_PT], values_BT[input_BT]])
        return F.pad(flat_N, (0, _filler(len(flat_N)))).unsqueeze(0)

    return Packed(
        tokens_1N=flat(batch.tokens_BT),
        positions_1N=flat(batch.positions_BT),
        layout=PackedLayout(_padded(starts_P, prompt_lengths_P), _length_classes(prompts_B, starts_B, lengths_B)),
        states_M=torch.where(of_prompt_BT, prompt_at_BT, own_at_BT)[batch.loss_mask_BT],
    )


def _filler(tokens: int) -> int:
    """Tokens that are missing to a multiple of the largest power of two that is within `FILLER`."""
    stride = 1 << max(0, int(tokens * FILLER).bit_length() - 1)
    return -tokens % stride


def _padded(starts: Tensor, lengths: Tensor) -> Padded:
    """Rows that begin at `starts` (any shape) and are `lengths` long."""
    at = torch.arange(int(lengths.max()), device=starts.device)
    real = at < lengths.unsqueeze(-1)
    return Padded(torch.where(real, starts.unsqueeze(-1) + at, 0), real)


def _length_classes(prompts_B: Tensor, starts_B: Tensor, lengths_B: Tensor) -> list[LengthClass]:
    lengths, prompts = lengths_B.tolist(), prompts_B.tolist()
    classes = []
    for rows in similar_lengths(lengths, len(lengths), LENGTH_SPREAD):
        rows_of: dict[int, list[int]] = {}
        for row in rows:
            # A completion of one token has nothing to attend from.
            if lengths[row]:
                rows_of.setdefault(prompts[row], []).append(row)
        if rows_of:
            classes.append(_length_class(rows_of, starts_B, lengths_B))
    return classes


def _length_class(rows_of: dict[int, list[int]], starts_B: Tensor, lengths_B: Tensor) -> LengthClass:
    size = max(map(len, rows_of.values()))
    rows_PG = torch.tensor([rows + [-1] * (size - len(rows)) for rows in rows_of.values()], device=starts_B.device)
    completions_PGC = _padded(starts_B[rows_PG], torch.where(rows_PG >= 0, lengths_B[rows_PG], 0))
    return LengthClass(torch.tensor(list(rows_of), device=starts_B.device), completions_PGC)

"""A batch as one row of tokens without a pad: each prompt once, then the completions that share it.

A group of G completions of C tokens after a prompt of L is G·(L + C) tokens in rows and L + G·C here, less one
each: from a completion's last token nothing is predicted. Linear layers see real tokens alone. Attention pads
completions to the longest of similar ones, a length class at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import Batch
from .padding import similar_lengths
from .shared_prefix import attend_prompts, attend_shared, bias_of, causal_bias

# Lengths of a class differ by no more than this: fewer classes cost more pads, more classes more calls.
LENGTH_SPREAD = 24


@dataclass(frozen=True, slots=True)
class _Padded:
    """Rows cut out of the flat tokens and padded to one length."""

    at: Tensor
    """Where each token lies in the flat row, int64; 0 under a pad."""
    real: Tensor
    """Whether there is one, bool, same shape."""

    def cut(self, flat_NKD: Tensor) -> Tensor:
        """(N, K, D) → (…, K, D). An embedding: of all gathers, its backward is the fast one."""
        rows: Tensor = F.embedding(self.at, flat_NKD.flatten(1))
        return rows.view(*self.at.shape, *flat_NKD.shape[1:])


@dataclass(frozen=True, slots=True)
class _LengthClass:
    """Completions of similar length: at most G of each of P prompts."""

    prompts_P: Tensor
    """Which prompts, indices."""
    completions_PGC: _Padded
    bias_CC: Tensor
    """Causal."""


class PackedLayout:
    """See `shared_prefix.Layout`."""

    def __init__(self, prompts_PL: _Padded, classes: Sequence[_LengthClass]) -> None:
        self._prompts_PL, self._classes = prompts_PL, classes
        self._seen = bias_of(prompts_PL.real)[:, None, None, None, None, :]
        padded = [prompts_PL, *(found.completions_PGC for found in classes)]
        order = torch.cat([rows.at[rows.real] for rows in padded])
        places = torch.cat([rows.real.flatten() for rows in padded]).nonzero().squeeze(1)
        self._places_N = torch.empty_like(places).scatter_(0, order, places)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """(1, H, N, D) → (1, N, H, D)."""
        query_NHD, key_NKD, value_NKD = (states[0].transpose(0, 1) for states in (query, key, value))
        prompts = self._prompts_PL
        prompt_query, keys, values = (prompts.cut(s).transpose(1, 2) for s in (query_NHD, key_NKD, value_NKD))
        parts = [attend_prompts(prompt_query, keys, values, scaling)]
        for found in self._classes:
            rows, chosen = found.completions_PGC, found.prompts_P
            own_keys, own_values = (rows.cut(states).permute(0, 3, 1, 2, 4) for states in (key_NKD, value_NKD))
            prefix = (keys[chosen], values[chosen], self._seen[chosen])
            own_query = rows.cut(query_NHD).transpose(2, 3)
            parts.append(attend_shared(own_query, prefix, (own_keys, own_values, found.bias_CC), scaling))
        heads, width = query.shape[1], query.shape[3]
        out_NE = F.embedding(self._places_N, torch.cat([part.reshape(-1, heads * width) for part in parts]))
        return out_NE.view(1, -1, heads, width)


@dataclass(frozen=True, slots=True)
class Packed:
    """N tokens in all, and the M states that predict the trained ones."""

    tokens_1N: Tensor
    positions_1N: Tensor
    layout: PackedLayout
    states_M: Tensor
    """Where the state of each trained token lies, in the order of the batch's loss mask."""


def pack(batch: Batch) -> Packed:
    """The batch's rows, padded behind, as one. Rows of one `prompts_B` share their prompt."""
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
        return torch.cat([values_BT[first_P][first_prompt_PT], values_BT[input_BT]]).unsqueeze(0)

    return Packed(
        tokens_1N=flat(batch.tokens_BT),
        positions_1N=flat(batch.positions_BT),
        layout=PackedLayout(_padded(starts_P, prompt_lengths_P), _length_classes(prompts_B, starts_B, lengths_B)),
        states_M=torch.where(of_prompt_BT, prompt_at_BT, own_at_BT)[batch.loss_mask_BT],
    )


def _padded(starts: Tensor, lengths: Tensor) -> _Padded:
    """Rows that begin at `starts` (any shape) and are `lengths` long."""
    at = torch.arange(int(lengths.max()), device=starts.device)
    real = at < lengths.unsqueeze(-1)
    return _Padded(torch.where(real, starts.unsqueeze(-1) + at, 0), real)


def _length_classes(prompts_B: Tensor, starts_B: Tensor, lengths_B: Tensor) -> list[_LengthClass]:
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


def _length_class(rows_of: dict[int, list[int]], starts_B: Tensor, lengths_B: Tensor) -> _LengthClass:
    size = max(map(len, rows_of.values()))
    rows_PG = torch.tensor([rows + [-1] * (size - len(rows)) for rows in rows_of.values()], device=starts_B.device)
    completions_PGC = _padded(starts_B[rows_PG], torch.where(rows_PG >= 0, lengths_B[rows_PG], 0))
    length = completions_PGC.at.shape[-1]
    return _LengthClass(
        torch.tensor(list(rows_of), device=starts_B.device), completions_PGC, causal_bias(length, starts_B.device)
    )

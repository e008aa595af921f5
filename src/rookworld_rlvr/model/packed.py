"""A batch as one row of tokens without padding: first each prompt once, then all completions.

A group of G completions of C tokens after a prompt of L tokens takes G·(L + C) tokens in rows and L + G·C here, less
one for each completion, because its last token predicts nothing. Linear layers see only real tokens and little filler.
Attention computes the completions of one length class at a time and pads them to the longest of the class.

Example: prompt `a b c` with completions `x y z` and `u v`, prompt `d e` with completion `w q`. The row is

    a b c  d e  x y  u  w

and z, v, q are targets only. The states that predict x, y, z are those of c, x and y; u is also predicted by that of c.

In attention, heads that share keys are adjacent, which gives the vectors the layout that the matrix products need.
Dimensions: P prompts, K key heads, G completions, R query heads that share one key head, T tokens, D width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import TokenBatch, similar_lengths
from .block_attention import Block, attend
from .shared_prefix import attention_bias, causal_bias

# Maximum difference of lengths within a class: fewer classes need more pads, more classes need more calls. Pads at most
# triple a length above 1, so that moves of 4 tokens are not padded to the 16 of an answer.
LENGTH_SPREAD, LEAST_SPREAD = 24, 4
# Maximum share of filler in the row. The row is filled up to a multiple of a power of two, so that sizes recur and can
# reuse memory and kernels of the same size.
FILLER = 0.05


@dataclass(frozen=True, slots=True)
class Padded:
    """Rows cut from the flat tokens and padded to one length."""

    at: Tensor
    """Index of each token in the flat row, int64; 0 for a pad."""
    real: Tensor
    """True for a token, False for a pad; bool, same shape."""


@dataclass(frozen=True, slots=True)
class LengthClass:
    """Completions of similar length: at most G of each of P prompts."""

    prompts_P: Tensor
    """Indices of the prompts."""
    completions_PGC: Padded


@dataclass(frozen=True, slots=True)
class _Places:
    """Index maps from the vectors of N flat tokens to places that are cut, padded and sorted by head, and back."""

    shapes: list[tuple[int, ...]]
    """Shape of each part, without the vectors' width."""
    source_index: Tensor
    """Index of the flat vector for each place; arbitrary for a pad."""
    place_index: Tensor
    """Index of the place of each flat vector."""
    pads: Tensor
    """True for places that are pads, bool (places, 1)."""

    @classmethod
    def of(cls, parts: Sequence[Padded], heads: tuple[int, ...]) -> "_Places":
        """Return the maps of parts (P, …, T) to (P, K, …, R, T), where `heads` is (K, R), sorted by key head."""
        key_heads, repeats = heads
        head_KR = torch.arange(key_heads * repeats, device=parts[0].at.device).view(key_heads, repeats)
        sources, real, shapes = [], [], []
        for part in parts:
            middle = part.at.dim() - 2
            head = head_KR.view(key_heads, *[1] * middle, repeats, 1)
            at = part.at.unsqueeze(1).unsqueeze(-2) * head_KR.numel() + head
            sources.append(at.flatten())
            real.append(part.real.unsqueeze(1).unsqueeze(-2).expand(at.shape).flatten())
            shapes.append(tuple(at.shape))
        source_index, all_real = torch.cat(sources), torch.cat(real)
        places = all_real.nonzero().squeeze(1)
        place_index = torch.empty_like(places).scatter_(0, source_index[places], places)
        return cls(shapes, source_index, place_index, ~all_real.unsqueeze(1))

    def split(self, flat_NHD: Tensor) -> list[Tensor]:
        """Return one tensor per part, (P, K, …, R, T, D)."""
        move: Any = _Move.apply
        moved = move(flat_NHD.flatten(0, 1), self.source_index, self.place_index, None)
        pieces = moved.split([math.prod(shape) for shape in self.shapes])
        return [piece.view(*shape, -1) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Reverse `split`: return the flat vectors (N·H, D)."""
        move: Any = _Move.apply
        joined: Tensor = move(
            torch.cat([part.flatten(0, -2) for part in parts]), self.place_index, self.source_index, self.pads
        )
        return joined


class _Move(torch.autograd.Function):
    """Move of rows to other places. Each place except pads has its own row, so gradients move back the same way."""

    @staticmethod
    def forward(context: Any, rows: Tensor, index: Tensor, reverse_index: Tensor, pads: Tensor | None) -> Tensor:
        context.reverse_index, context.pads = reverse_index, pads
        return rows.index_select(0, index)

    @staticmethod
    def backward(context: Any, of_rows: Tensor) -> tuple[Tensor, None, None, None]:
        moved = of_rows.index_select(0, context.reverse_index)
        return moved if context.pads is None else moved.masked_fill_(context.pads, 0.0), None, None, None


class PackedLayout:
    """Layout of packed rows, see `shared_prefix.Layout`."""

    def __init__(self, prompts_PL: Padded, classes: Sequence[LengthClass]) -> None:
        self._parts = [prompts_PL, *(length_class.completions_PGC for length_class in classes)]
        self._prompts = [length_class.prompts_P for length_class in classes]
        self._tokens = sum(int(part.real.sum()) for part in self._parts)
        self._seen = attention_bias(prompts_PL.real)[:, None]
        self._causal = [causal_bias(part.at.shape[-1], part.at.device)[None] for part in self._parts]
        # By (K, R), the number of key heads and of query heads per key head. All layers use the same maps.
        self._places: dict[tuple[int, int], _Places] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Return the output (1, N, H, D) for the query (1, H, N, D), see `shared_prefix.Layout`."""
        heads, key_heads = query.shape[1], key.shape[1]
        of_queries, of_keys = self._places_of(key_heads, heads // key_heads), self._places_of(key_heads, 1)
        wide = torch.promote_types(query.dtype, torch.float32)
        query_NHD, key_NKD, value_NKD = (
            states[0].transpose(0, 1)[: self._tokens].to(wide) for states in (query, key, value)
        )
        queries = of_queries.split(query_NHD)
        keys, values = ([part.squeeze(-3) for part in of_keys.split(states)] for states in (key_NKD, value_NKD))
        own = [Block(*block) for block in zip(keys, values, self._causal, strict=True)]
        out = [attend(queries[0], own[:1], scaling)]
        for chosen, completions, block in zip(self._prompts, queries[1:], own[1:], strict=True):
            prefix = Block(keys[0][chosen], values[0][chosen], self._seen[chosen])
            out.append(attend(completions, [prefix, block], scaling))
        out_NHD = of_queries.join(out).view(-1, heads, query.shape[3]).to(query.dtype)
        return F.pad(out_NHD, (0, 0, 0, 0, 0, query.shape[2] - self._tokens)).unsqueeze(0)

    def _places_of(self, key_heads: int, repeats: int) -> _Places:
        if (key_heads, repeats) not in self._places:
            self._places[key_heads, repeats] = _Places.of(self._parts, (key_heads, repeats))
        return self._places[key_heads, repeats]


@dataclass(frozen=True, slots=True)
class Packed:
    """Packed row of N tokens, and the M states that predict the trained tokens."""

    tokens_1N: Tensor
    """Token ids, with filler at the end, which attends to nothing and predicts nothing."""
    positions_1N: Tensor
    layout: PackedLayout
    states_M: Tensor
    """Index of the state that predicts each trained token, in the order of the batch's loss mask."""


def pack(batch: TokenBatch) -> Packed:
    """Pack the right-padded rows of a batch into one row. Rows with the same `prompts_B` share their prompt.

    Raises ValueError for a row without a trained token, because nothing then shows where its prompt ends.
    """
    if not batch.loss_mask_BT.any(1).all():
        raise ValueError("expected a trained token in every row of a batch that is packed")
    device = batch.tokens_BT.device
    # Numbers of the prompts, and lengths of each example's prompt and of its completion less the last token.
    _, prompts_B = batch.prompts_B.unique(return_inverse=True)
    prompt_lengths_B = batch.loss_mask_BT.int().argmax(1) + 1
    lengths_B = batch.loss_mask_BT.sum(1) - 1
    # The first example of each prompt, from which the prompt's tokens are taken.
    count = int(prompts_B.max()) + 1
    first_P = torch.full((count,), len(prompts_B), device=device).scatter_reduce_(
        0, prompts_B, torch.arange(len(prompts_B), device=device), "amin"
    )
    # Places in the row at which prompts and completions start.
    prompt_lengths_P = prompt_lengths_B[first_P]
    starts_P = prompt_lengths_P.cumsum(0) - prompt_lengths_P
    starts_B = prompt_lengths_P.sum() + lengths_B.cumsum(0) - lengths_B

    at_T = torch.arange(batch.tokens_BT.shape[1], device=device)
    of_prompt_BT = at_T < prompt_lengths_B[:, None]
    # Place in the row of each token of the batch: the first if it is of the prompt, the second if of the completion.
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
    """Return the number of tokens that complete a multiple of the largest power of two within the share `FILLER`."""
    stride = 1 << max(0, int(tokens * FILLER).bit_length() - 1)
    return -tokens % stride


def _padded(starts: Tensor, lengths: Tensor) -> Padded:
    """Return rows that begin at `starts` (any shape) and are `lengths` long."""
    at = torch.arange(int(lengths.max()), device=starts.device)
    real = at < lengths.unsqueeze(-1)
    return Padded(torch.where(real, starts.unsqueeze(-1) + at, 0), real)


def _length_classes(prompts_B: Tensor, starts_B: Tensor, lengths_B: Tensor) -> list[LengthClass]:
    lengths, prompts = lengths_B.tolist(), prompts_B.tolist()
    classes = []
    for rows in similar_lengths(lengths, len(lengths), _most_padding):
        rows_of: dict[int, list[int]] = {}
        for row in rows:
            # A completion of one token has no input: the prompt's last state predicts it.
            if lengths[row]:
                rows_of.setdefault(prompts[row], []).append(row)
        if rows_of:
            classes.append(_length_class(rows_of, starts_B, lengths_B))
    return classes


def _most_padding(shortest: int) -> int:
    """Return the maximum number of pads in the shortest completion of a class."""
    return min(LENGTH_SPREAD, max(LEAST_SPREAD, 2 * shortest))


def _length_class(rows_of: dict[int, list[int]], starts_B: Tensor, lengths_B: Tensor) -> LengthClass:
    size = max(map(len, rows_of.values()))
    rows_PG = torch.tensor([rows + [-1] * (size - len(rows)) for rows in rows_of.values()], device=starts_B.device)
    completions_PGC = _padded(starts_B[rows_PG], torch.where(rows_PG >= 0, lengths_B[rows_PG], 0))
    return LengthClass(torch.tensor(list(rows_of), device=starts_B.device), completions_PGC)

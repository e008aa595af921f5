"""Attention over a packed row: the row is cut into prompts and length classes of completions, and joined again.

Heads that share keys lie side by side, so that a cut vector has the layout that the matrix products need. Dimensions:
P prompts, K heads of keys, G completions, R heads of queries that share one head of keys, T tokens, D width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .block_attention import Block, attend
from .shared_prefix import bias_of, causal_bias


@dataclass(frozen=True, slots=True)
class Padded:
    """Rows cut out of the flat tokens and padded to one length."""

    at: Tensor
    """Where each token lies in the flat row, int64; 0 under a pad."""
    real: Tensor
    """Whether there is one, bool, same shape."""


@dataclass(frozen=True, slots=True)
class LengthClass:
    """Completions of similar length: at most G of each of P prompts."""

    prompts_P: Tensor
    """Which prompts, indices."""
    completions_PGC: Padded


@dataclass(frozen=True, slots=True)
class _Places:
    """Places of the vectors of N flat tokens after cutting, padding and sorting by head, and the places back."""

    shapes: list[tuple[int, ...]]
    """The shape of each part, without the vectors' width."""
    there: Tensor
    """For each place the flat vector that stands there; any for a pad."""
    back: Tensor
    """For each flat vector its place."""
    pads: Tensor
    """Places that are pads, bool (places, 1)."""

    @classmethod
    def of(cls, parts: Sequence[Padded], heads: tuple[int, ...]) -> "_Places":
        """Parts (P, …, T) as (P, K, …, R, T) where `heads` is (K, R), the heads that share keys side by side."""
        kinds, repeats = heads
        head_KR = torch.arange(kinds * repeats, device=parts[0].at.device).view(kinds, repeats)
        there, real, shapes = [], [], []
        for part in parts:
            middle = part.at.dim() - 2
            at = part.at.unsqueeze(1).unsqueeze(-2) * head_KR.numel() + head_KR.view(kinds, *[1] * middle, repeats, 1)
            there.append(at.flatten())
            real.append(part.real.unsqueeze(1).unsqueeze(-2).expand(at.shape).flatten())
            shapes.append(tuple(at.shape))
        all_there, all_real = torch.cat(there), torch.cat(real)
        places = all_real.nonzero().squeeze(1)
        back = torch.empty_like(places).scatter_(0, all_there[places], places)
        return cls(shapes, all_there, back, ~all_real.unsqueeze(1))

    def cut(self, flat_NHD: Tensor) -> list[Tensor]:
        """A tensor a part, (P, K, …, R, T, D)."""
        move: Any = _Move.apply
        moved = move(flat_NHD.flatten(0, 1), self.there, self.back, None)
        pieces = moved.split([math.prod(shape) for shape in self.shapes])
        return [piece.view(*shape, -1) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The way back: flat (N·H, D)."""
        move: Any = _Move.apply
        joined: Tensor = move(torch.cat([part.flatten(0, -2) for part in parts]), self.back, self.there, self.pads)
        return joined


class _Move(torch.autograd.Function):
    """Moves rows to other places. Only a pad has no row of its own, so the gradient is moved back in the same way."""

    @staticmethod
    def forward(context: Any, rows: Tensor, there: Tensor, back: Tensor, pads: Tensor | None) -> Tensor:
        context.back, context.pads = back, pads
        return rows.index_select(0, there)

    @staticmethod
    def backward(context: Any, of_rows: Tensor) -> tuple[Tensor, None, None, None]:
        moved = of_rows.index_select(0, context.back)
        return moved if context.pads is None else moved.masked_fill_(context.pads, 0.0), None, None, None


class PackedLayout:
    """See `shared_prefix.Layout`."""

    def __init__(self, prompts_PL: Padded, classes: Sequence[LengthClass]) -> None:
        self._parts = [prompts_PL, *(found.completions_PGC for found in classes)]
        self._prompts = [found.prompts_P for found in classes]
        self._tokens = sum(int(part.real.sum()) for part in self._parts)
        self._seen = bias_of(prompts_PL.real)[:, None]
        self._causal = [causal_bias(part.at.shape[-1], part.at.device)[None] for part in self._parts]
        # By (K, R), the heads of keys and how many of queries share one: the same for all layers.
        self._places: dict[tuple[int, int], _Places] = {}

    def attend(self, _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """(1, H, N, D) → (1, N, H, D)."""
        heads, kinds = query.shape[1], key.shape[1]
        of_queries, of_keys = self._places_of(kinds, heads // kinds), self._places_of(kinds, 1)
        wide = torch.promote_types(query.dtype, torch.float32)
        query_NHD, key_NKD, value_NKD = (
            states[0].transpose(0, 1)[: self._tokens].to(wide) for states in (query, key, value)
        )
        queries = of_queries.cut(query_NHD)
        keys, values = ([part.squeeze(-3) for part in of_keys.cut(states)] for states in (key_NKD, value_NKD))
        own = [Block(*block) for block in zip(keys, values, self._causal, strict=True)]
        out = [attend(queries[0], own[:1], scaling)]
        for chosen, completions, block in zip(self._prompts, queries[1:], own[1:], strict=True):
            prefix = Block(keys[0][chosen], values[0][chosen], self._seen[chosen])
            out.append(attend(completions, [prefix, block], scaling))
        out_NHD = of_queries.join(out).view(-1, heads, query.shape[3]).to(query.dtype)
        return F.pad(out_NHD, (0, 0, 0, 0, 0, query.shape[2] - self._tokens)).unsqueeze(0)

    def _places_of(self, kinds: int, repeats: int) -> _Places:
        if (kinds, repeats) not in self._places:
            self._places[kinds, repeats] = _Places.of(self._parts, (kinds, repeats))
        return self._places[kinds, repeats]

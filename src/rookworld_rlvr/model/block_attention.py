"""Attention over keys in several blocks, with one softmax over all of them and a gradient in closed form.

Autograd would keep a tensor as large as the scores for each operation: scaling, bias, concatenation, softmax and its
parts. Here scores are computed in place, and only one such tensor is kept for each block: the weights before the
division by their sum. Let w be these weights, d their sum over all blocks, o the output and g its gradient. The
gradients are then wᵀ·(g/d) for the values and w∘((g/d)·vᵀ - (g/d)·o) for the scores, as in FlashAttention (arXiv
2205.14135), which recomputes w.

Rows are queries; their leading dimensions are flattened. The product of a block's leading dimensions is the number of
equal, consecutive pieces into which the rows are divided. Each piece attends to S keys of its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Scores of a row below its largest one, from which on a weight counts as 0; and a bound just above that weight.
LEAST_SCORE = -60.0
LEAST_WEIGHT = 1.01 * math.exp(LEAST_SCORE)


@dataclass(frozen=True, slots=True)
class Block:
    """Keys and values (…, S, D) and the bias that is added to their scores: 0 if a key is seen, -inf otherwise."""

    keys: Tensor
    values: Tensor
    bias: Tensor
    """(A, 1, S): one bias for each of A equal pieces of the rows. (1, B, S): one for each of B rows, then repeated."""


def attend(query: Tensor, blocks: Sequence[Block], scaling: float) -> Tensor:
    """Return softmax(scaling · query · keysᵀ + bias) · values over all blocks together; query and output are (…, D).

    The computation is in float32, or in float64 for a float64 query, and the output has the query's dtype. A row that
    sees no key of any block becomes NaN.
    """
    with torch.autocast(query.device.type, enabled=False):
        dtype = torch.promote_types(query.dtype, torch.float32)
        stored = [states.to(dtype) for block in blocks for states in (block.keys, block.values)]
        apply: Any = _Attention.apply
        out: Tensor = apply(query.to(dtype), scaling, [block.bias for block in blocks], *stored)
        return out.to(query.dtype)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, query: Tensor, scaling: float, biases: list[Tensor], *stored: Tensor) -> Tensor:
        scaled = (query * scaling).contiguous()
        pieces = _pieces(stored)
        weights = [_scores(scaled, keys, bias) for (keys, _), bias in zip(pieces, biases, strict=True)]
        sums = _exponentiate(weights).view(*scaled.shape[:-1], 1)
        out = torch.zeros_like(scaled)
        for (_, values), weight in zip(pieces, weights, strict=True):
            _rows(out, values).baddbmm_(weight, values)
        out /= sums
        context.save_for_backward(scaled, out, sums, *weights, *stored)
        context.scaling = scaling
        return out

    @staticmethod
    def backward(context: Any, of_out: Tensor) -> tuple[Tensor | None, ...]:
        scaled, out, sums, *kept = context.saved_tensors
        weights, stored = kept[: len(kept) // 3], kept[len(kept) // 3 :]
        of_out = (of_out / sums).contiguous()
        of_sums = -(of_out * out).sum(-1, keepdim=True)
        of_scaled = torch.zeros_like(scaled)
        of_stored: list[Tensor] = []
        for (keys, values), weight in zip(_pieces(stored), weights, strict=True):
            of_rows = _rows(of_out, values)
            of_values = weight.transpose(1, 2) @ of_rows
            of_scores = torch.baddbmm(_rows(of_sums, values), of_rows, values.transpose(1, 2)).mul_(weight)
            _rows(of_scaled, keys).baddbmm_(of_scores, keys)
            of_stored += [of_scores.transpose(1, 2) @ _rows(scaled, keys), of_values]
        shaped = [gradient.view_as(states) for gradient, states in zip(of_stored, stored, strict=True)]
        return of_scaled.mul_(context.scaling), None, None, *shaped


def _pieces(stored: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return keys and values of each block, (N, S, D)."""
    flat = [states.reshape(-1, *states.shape[-2:]) for states in stored]
    return list(zip(flat[::2], flat[1::2], strict=True))


def _rows(states: Tensor, keys_NSD: Tensor) -> Tensor:
    """Return the rows (N, R, …) grouped by the piece of keys that they see."""
    return states.view(len(keys_NSD), -1, states.shape[-1])


def _scores(scaled: Tensor, keys_NSD: Tensor, bias: Tensor) -> Tensor:
    scores_NRS = _rows(scaled, keys_NSD) @ keys_NSD.transpose(1, 2)
    pieces, rows, _ = bias.shape
    like_bias = (-1, rows) if pieces == 1 else (pieces, -1)
    scores_NRS.view(*like_bias, bias.shape[2]).add_(bias)
    return scores_NRS


def _exponentiate(scores: Sequence[Tensor]) -> Tensor:
    """Replace scores, in place, by weights: their exponentials, scaled to at most 1. Return each row's sum, flat.

    Weights below exp(LEAST_SCORE) are 0. They would not change a sum, but a CPU takes 10 to 200 times as long for
    exponentials of -inf or with a denormal result, and for products with such results.
    """
    largest = torch.stack([part.amax(-1).flatten() for part in scores]).amax(0)
    sums = torch.zeros_like(largest)
    for part in scores:
        part.sub_(largest.view(*part.shape[:-1], 1)).clamp_(min=LEAST_SCORE).exp_()
        torch.threshold_(part, LEAST_WEIGHT, 0.0)
        sums += part.sum(-1).flatten()
    return sums

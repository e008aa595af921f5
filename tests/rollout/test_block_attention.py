"""Attention over blocks equals attention over their joined keys, in value and gradient."""

import math

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.model.block_attention import Block, attend

SCALING = 0.3
# Numbers of prompts, key heads, completions, query heads per key head, tokens, width, and keys of a prompt.
P, K, G, R, T, D, L = 2, 2, 3, 2, 4, 5, 6
SHAPES = {
    "query": (P, K, G, R, T, D),
    "prompt_keys": (P, K, L, D),
    "prompt_values": (P, K, L, D),
    "own_keys": (P, K, G, T, D),
    "own_values": (P, K, G, T, D),
}
SEEN_PL = torch.tensor([[True] * L, [True] * 4 + [False] * 2])
CAUSAL_TT = torch.ones(T, T).tril().bool()


def bias(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape).masked_fill(~seen, -math.inf)


def states(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for shape in SHAPES.values()]


def by_blocks(query: Tensor, *stored: Tensor) -> Tensor:
    prompt = Block(stored[0], stored[1], bias(SEEN_PL)[:, None])
    own = Block(stored[2], stored[3], bias(CAUSAL_TT)[None])
    return attend(query, [prompt, own], SCALING)


def one_row_at_a_time(query: Tensor, *stored: Tensor) -> Tensor:
    prompt_keys, prompt_values, own_keys, own_values = stored
    out = torch.zeros_like(query)
    for p, k, g, r, t in torch.cartesian_prod(*map(torch.arange, (P, K, G, R, T))).tolist():
        length = int(SEEN_PL[p].sum())
        keys = torch.cat([prompt_keys[p, k, :length], own_keys[p, k, g, : t + 1]])
        values = torch.cat([prompt_values[p, k, :length], own_values[p, k, g, : t + 1]])
        out[p, k, g, r, t] = (SCALING * keys @ query[p, k, g, r, t]).softmax(0) @ values
    return out


def test_block_attention_equals_attention_over_joined_keys() -> None:
    given = states(torch.float64)
    torch.testing.assert_close(by_blocks(*given), one_row_at_a_time(*given), rtol=1e-12, atol=1e-12)


def test_block_attention_gradient_equals_finite_differences() -> None:
    assert torch.autograd.gradcheck(by_blocks, states(torch.float64), fast_mode=True)


def test_huge_attention_scores_give_finite_output_and_gradient() -> None:
    given = states(torch.float32)
    with torch.no_grad():
        given[0].mul_(1e4)
    out = by_blocks(*given)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in given)


def test_keys_far_below_the_largest_score_have_no_weight_or_gradient() -> None:
    scores = torch.tensor([0.0, -50.0, -70.0, -95.0, -120.0])
    keys, values = scores.view(1, 5, 1).requires_grad_(), torch.ones(1, 5, 1, requires_grad=True)
    out = attend(torch.ones(1, 1), [Block(keys, values, torch.zeros(1, 1, 5))], 1.0)
    out.sum().backward()
    assert keys.grad is not None and values.grad is not None and out.item() == 1.0
    # A result below the smallest normal number of float32, 1.2e-38, would slow down all later products.
    assert values.grad.flatten().tolist() == [1.0, pytest.approx(math.exp(-50)), 0.0, 0.0, 0.0]
    assert keys.grad.flatten()[2:].tolist() == [0.0] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_block_attention_returns_query_dtype_with_float32_accuracy(dtype: torch.dtype) -> None:
    given = [tensor.detach().to(dtype) for tensor in states(torch.float32)]
    out = by_blocks(*given)
    exact = by_blocks(*(tensor.double() for tensor in given))
    assert out.dtype is dtype
    torch.testing.assert_close(out, exact.to(dtype), rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-6)

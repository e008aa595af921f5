from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rookworld_rlvr.objective import Head, ReferenceStates, StatisticsOptions, token_statistics


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = result if isinstance(result, tuple | list) else (result,)
        sizes = [output.numel() for output in outputs if isinstance(output, Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


def largest_saved(forward: Callable[[], Tensor]) -> int:
    """Return the number of elements of the largest tensor that autograd saves for backward."""
    sizes = [0]

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return max(sizes)


# More positions than hidden units or chunk, so that neither a weight nor a chunk can reach N*V elements.
WIDE_N, WIDE_H, WIDE_V, WIDE_CHUNK = 64, 4, 50, 8


def wide_inputs() -> tuple[Tensor, Tensor, Head]:
    generator = torch.Generator().manual_seed(2)
    weight_VH = torch.randn(WIDE_V, WIDE_H, generator=generator).requires_grad_()
    hidden = torch.randn(4, WIDE_N // 4, WIDE_H, generator=generator).requires_grad_()
    tokens = torch.randint(WIDE_V, (4, WIDE_N // 4), generator=generator)
    return hidden, tokens, lambda hidden_NH: hidden_NH @ weight_VH.T


def test_chunked_logprobs_save_no_full_logits_for_backward() -> None:
    hidden, tokens, head = wide_inputs()

    def plain() -> Tensor:
        return torch.log_softmax(head(hidden), -1).gather(-1, tokens.unsqueeze(-1)).sum()

    def chunked() -> Tensor:
        options = StatisticsOptions(chunk_tokens=WIDE_CHUNK)
        return token_statistics(hidden, tokens, head, options=options).logprobs.sum()

    assert largest_saved(plain) >= WIDE_N * WIDE_V
    assert largest_saved(chunked) <= WIDE_N * WIDE_H


@pytest.mark.parametrize("with_reference", [False, True])
def test_no_tensor_exceeds_one_chunk_of_logits_even_in_backward(with_reference: bool) -> None:
    hidden, tokens, head = wide_inputs()
    with LargestTensor() as largest:
        statistics = token_statistics(
            hidden,
            tokens,
            head,
            reference=ReferenceStates(hidden, head) if with_reference else None,
            options=StatisticsOptions(entropy_gradient=True, chunk_tokens=WIDE_CHUNK),
        )
        terms = [statistics.logprobs, statistics.entropy]
        terms += [statistics.kl_exact] if statistics.kl_exact is not None else []
        torch.stack(terms).sum().backward()
    assert hidden.grad is not None
    assert largest.elements == WIDE_CHUNK * WIDE_V

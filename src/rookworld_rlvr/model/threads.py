"""Work shared out among the CPU's cores, piece by piece.

A small model's matrices are too small to be worth dividing, so two threads on one product are hardly faster than one.
Two threads that compute a piece each are almost twice as fast.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from .device import is_accelerator

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores(device: torch.device) -> int:
    """How many pieces are computed at a time: torch's threads on a CPU, 1 elsewhere."""
    return 1 if is_accelerator(device) else torch.get_num_threads()


def on_cores(function: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> Iterator[Result]:
    """`function` of each item, in the order of the items.

    As many items as there are `cores` are computed at a time, each by one thread. With one core an item is computed
    when the one before it has been taken.
    """
    count = cores(device)
    return map(function, items) if count == 1 or len(items) < 2 else _pool(count).map(function, items)


def add_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Add one gradient for each parameter, None where it has no part in the loss, to what the parameters hold."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


@lru_cache(maxsize=1)
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "core", initializer=torch.set_num_threads, initargs=(1,))

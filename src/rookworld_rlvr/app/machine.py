"""What this machine can do: the arithmetic and the memory traffic a second that no step can exceed, measured."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from ..model.device import is_accelerator, synchronise

# Square matrices that keep the machine busy, and arrays that fit into no cache.
MATMUL_SIZES, ACCELERATOR_MATMUL_SIZES = (1024, 2048), (4096, 8192)
ARRAY_NUMBERS, ACCELERATOR_ARRAY_NUMBERS = 2**26, 2**28
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """The best that was measured."""

    flops_per_s: float
    """A large matrix product at the run's precision; a multiplication and an addition are two."""
    bytes_per_s: float
    """The best of reading, copying and a triad (a + s·b → c) of large arrays; each array counts once."""


def measure_limits(device: torch.device, dtype: torch.dtype) -> Limits:
    """Measure this device with the threads that torch has now; `dtype` is that of the matrix product."""
    return Limits(_flops_per_s(device, dtype), _bytes_per_s(device))


def _flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    rates = []
    for size in ACCELERATOR_MATMUL_SIZES if is_accelerator(device) else MATMUL_SIZES:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        rates.append(2 * size**3 / _best_s(partial(torch.mm, a, b, out=out), device))
    return max(rates)


def _bytes_per_s(device: torch.device) -> float:
    numbers = ACCELERATOR_ARRAY_NUMBERS if is_accelerator(device) else ARRAY_NUMBERS
    a, b, c = (torch.ones(numbers, device=device) for _ in range(3))
    array_bytes = a.numel() * a.element_size()
    ways: list[tuple[int, Callable[[], object]]] = [
        (1, lambda: a.sum()),
        (2, lambda: b.copy_(a)),
        (3, lambda: torch.add(a, b, alpha=0.5, out=c)),
    ]
    return max(arrays * array_bytes / _best_s(way, device) for arrays, way in ways)


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    """Shortest of several times; the first, in which kernels are chosen, does not count."""
    times_s = []
    for _ in range(1 + REPEATS):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        times_s.append(time.perf_counter() - started)
    return min(times_s[1:])

"""Devices: everything that differs between a CPU and an accelerator, and the use of a CPU's cores."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Device(StrEnum):
    """The device that the model is on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(StrEnum):
    """Arithmetic of forward passes. Weights and optimiser state are always float32."""

    auto = "auto"
    """bf16 on CUDA and on CPUs with bf16 instructions, otherwise fp32. Other CPUs take three times as long in bf16."""
    fp32 = "fp32"
    bf16 = "bf16"


def select_device(device: Device, local_rank: int | None = None) -> torch.device:
    """Return the configured device. Each process on a machine gets its own. Raises UserError if it is missing."""
    if device is Device.cuda and not torch.cuda.is_available():
        raise UserError("device=cuda: expected a CUDA device and a CUDA build of torch, got none")
    if device is Device.cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank is None:
        return torch.device("cuda")
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"processes: expected at most {torch.cuda.device_count()}, one for each CUDA device here, "
            f"got rank {local_rank} of this machine"
        )
    chosen = torch.device("cuda", local_rank)
    torch.cuda.set_device(chosen)
    return chosen


def is_accelerator(device: torch.device) -> bool:
    """Return True unless the device is the CPU. An accelerator has its own memory and asynchronous kernels."""
    return device.type != "cpu"


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Return the precision, with `auto` replaced by fp32 or bf16 according to the device."""
    if precision is not Precision.auto:
        return precision
    if is_accelerator(device):
        return Precision.bf16
    capabilities = torch.cpu.get_capabilities()
    native = capabilities.get("amx_bf16") or capabilities.get("avx512_bf16")
    # ATEN_CPU_CAPABILITY can forbid what the CPU has. These instructions belong to this level.
    allowed = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return Precision.bf16 if native and allowed else Precision.fp32


def autocast(device: torch.device, precision: Precision, *, keep_casts: bool = True) -> AbstractContextManager[Any]:
    """Return a context of bf16 autocast if the precision is bf16, otherwise a context that changes nothing.

    With `keep_casts` a weight is cast once in the context. All threads share these casts, and the first thread that
    leaves removes them; so where threads differentiate side by side, whether two uses of a weight share a cast, whose
    gradients are then added in bf16, would depend on timing.
    """
    if precision is not Precision.bf16:
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=keep_casts)


def device_name(device: torch.device) -> str:
    """Return the vendor's name of the accelerator, or `cpu` for the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def exchange_backend(device: torch.device) -> str:
    """Return the torch.distributed backend for tensors on this device and on the CPU."""
    return "cpu:gloo,cuda:nccl" if is_accelerator(device) else "gloo"


def synchronise(device: torch.device) -> None:
    """Wait until the accelerator has finished its queued work, for example before a clock is read."""
    if is_accelerator(device):
        torch.accelerator.synchronize(device)


def allocated_peak_bytes() -> int:
    """Return the peak memory of tensors on an accelerator since the last reset; 0 if none was used."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def reset_allocated_peak() -> None:
    """Start a new peak measurement on an accelerator that is in use."""
    torch.cuda.reset_peak_memory_stats()


def release_memory(device: torch.device) -> None:
    """Free the memory that an accelerator's allocator holds in reserve."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def free_bytes(device: torch.device) -> float:
    """Return the memory of an accelerator that new tensors can take; infinity for one that does not report it."""
    if device.type != "cuda":
        return math.inf
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def random_states() -> list[Tensor]:
    """Return the state of every accelerator's random generator; empty if this process has used none."""
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def set_random_states(states: Sequence[Tensor]) -> None:
    """Restore states of `random_states` on as many accelerators as there are now."""
    for device, state in zip(range(torch.cuda.device_count()), states, strict=False):
        torch.cuda.set_rng_state(state.cpu(), device)


def cores(device: torch.device) -> int:
    """Return the number of items computed at a time: torch's number of threads on a CPU, 1 on an accelerator."""
    return 1 if is_accelerator(device) else torch.get_num_threads()


def map_on_cores(function: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> Iterator[Result]:
    """Yield `function` of each item, in the order of the items.

    As many items as there are `cores` are computed at a time, each by one thread. With one core, an item is computed
    only after the previous result was taken. After an exception no item is still being computed.
    """
    count = cores(device)
    if count == 1 or len(items) < 2:
        yield from map(function, items)
        return
    futures = [_pool(count).submit(function, item) for item in items]
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


def add_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Add a gradient to each parameter's `grad`; None for a parameter that has no part in the loss.

    `grad` gets the parameter's strides, as `backward` gives it: fused AdamW refuses others on CUDA.
    """
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is not None:
            parameter.grad.add_(gradient)
        else:
            same = gradient.stride() == parameter.stride()
            parameter.grad = gradient if same else torch.empty_like(parameter).copy_(gradient)


@lru_cache(maxsize=1)
def _pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "core", initializer=torch.set_num_threads, initargs=(1,))

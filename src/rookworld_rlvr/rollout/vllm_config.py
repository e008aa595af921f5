"""Settings of the vLLM generators, and the arguments of an engine. Nothing here imports vllm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

EXTENSION = "rookworld_rlvr.rollout.vllm_worker.WorkerExtension"
GIB = 2**30
# vLLM accepts seeds below this.
SEEDS = 2**31
# Set before vllm is imported. One process, so that weights can be passed as tensors and runs are reproducible. Threads
# are not bound to cores, because the trainer shares them. No usage statistics are sent.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(slots=True)
class VLLMConfig:
    """Options of `generator.kind=vllm` and `generator.kind=vllm_server`."""

    kv_cache_gib: float = 1.0
    """vllm on a CPU: memory for keys and values, in GiB."""
    gpu_memory_fraction: float = 0.3
    """vllm on CUDA: fraction of the device's memory for weights, keys and values, in (0, 1]. The engine releases this
    memory while the trainer works."""
    url: str = ""
    """vllm_server: address of the server, http://HOST:PORT. It must run for the whole run."""

    def __post_init__(self) -> None:
        if not 0 < self.kv_cache_gib < math.inf or not 0 < self.gpu_memory_fraction <= 1:
            raise ValueError("generator.vllm: expected kv_cache_gib above 0 and gpu_memory_fraction in (0, 1]")
        if self.url and not (self.url.startswith(("http://", "https://")) and urlsplit(self.url).netloc):
            raise ValueError(f"generator.vllm.url: expected http://HOST:PORT, got {self.url!r}")


def engine_arguments(
    model: Path | str, config: VLLMConfig, *, batch_size: int, accelerated: bool, dtype: torch.dtype, sleeps: bool
) -> dict[str, Any]:
    """Return the arguments of vLLM's engine, in the trainer's process or in a server.

    `batch_size` is the number of completions generated at a time, and `accelerated` says whether the engine is on
    CUDA. With `sleeps` the engine releases its memory while the trainer works.
    """
    if accelerated:
        of_device: dict[str, Any] = {"gpu_memory_utilization": config.gpu_memory_fraction}
    else:
        # Chunked prefill rewinds the random state of a request, which raises an error on a CPU.
        of_device = {"kv_cache_memory_bytes": int(config.kv_cache_gib * GIB), "enable_chunked_prefill": False}
    return of_device | {
        "model": str(model),
        "dtype": str(dtype).removeprefix("torch."),
        # log_softmax(logits / T) of the sampled token, as the trainer computes it.
        "logprobs_mode": "processed_logprobs",
        # Ignores the sampling defaults that a model's folder may contain.
        "generation_config": "vllm",
        "max_num_seqs": batch_size,
        # Compilation pays off on CUDA; on a CPU it takes minutes even for models as small as ours.
        "enforce_eager": not accelerated,
        "enable_sleep_mode": sleeps,
        "worker_extension_cls": EXTENSION,
        "use_tqdm_on_load": False,
    }


def sampling_parameters(
    limits: Sequence[int], seeds: Sequence[int], *, group_size: int, temperature: float, top_k: int, eos_id: int
) -> list[dict[str, Any]]:
    """Return vLLM's parameters of each prompt, with its token limit and seed; greedy decoding uses no seeds."""
    own = [seed % SEEDS for seed in seeds] if temperature else [None] * len(limits)
    shared: dict[str, Any] = {
        "n": group_size,
        "temperature": temperature,
        "top_k": top_k or -1,
        "stop_token_ids": [eos_id],
    }
    return [
        {**shared, "logprobs": 0, "max_tokens": limit, "seed": seed} for limit, seed in zip(limits, own, strict=True)
    ]

"""`python -m rookworld_rlvr.rollout.vllm_serve MODEL`: a vLLM server that `generator=vllm_server` can sample from.

It is vLLM's own server with our worker extension, log-probs at the sampling temperature, and the calls that change
weights. With these calls, anyone who reaches the port can load files into the server. So by default only this machine
can reach it, and web pages in its browsers are refused.
"""

import argparse
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import torch

from ..files import asset
from ..model.device import Device, is_accelerator, select_device
from .generator import GeneratorConfig
from .vllm_config import ENVIRONMENT, SERVED_NAME, VLLMConfig, engine_arguments

SERVER = "vllm.entrypoints.openai.api_server"
TINY = "tiny"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main(argv: list[str]) -> None:
    """Replace this process by the server."""
    given, passed_on = _parser().parse_known_args(argv)
    environment = os.environ | {
        # Required by `/collective_rpc` and `/reset_prefix_cache`.
        "VLLM_SERVER_DEV_MODE": "1",
        **{name: os.environ.get(name, value) for name, value in ENVIRONMENT.items() if name not in _IN_PROCESS},
    }
    command = [sys.executable, "-m", SERVER, *flags(given), *passed_on]
    os.execve(sys.executable, command, environment)


# Not set for a server, whose engine is a process of its own with threads of its own.
_IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CPU_OMP_THREADS_BIND"}


def flags(given: argparse.Namespace) -> list[str]:
    """Return the server's command line. Switches that are off are left out, except those of SWITCHED_OFF."""
    config = VLLMConfig(kv_cache_gib=given.kv_cache_gib, gpu_memory_fraction=given.gpu_memory_fraction)
    model = str(asset("tiny")) if given.model == TINY else given.model
    accelerated, dtype = is_accelerator(select_device(Device.auto)), DTYPES[given.precision]
    arguments = engine_arguments(
        model, config, batch_size=given.batch_size, accelerated=accelerated, dtype=dtype, sleeps=False
    )
    arguments |= {"host": given.host, "port": given.port, "served_model_name": SERVED_NAME}
    arguments |= {"disable_uvicorn_access_log": True, "disable_log_stats": True}
    arguments |= {"allowed_origins": "[]", "middleware": f"{__package__}.vllm_serve.{RefuseBrowsers.__name__}"}
    return [word for name, value in arguments.items() for word in _flag(name.replace("_", "-"), value)]


class RefuseBrowsers:
    """ASGI middleware that answers 403 to requests of web pages, which browsers mark with an Origin header."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Callable[..., Awaitable[None]]) -> None:
        if not any(name == b"origin" for name, _ in scope.get("headers", ())):
            return await self._app(scope, receive, send)
        await send({"type": "http.response.start", "status": 403, "headers": []})
        await send({"type": "http.response.body", "body": b"expected no request of a web page"})


def _flag(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"] if value or name in SWITCHED_OFF else []
    return [f"--{name}", str(value)]


# Switches that vLLM turns on by default.
SWITCHED_OFF = {"enable-chunked-prefill", "use-tqdm-on-load"}


def _parser() -> argparse.ArgumentParser:
    defaults = VLLMConfig()
    parser = argparse.ArgumentParser(
        prog="python -m rookworld_rlvr.rollout.vllm_serve",
        description="A vLLM server for generator=vllm_server. Other options are passed on to vLLM's server.",
    )
    parser.add_argument("model", help="the model.path of the run: a folder, a hub name, or tiny")
    parser.add_argument("--host", default="127.0.0.1", help="whom to listen to (default: this machine alone)")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--precision", choices=DTYPES, default="bf16", help="that of the run")
    parser.add_argument("--batch-size", type=int, default=GeneratorConfig().batch_size)
    parser.add_argument("--kv-cache-gib", type=float, default=defaults.kv_cache_gib, help="on a CPU")
    parser.add_argument("--gpu-memory-fraction", type=float, default=defaults.gpu_memory_fraction, help="on CUDA")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])

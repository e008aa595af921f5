"""`python -m rookworld_rlvr.rollout.vllm_serve MODEL`: a server that `generator.kind=vllm_server` samples from.

It is vLLM's engine behind four requests, each answered before the next one is read. So a batch is sampled from one set
of weights, which the answer names.

    GET  /state      the model's dtype and number of positions
    POST /load       a safetensors file with the weights to sample from
    POST /checksum   {"names": […]}: the checksum of these weights, read back from the engine
    POST /generate   {"prompts": […], "parameters": […]}: token ids and log-probs of the completions of each prompt, and
                     the checksum that was read back after the last load

Anyone who reaches the port can change the weights. So by default only this machine can reach it, and requests of web
pages in its browsers are refused.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from ..errors import BAD_INPUT
from ..model.device import Device, is_accelerator, select_device
from ..model.loading import TINY, tiny_model_folder
from .generator import BATCH_SIZE, GeneratorError
from .vllm_config import VLLMConfig, engine_arguments
from .vllm_engine import Engine

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Start of the line that the server prints once it answers; the URL follows.
READY = "vllm_serve: ready at "
# Time limit for a client that sends its request slowly or does not read the answer.
TIMEOUT_S = 60


def main(argv: list[str]) -> int:
    """Serve until the process ends. Return exit code 2 if the server cannot start."""
    given = _parser().parse_args(argv)
    try:
        # The address comes first, because an engine takes long to start.
        server = Server(given.host, given.port)
        server.engine = Engine(arguments(given))
    except (GeneratorError, ValueError, OSError) as error:
        print(f"vllm_serve: {error}", file=sys.stderr)
        return BAD_INPUT
    print(f"{READY}http://{given.host}:{server.server_port}", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


def arguments(given: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of the engine. Raises ValueError."""
    config = VLLMConfig(kv_cache_gib=given.kv_cache_gib, gpu_memory_fraction=given.gpu_memory_fraction)
    return engine_arguments(
        str(tiny_model_folder()) if given.model == TINY else given.model,
        config,
        batch_size=given.batch_size,
        accelerated=is_accelerator(select_device(Device.auto)),
        dtype=DTYPES[given.precision],
        sleeps=False,
    )


class Server(HTTPServer):
    """Server of one engine, which answers one request at a time."""

    engine: Engine
    # Other ranks wait in this queue.
    request_queue_size = 64

    def __init__(self, host: str, port: int) -> None:
        """Bind the address; port 0 chooses a free port. Raises OSError if the address cannot be bound."""
        super().__init__((host, port), _Handler)
        self._weights = ""

    def state(self, _body: bytes) -> dict[str, Any]:
        return {"dtype": str(self.engine.dtype), "positions": self.engine.positions}

    def load(self, body: bytes) -> dict[str, Any]:
        self._weights = ""
        self.engine.load(load(body))
        return {}

    def checksum(self, body: bytes) -> dict[str, Any]:
        self._weights = self.engine.checksum(json.loads(body)["names"])
        return {"checksum": self._weights}

    def generate(self, body: bytes) -> dict[str, Any]:
        if not self._weights:
            raise GeneratorError("expected a trainer's weights before its prompts, got none")
        wanted = json.loads(body)
        completions = self.engine.sample(wanted["prompts"], wanted["parameters"])
        return {"completions": completions, "weights": self._weights}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report an error, unless the client closed the connection before its answer or was too slow."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        self._answer({"/state": self.server.state})

    def do_POST(self) -> None:
        self._answer({"/load": self.server.load, "/checksum": self.server.checksum, "/generate": self.server.generate})

    def _answer(self, requests: Mapping[str, Callable[[bytes], dict[str, Any]]]) -> None:
        # Browsers add this header to requests of web pages.
        if "Origin" in self.headers:
            return self._send(HTTPStatus.FORBIDDEN, {"error": "expected no request of a web page"})
        if self.path not in requests:
            return self._send(HTTPStatus.NOT_FOUND, {"error": "no such request"})
        try:
            content = requests[self.path](self.rfile.read(int(self.headers.get("Content-Length", 0))))
        except (KeyError, TypeError, ValueError, SafetensorError) as error:
            return self._send(HTTPStatus.BAD_REQUEST, {"error": f"{type(error).__name__}: {error}"})
        except GeneratorError as error:
            return self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error)})
        self._send(HTTPStatus.OK, content)

    def _send(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, so that the console shows no line per request."""


def _parser() -> argparse.ArgumentParser:
    defaults = VLLMConfig()
    parser = argparse.ArgumentParser(
        prog="python -m rookworld_rlvr.rollout.vllm_serve",
        description="A vLLM server for generator.kind=vllm_server. It gets its weights from the run.",
    )
    parser.add_argument("model", help="the model.path of the run: a folder, a hub name, or tiny")
    parser.add_argument("--host", default="127.0.0.1", help="whom to listen to (default: this machine alone)")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--precision", choices=DTYPES, default="bf16", help="that of the run")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--kv-cache-gib", type=float, default=defaults.kv_cache_gib, help="on a CPU")
    parser.add_argument("--gpu-memory-fraction", type=float, default=defaults.gpu_memory_fraction, help="on CUDA")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""How the trainer's weights reach a vLLM server: in a folder that both can read, or by vLLM's own weight transfer.

A server that was started with `--hand-over nccl` offers the transfer: the weights then go from one GPU to another by
NCCL, and need no folder. The trainer uses it if it is itself on an accelerator and has vLLM installed.
"""

import importlib
import importlib.util
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from urllib.parse import urlsplit

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from ..model.device import is_accelerator, synchronise, use_device
from ..model.lora import plain_parameters
from .generator import GeneratorError
from .vllm_client import ServerGoneError, VLLMServer
from .vllm_config import ENVIRONMENT
from .vllm_worker import WEIGHTS_FILE

# What a trainer tells each of vLLM's backends that it can drive: module and class.
BACKENDS = {"nccl": ("vllm.distributed.weight_transfer.nccl_engine", "NCCLTrainerInitInfo")}
WITH_FOLDER = "a server on the trainer's own GPU needs --hand-over folder"


class HandOver(Protocol):
    """A way for weights to a server."""

    def keep(self, model: PreTrainedModel) -> None:
        """Copy the model's weights. They are what `load` hands over, whatever is trained meanwhile."""

    def load(self, token: str) -> None:
        """Have the server sample from the weights that were kept, under this token. Raises GeneratorError."""

    def server_restarted(self) -> None:
        """Forget any connection: the server is another process now."""


class ByFolder:
    """Weights in a safetensors file."""

    def __init__(self, server: VLLMServer, folder: str) -> None:
        """`folder`: the file's folder is made below it; empty: below the machine's temporary folder."""
        self._server = server
        self._folder = TemporaryDirectory(prefix="rookworld-weights-", dir=folder or None)

    def keep(self, model: PreTrainedModel) -> None:
        """See `HandOver`. A server that is restarted meanwhile reads the old file or the new one."""
        named = {name: parameter.contiguous() for name, parameter in plain_parameters(model)}
        final = Path(self._folder.name) / WEIGHTS_FILE
        writing = final.with_suffix(".writing")
        save_file(named, writing)
        writing.replace(final)

    def load(self, token: str) -> None:
        """See `HandOver`."""
        self._server.call("rookworld_load_folder", folder=self._folder.name, token=token)

    def server_restarted(self) -> None:
        """See `HandOver`. A file needs no connection."""


@dataclass(frozen=True, slots=True)
class _Parameter:
    """What vLLM's transfer engine asks of a parameter before it is sent."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class _Kept:
    """Named weights as vLLM's transfer engine asks for them, in one order; see vLLM's `WeightSource`."""

    def __init__(self) -> None:
        self.named: dict[str, Tensor] = {}

    def metadata(self) -> list[_Parameter]:
        return [_Parameter(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self.named.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.named.items())


class _Calls:
    """The server's calls that vLLM's transfer engine makes; see vLLM's `VLLMWeightSyncClient`."""

    def __init__(self, server: VLLMServer) -> None:
        self._server = server

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._server.post("/init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._server.post("/start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._server.post("/update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._server.post("/finish_weight_update", {"weight_version": weight_version})


class ByTransfer:
    """Weights through vLLM's transfer engine, in the server's type: a process group of this process and the server."""

    def __init__(self, server: VLLMServer, backend: str, device: torch.device, dtype: torch.dtype) -> None:
        self._server, self._backend, self._device, self._dtype = server, backend, device, dtype
        self._kept = _Kept()
        self._engine: Any = None

    def keep(self, model: PreTrainedModel) -> None:
        """See `HandOver`. The copy stays on the device."""
        self._kept.named = {
            name: parameter.to(self._dtype, copy=True).contiguous() for name, parameter in plain_parameters(model)
        }
        synchronise(self._device)

    def load(self, token: str) -> None:
        """See `HandOver`."""
        try:
            self._in_time(self._connect, "to connect")
            self._server.call("rookworld_begin", token=token)
            self._in_time(lambda: self._engine.send_weights(), "the weights")
            self._server.call("rookworld_end", names=list(self._kept.named), token=token)
        except BaseException:
            # What became of the exchange is not known, so the next one begins anew.
            self.server_restarted()
            raise

    def server_restarted(self) -> None:
        """See `HandOver`."""
        self._engine = None

    def _connect(self) -> None:
        """Make the process group, if there is none: both ends must come to it."""
        if self._engine is not None:
            return
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        module, kind = BACKENDS[self._backend]
        workers = int(self._server.get("/get_world_size")["world_size"])
        address, port = _reachable(self._server.url)
        info = getattr(importlib.import_module(module), kind)(
            master_address=address, master_port=port, world_size=1 + workers, rank=0
        )
        calls = _Calls(self._server)
        self._engine = WeightTransferTrainerFactory.trainer_init(info, client=calls, source=self._kept)

    def _in_time(self, work: Callable[[], None], what: str) -> None:
        """Do it in a thread that is left alone once the server's time is over: NCCL itself waits for ever.

        Raises ServerGoneError.
        """
        raised: list[BaseException] = []

        def done() -> None:
            try:
                use_device(self._device)
                work()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=done, name="weights", daemon=True)
        thread.start()
        thread.join(self._server.timeout_s)
        told = f"vllm_server: expected {self._server.url} to take over {what} by {self._backend}"
        if thread.is_alive():
            raise ServerGoneError(f"{told}, nothing came within {self._server.timeout_s:g} s")
        for error in raised:
            if isinstance(error, GeneratorError) or not isinstance(error, Exception):
                raise error
            raise ServerGoneError(f"{told}, got {type(error).__name__}: {error}; {WITH_FOLDER}") from error


def hand_over_to(
    server: VLLMServer, offered: str, device: torch.device, dtype: torch.dtype, *, sync_folder: str
) -> HandOver:
    """The way for weights from a trainer on this device to this server.

    `offered` is the transfer backend that the server was started with, empty for none.
    """
    usable = offered in BACKENDS and (is_accelerator(device) or offered != "nccl")
    if usable and importlib.util.find_spec("vllm") is not None:
        return ByTransfer(server, offered, device, dtype)
    return ByFolder(server, sync_folder)


def _reachable(url: str) -> tuple[str, int]:
    """This machine's address as the server sees it, and a port that is free there."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((parts.hostname or "", port)) as connection:
        address = str(connection.getsockname()[0])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as free:
        free.bind((address, 0))
        return address, int(free.getsockname()[1])

"""How the trainer's weights reach a vLLM server: in a folder that both can read, or by vLLM's own weight transfer.

A server that was started with `--weight-sync nccl` offers the transfer: the weights then go from one GPU to another by
NCCL, and need no folder. The trainer uses it if it is itself on an accelerator and has vLLM installed.
"""

import importlib
import importlib.util
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
from .vllm_config import set_environment
from .vllm_sampling import Held, expected_weights
from .vllm_worker import WEIGHTS_FILE

# What a trainer tells each of vLLM's backends that it can drive: module and class.
BACKENDS = {"nccl": ("vllm.distributed.weight_transfer.nccl_engine", "NCCLTrainerInitInfo")}
WITH_FOLDER = "a server on the trainer's own GPU, or one without IPv4, needs --weight-sync folder"


@dataclass(frozen=True, slots=True)
class Owner:
    """The trainer that a server's weights belong to, as each of its ranks knows it."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    syncs_weights: bool = True
    """Whether this rank gives servers their weights; the others wait until rank 0 has done so."""


class KeptWeights:
    """The trainer's weights as its servers should have them, whatever is trained meanwhile.

    Each set of weights has a token and a checksum. A copy is kept in the forms that servers take over: on the trainer's
    device in the servers' type, in a file, or both.
    """

    def __init__(self, owner: Owner, dtype: torch.dtype, sync_folder: str) -> None:
        """`sync_folder`: a folder for the file is made below it; empty: below the machine's temporary folder."""
        self.owner, self._dtype, self._sync_folder = owner, dtype, sync_folder
        self.expected = Held("", "", ())
        self.on_device: dict[str, Tensor] | None = None
        self._count = 0
        self._folder: TemporaryDirectory[str] | None = None

    @property
    def token(self) -> str:
        """The name of this set of weights, which begins with the trainer's."""
        return f"{self.owner.name}:{self._count}"

    def folder(self) -> str:
        """Where the file is, which is kept from the next `keep` on."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="rookworld-weights-", dir=self._sync_folder or None)
        return self._folder.name

    def keep(self, model: PreTrainedModel) -> None:
        """Copy the model's weights. A rank that does not hand them over keeps their checksum alone."""
        self.expected = expected_weights(model, self._dtype)
        self._count += 1
        if not self.owner.syncs_weights:
            return
        if self._folder is not None:
            _write(model, Path(self._folder.name) / WEIGHTS_FILE)
        if self.on_device is not None:
            self.on_device = {
                name: parameter.to(self._dtype, copy=True).contiguous() for name, parameter in plain_parameters(model)
            }
            synchronise(next(model.parameters()).device)


def _write(model: PreTrainedModel, path: Path) -> None:
    """A server that is restarted meanwhile reads the old file or the new one."""
    named = {name: parameter.contiguous() for name, parameter in plain_parameters(model)}
    writing = path.with_suffix(".writing")
    save_file(named, writing)
    writing.replace(path)


class WeightSync(Protocol):
    """A way for kept weights to one server."""

    def load(self) -> None:
        """Have the server sample from the kept weights. Raises GeneratorError."""

    def server_restarted(self) -> None:
        """Forget any connection: the server is another process now."""


class ByFolder:
    """Weights in a safetensors file."""

    def __init__(self, server: VLLMServer, kept: KeptWeights) -> None:
        self._server, self._kept, self._folder = server, kept, kept.folder()

    def load(self) -> None:
        """See `WeightSync`."""
        self._server.call("rookworld_load_folder", folder=self._folder, token=self._kept.token)

    def server_restarted(self) -> None:
        """See `WeightSync`. A file needs no connection."""


@dataclass(frozen=True, slots=True)
class _Parameter:
    """What vLLM's transfer engine asks of a parameter before it is sent."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class _Source:
    """Kept weights as vLLM's transfer engine asks for them, in one order; see vLLM's `WeightSource`."""

    def __init__(self, kept: KeptWeights) -> None:
        self._kept = kept

    def metadata(self) -> list[_Parameter]:
        return [_Parameter(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter((self._kept.on_device or {}).items())


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
    """Weights through vLLM's transfer engine: a process group of this process and the server."""

    def __init__(self, server: VLLMServer, backend: str, kept: KeptWeights, device: torch.device) -> None:
        self._server, self._backend, self._kept, self._device = server, backend, kept, device
        if kept.on_device is None:
            kept.on_device = {}
        self._engine: Any = None

    def load(self) -> None:
        """See `WeightSync`."""
        names, token = list(self._kept.expected.names), self._kept.token
        try:
            self._server.call("rookworld_begin", token=token)
            if self._engine is None:
                self._engine = self._in_time(self._connected, "a connection")
            self._in_time(self._engine.send_weights, "weights")
            self._server.call("rookworld_end", names=names)
        except BaseException:
            # What became of the exchange is not known, so the next one begins anew.
            self.server_restarted()
            raise

    def server_restarted(self) -> None:
        """See `WeightSync`. An exchange that still waits for the server is aborted: it would hold up the GPU."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()

    def _connected(self) -> Any:
        """The trainer's end of a new process group; the server is asked to come to it."""
        set_environment()
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        module, kind = BACKENDS[self._backend]
        workers = int(self._server.get("/get_world_size")["world_size"])
        address, port = _reachable(self._server.url)
        self._server.post("/shutdown_weight_transfer_engine")
        info = getattr(importlib.import_module(module), kind)(
            master_address=address, master_port=port, world_size=1 + workers, rank=0
        )
        return WeightTransferTrainerFactory.trainer_init(info, client=_Calls(self._server), source=_Source(self._kept))

    def _in_time(self, work: Callable[[], Any], what: str) -> Any:
        """What `work` gives, in a thread that is left alone once the server's time is over: NCCL waits for ever.

        Raises ServerGoneError.
        """
        given: list[Any] = []
        raised: list[BaseException] = []

        def done() -> None:
            try:
                use_device(self._device)
                given.append(work())
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
        return given[0]


def weight_sync_to(server: VLLMServer, offered: str, kept: KeptWeights, device: torch.device) -> WeightSync:
    """The way for weights from a trainer on this device to this server; call it before the weights are kept.

    `offered` is the transfer backend that the server was started with, empty for none.
    """
    usable = offered in BACKENDS and (is_accelerator(device) or offered != "nccl")
    if usable and importlib.util.find_spec("vllm") is not None:
        return ByTransfer(server, offered, kept, device)
    return ByFolder(server, kept)


def _reachable(url: str) -> tuple[str, int]:
    """This machine's IPv4 address as the server sees it, and a port that is free there. Raises GeneratorError."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((parts.hostname or "", port)) as connection:
        address = str(connection.getsockname()[0])
    if ":" in address:
        raise GeneratorError(f"vllm_server: expected an IPv4 address of {url} for a transfer, got IPv6; {WITH_FOLDER}")
    with socket.socket() as free:
        free.bind((address, 0))
        return address, int(free.getsockname()[1])

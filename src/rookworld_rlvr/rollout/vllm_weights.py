"""Weight sync with a vLLM server: through a folder that both can read, or by vLLM's own weight transfer.

A server that was started with `--weight-sync nccl` offers the transfer: the weights then go from one GPU to another by
NCCL, without a folder. The trainer uses it if it is itself on an accelerator and has vLLM installed.
"""

import importlib
import importlib.util
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from ..model.device import is_accelerator, synchronise, use_device
from ..model.weights import checksum, checksum_of
from .generator import GeneratorError
from .vllm_client import WITH_FOLDER, ServerGoneError, VLLMServer
from .vllm_config import set_environment
from .vllm_worker import WEIGHTS_FILE

# The initialisation class of each supported backend of vLLM: module and class.
BACKENDS = {"nccl": ("vllm.distributed.weight_transfer.nccl_engine", "NCCLTrainerInitInfo")}


@dataclass(frozen=True, slots=True)
class ExpectedWeights:
    """The weights that a sampler should have."""

    checksum: str
    """Checksum of the trainer's weights in their own type."""
    rounded: str
    """Checksum of the trainer's weights rounded to the sampler's type."""
    names: tuple[str, ...]

    def checksum_for(self, held: str) -> str:
        """Return the trainer's checksum if `held` is that of the rounded weights, otherwise `held`."""
        return self.checksum if held == self.rounded else held


def expected_weights(model: PreTrainedModel, dtype: torch.dtype) -> ExpectedWeights:
    """Return the weights that a sampler of this dtype should have after a sync."""
    named = [(name, parameter.detach()) for name, parameter in model.named_parameters()]
    full = checksum(model)
    same = all(parameter.dtype == dtype for _, parameter in named)
    rounded = full if same else checksum_of((name, parameter.to(dtype)) for name, parameter in named)
    return ExpectedWeights(full, rounded, tuple(name for name, _ in named))


def require_weights(expected: ExpectedWeights, held: str) -> None:
    """Raise GeneratorError if the sampler holds other weights."""
    if held != expected.rounded:
        raise GeneratorError(f"vllm: expected the trainer's weights {expected.rounded}, the sampler has {held}")


@dataclass(frozen=True, slots=True)
class WeightOwner:
    """Trainer that a server's weights belong to, as one of its ranks sees it."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    syncs_weights: bool = True
    """True if this rank sends the weights to the servers; the other ranks wait until rank 0 has done so."""


class WeightSnapshot:
    """Copy of the trainer's weights that its servers should have, independent of further training.

    Each set of weights has a token and a checksum. The copy is kept in the forms that servers take over: on the
    trainer's device in the servers' dtype, in a file, or both.
    """

    def __init__(self, owner: WeightOwner, dtype: torch.dtype, sync_folder: str) -> None:
        """Keep nothing yet. The file's folder will be below `sync_folder`; if empty, below the temporary folder."""
        self.owner, self._dtype, self._sync_folder = owner, dtype, sync_folder
        self.expected = ExpectedWeights("", "", ())
        self.on_device: dict[str, Tensor] | None = None
        self._count = 0
        self._folder: TemporaryDirectory[str] | None = None

    @property
    def token(self) -> str:
        """Name of this set of weights, which begins with the trainer's name."""
        return f"{self.owner.name}:{self._count}"

    def folder(self) -> str:
        """Return the folder of the weights' file, which is written from the next `keep` on."""
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="rookworld-weights-", dir=self._sync_folder or None)
        return self._folder.name

    def keep(self, model: PreTrainedModel) -> None:
        """Copy the model's weights. A rank that does not synchronise them keeps only their checksum."""
        self.expected = expected_weights(model, self._dtype)
        self._count += 1
        if not self.owner.syncs_weights:
            return
        if self._folder is not None:
            _write(model, Path(self._folder.name) / WEIGHTS_FILE)
        if self.on_device is not None:
            self.on_device = {
                name: parameter.detach().to(self._dtype, copy=True).contiguous()
                for name, parameter in model.named_parameters()
            }
            synchronise(next(model.parameters()).device)


def _write(model: PreTrainedModel, path: Path) -> None:
    """Write the weights. A server that is restarted meanwhile reads either the old file or the new one."""
    named = {name: parameter.detach().contiguous() for name, parameter in model.named_parameters()}
    writing = path.with_suffix(".writing")
    save_file(named, writing)
    writing.replace(path)


class WeightSync(Protocol):
    """Way of sending the kept weights to one server."""

    def load(self) -> None:
        """Make the server sample from the kept weights. Raises GeneratorError."""

    def server_restarted(self) -> None:
        """Forget any connection, because the server is another process now."""


class FolderSync:
    """Weight sync through a safetensors file."""

    def __init__(self, server: VLLMServer, snapshot: WeightSnapshot) -> None:
        self._server, self._snapshot, self._folder = server, snapshot, snapshot.folder()

    def load(self) -> None:
        """See `WeightSync`."""
        self._server.call("rookworld_load_folder", folder=self._folder, token=self._snapshot.token)

    def server_restarted(self) -> None:
        """See `WeightSync`. A file needs no connection."""


@dataclass(frozen=True, slots=True)
class _Parameter:
    """Description of a parameter for vLLM's transfer engine, sent before the values."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class _Source:
    """Kept weights as vLLM's transfer engine reads them, always in the same order; see vLLM's `WeightSource`."""

    def __init__(self, snapshot: WeightSnapshot) -> None:
        self._snapshot = snapshot

    def metadata(self) -> list[_Parameter]:
        return [_Parameter(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iter((self._snapshot.on_device or {}).items())


class TransferSync:
    """Weight sync through vLLM's transfer engine, with a process group of this process and the server."""

    def __init__(self, server: VLLMServer, backend: str, snapshot: WeightSnapshot, device: torch.device) -> None:
        self._server, self._backend, self._snapshot, self._device = server, backend, snapshot, device
        if snapshot.on_device is None:
            snapshot.on_device = {}
        self._engine: Any = None

    def load(self) -> None:
        """See `WeightSync`."""
        names, token = list(self._snapshot.expected.names), self._snapshot.token
        try:
            self._server.call("rookworld_begin", token=token)
            if self._engine is None:
                self._engine = self._in_time(self._connected, "a connection")
            self._in_time(self._engine.send_weights, "weights")
            self._server.call("rookworld_end", names=names)
        except BaseException:
            # The outcome of the exchange is unknown, so the next one starts with a new connection.
            self.server_restarted()
            raise

    def server_restarted(self) -> None:
        """See `WeightSync`. An exchange that still waits for the server is aborted, because it would block the GPU."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()

    def _connected(self) -> Any:
        """Return the trainer's end of a new process group, which the server joins."""
        set_environment()
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        module, kind = BACKENDS[self._backend]
        workers = int(self._server.get("/get_world_size")["world_size"])
        address, port = self._server.trainer_address()
        self._server.post("/shutdown_weight_transfer_engine")
        info = getattr(importlib.import_module(module), kind)(
            master_address=address, master_port=port, world_size=1 + workers, rank=0
        )
        return WeightTransferTrainerFactory.trainer_init(info, client=self._server, source=_Source(self._snapshot))

    def _in_time(self, work: Callable[[], Any], what: str) -> Any:
        """Return the result of `work`. It runs in a thread that is abandoned after the server's timeout.

        The timeout is needed because NCCL waits forever. Raises ServerGoneError.
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
        message = f"vllm_server: expected {self._server.url} to take over {what} by {self._backend}"
        if thread.is_alive():
            raise ServerGoneError(f"{message}, nothing came within {self._server.timeout_s:g} s")
        for error in raised:
            if isinstance(error, GeneratorError) or not isinstance(error, Exception):
                raise error
            raise ServerGoneError(f"{message}, got {type(error).__name__}: {error}; {WITH_FOLDER}") from error
        return given[0]


def weight_sync_to(server: VLLMServer, offered: str, snapshot: WeightSnapshot, device: torch.device) -> WeightSync:
    """Return the weight sync from a trainer on this device to this server. Call this before the weights are kept.

    `offered` is the transfer backend that the server was started with, empty for none.
    """
    usable = offered in BACKENDS and (is_accelerator(device) or offered != "nccl")
    if usable and importlib.util.find_spec("vllm") is not None:
        return TransferSync(server, offered, snapshot, device)
    return FolderSync(server, snapshot)

"""vLLM's weight transfer over gloo, for machines without a GPU: its NCCL engines with another process group.

vLLM's own code does the rest: the four calls, their content, the order of the weights, and how a worker loads them. A
server is started with `--worker-extension-cls gloo_transfer.GlooExtension --weight-transfer-config
'{"backend": "gloo"}'`; the trainer calls `register_trainer`. Both need this file's folder on the path.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerInitInfo,
    NCCLTrainerWeightTransferEngine,
    NCCLWeightTransferEngine,
)

from rookworld_rlvr.rollout import vllm_weights
from rookworld_rlvr.rollout.vllm_worker import WorkerExtension

BACKEND = "gloo"
PATIENCE = timedelta(seconds=60)


def join(info: Any, rank: int) -> Any:
    """Return the process group of the trainer (rank 0) and a server's worker."""
    store = dist.TCPStore(info.master_address, info.master_port, info.world_size, rank == 0, PATIENCE)
    return dist.ProcessGroupGloo(store, rank, info.world_size, PATIENCE)


def broadcast(group: Any, tensor: torch.Tensor) -> None:
    options = dist.BroadcastOptions()
    options.rootRank = 0
    group.broadcast([tensor], options).wait()


class GlooWorkerEngine(NCCLWeightTransferEngine):
    """The worker's end of the transfer."""

    def init_transfer_engine(self, init_info: Any) -> None:
        self.group = join(init_info, rank=init_info.rank_offset)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        info = self.parse_update_info(update_info)
        for name, dtype, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            broadcast(self.group, weight)
            self.model.load_weights([(name, weight)])

    def shutdown(self) -> None:
        self.group = None


class GlooTrainerInitInfo(NCCLTrainerInitInfo):
    """Initialisation of the trainer's end of the transfer."""

    backend: ClassVar[str] = BACKEND


class GlooTrainerEngine(NCCLTrainerWeightTransferEngine):
    """The trainer's end of the transfer."""

    init_info_cls = GlooTrainerInitInfo

    @classmethod
    def trainer_init(cls, init_info: Any, *, client: Any, source: Any = None) -> "GlooTrainerEngine":
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        address = {key: asdict(init_info)[key] for key in ("master_address", "master_port", "world_size")}
        worker = worker_init_payload(NCCLWeightTransferInitInfo(rank_offset=1, **address))
        with ThreadPoolExecutor(1) as pool:
            joined = pool.submit(client.init_weight_transfer_engine, worker)
            engine.group = join(init_info, rank=0)
            joined.result()
        return engine

    def shutdown(self) -> None:
        self.group = None

    def _broadcast(self, source: Iterable[tuple[str, torch.Tensor]], meta: list[Any]) -> None:
        for _name, tensor in self._checked_iter(source, meta):
            broadcast(self.group, tensor)


class GlooExtension(WorkerExtension):
    """Extension whose import registers the backend in the server's worker."""


def register_trainer() -> None:
    """Register the backend for a trainer in this process."""
    vllm_weights.BACKENDS[BACKEND] = (__name__, GlooTrainerInitInfo.__name__)
    if BACKEND not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(BACKEND, GlooTrainerEngine)


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, GlooWorkerEngine)

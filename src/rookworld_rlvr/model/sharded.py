"""Weights in shards, one for each rank, by PyTorch's FSDP2: for models that exceed the memory of one device.

A rank holds its share of every weight, of its gradient and of its moments. A pass gathers the weights of a block just
before the block is computed and frees them afterwards. Backward gathers them again, and leaves on each rank its share
of the gradient, summed over the ranks. So all ranks must make the same passes in the same order. Code that samples,
runs preflight checks or computes a checksum gathers all weights with `unshard`; a checkpoint gathers them one tensor at
a time with `full_state`. PyTorch's counterpart for an optimiser makes a step of one that has none yet, which AdamW
counts, so its moments are gathered with `full_tensor` and divided with `distribute`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import UserError

Result = TypeVar("Result")
# Method, set on a sharded model, that runs a pass. FSDP2 gathers the weights outside the blocks before it.
FORWARD = "sharded_forward"
# Attribute of the whole model: True if it keeps the weights outside the blocks after a pass has gathered them.
KEEPS_ROOT = "keeps_root_unsharded"
# Attribute of the whole model: True while all its weights are gathered.
UNSHARDED = "is_unsharded"


def require_sharding() -> None:
    """Raise UserError if this torch lacks a method that `reshard` calls."""
    from torch.distributed.fsdp import FSDPModule

    if not hasattr(FSDPModule, "reset_iter_state"):
        raise UserError(f"distributed=fsdp2: expected torch 2.13 or newer, got {torch.__version__}")


def shard(model: PreTrainedModel, device: torch.device, *, trained: bool) -> None:
    """Shard the model's weights in place: those of each block, and those outside the blocks.

    A model that is not `trained`, a reference, keeps the weights outside its blocks after a pass has gathered them:
    the policy's backward may recompute a chunk's logits with the reference's head. Needs a process group.
    """
    from torch.distributed import get_world_size
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (get_world_size(),))
    for block in transformer_blocks(model):
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=trained)
    for part in _parts(model):
        # The losses are already divided by the sizes of the whole update.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    setattr(model, KEEPS_ROOT, not trained)
    setattr(model, UNSHARDED, False)
    setattr(model, FORWARD, _forward)
    register_fsdp_forward_method(model, FORWARD)
    # FSDP2 takes the first module that runs as the root, so the whole model is initialised before any block.
    model._get_fsdp_state()._lazy_init()  # type: ignore[operator]


def is_sharded(model: nn.Module) -> bool:
    """Return True if the model's weights are in shards."""
    return hasattr(model, FORWARD)


def run_forward(model: nn.Module, work: Callable[[], Result]) -> Result:
    """Gather the weights outside the blocks, then return the tensors that `work` computes with the model.

    All ranks must call this together.
    """
    if not is_sharded(model):
        return work()
    result: Result = getattr(model, FORWARD)(work)
    return result


@contextmanager
def unshard(*models: nn.Module) -> Iterator[None]:
    """Give every rank all weights within the context, so that it can make passes independently.

    A model without shards is unchanged. All ranks must enter the context together.
    """
    with ExitStack() as stack:
        for model in models:
            if is_sharded(model) and not getattr(model, UNSHARDED):
                stack.enter_context(_unsharded(model))
        yield


def reshard(*models: nn.Module) -> None:
    """Free all weights that are not this rank's share, and forget the order of blocks in the last pass.

    Afterwards `parameters` are the shards. All ranks must call this together; otherwise they would gather weights of
    different blocks.
    """
    for model in models:
        if is_sharded(model):
            sharded: Any = model
            sharded.reset_iter_state()


def is_dtensor(tensor: Any) -> bool:
    """Return True if this rank holds a share of the tensor (a DTensor)."""
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor with all its shards, or itself if it has none. All ranks must call this together."""
    sharded: Any = tensor
    return sharded.full_tensor() if is_dtensor(tensor) else tensor


def distribute(tensor: Any, values: Any) -> Any:
    """Return the values in shards like those of `tensor`; unchanged if it has none, or if the shapes differ."""
    if not is_dtensor(tensor) or getattr(values, "shape", None) != tensor.shape:
        return values
    from torch.distributed.tensor import distribute_tensor

    # Every rank has the values, so they need not be sent.
    return distribute_tensor(values.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


def full_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the whole `state_dict` of a sharded model on the CPU of rank 0, and an empty one on the others.

    All ranks must call this together.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    state: dict[str, Any] = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    return state


def load_full_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a whole `state_dict`, which every rank has, into a model, which may be sharded."""
    if not is_sharded(model):
        model.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    # PyTorch puts the shards into the dictionary that it is given.
    set_model_state_dict(model, dict(state), options=StateDictOptions(full_state_dict=True))


def _forward(work: Callable[[], Any]) -> Any:
    """Return the output of a pass. Several tensors are copied: FSDP2 puts hooks on them that a view would lose."""
    made = work()
    return tuple(None if one is None else one.clone() for one in made) if isinstance(made, tuple) else made


def _parts(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def _unsharded(model: nn.Module) -> Iterator[None]:
    parts = _parts(model)
    try:
        for part in parts:
            part.unshard()
            part.set_reshard_after_forward(False, recurse=False)
        setattr(model, UNSHARDED, True)
        yield
    finally:
        setattr(model, UNSHARDED, False)
        for part in parts:
            part.set_reshard_after_forward(not (part is model and getattr(model, KEEPS_ROOT)), recurse=False)
        reshard(model)


def transformer_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a transformers model, which FSDP2 must not divide."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]

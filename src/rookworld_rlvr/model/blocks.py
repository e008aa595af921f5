"""Transformer blocks of a model: compiled for packed rows, or recomputed in backward to save memory.

Compiled kernels fuse the operations between the matrix products: norms, rotations, activations and sums. They are
compiled for dynamic sizes, so one kernel serves all passes. PyTorch saves them on disk, in the folder
`TORCHINDUCTOR_CACHE_DIR`, and later runs read them there.
"""

import shutil
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..errors import UserError
from .packed import PackedLayout
from .shared_prefix import checkpoint_contexts

# The compilers that torch.compile looks for.
COMPILERS = ("g++", "clang++")


def require_compiler(key: str) -> None:
    """Raise UserError that names the configuration's `key` if there is no C++ compiler."""
    if not any(map(shutil.which, COMPILERS)):
        raise UserError(f"{key}: expected a C++ compiler, {' or '.join(COMPILERS)}, got none")


def transformer_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a transformers model, which neither FSDP2 nor a compiler should divide."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def recompute_blocks(model: PreTrainedModel) -> None:
    """Make backward recompute each block (arXiv 1604.06174). Raises UserError if the model does not support it."""
    if not model.supports_gradient_checkpointing:
        raise UserError(f"model.activation_checkpointing: {type(model).__name__} does not support it")
    model.activation_checkpointing_enable(
        activation_checkpointing_kwargs={"use_reentrant": False, "context_fn": partial(checkpoint_contexts, model)}
    )


def compile_blocks(model: nn.Module) -> None:
    """Change the blocks of a transformers model, in place, to use compiled code for packed rows.

    Sampling and padded rows are computed as before. Copies of the model are compiled too.
    """
    _attend_packed_rows_eagerly()
    for block in transformer_blocks(model):
        block.__class__ = _compiled(type(block))  # type: ignore[arg-type]


def compiled(function: Any) -> Any:
    """Return the function compiled for any sizes. On a CPU it uses as many threads as its caller may use."""
    return torch.compile(function, dynamic=True, options={"cpp.dynamic_threads": True})


@cache
def _attend_packed_rows_eagerly() -> None:
    """Exclude the attention of packed rows from compiled code, because its shapes change with every pass."""
    PackedLayout.attend = torch.compiler.disable(PackedLayout.attend)  # type: ignore[method-assign]


@cache
def _compiled(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass of the block whose forward pass is compiled if the rows are packed."""
    plain, fast = kind.forward, compiled(kind.forward)

    def forward(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        chosen = fast if isinstance(kwargs.get("layout"), PackedLayout) else plain
        return chosen(block, *args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward})

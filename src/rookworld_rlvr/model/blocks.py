"""Transformer blocks of a model, and their recomputation in backward to save memory."""

from functools import partial

from torch import nn
from transformers import PreTrainedModel

from ..errors import UserError
from .shared_prefix import checkpoint_contexts


def transformer_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a transformers model, which FSDP2 must not divide."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def recompute_blocks(model: PreTrainedModel) -> None:
    """Make backward recompute each block (arXiv 1604.06174). Raises UserError if the model does not support it."""
    if not model.supports_gradient_checkpointing:
        raise UserError(f"model.activation_checkpointing: {type(model).__name__} does not support it")
    model.activation_checkpointing_enable(
        activation_checkpointing_kwargs={"use_reentrant": False, "context_fn": partial(checkpoint_contexts, model)}
    )

"""A model of frozen weights with a trained adapter (LoRA, arXiv 2106.09685). Nothing here imports peft.

A linear layer with an adapter returns W·x + scaling · B·(A·x). W is frozen; A and B are trained, and B begins as 0. To
software that knows no adapters the layer is a plain one with the merged weight W + scaling · B·A.

`model.lora` puts the adapter into a model in which every other module stays as it was: W gets the name
`LAYER.base_layer.weight`, A and B are `LAYER.lora_A.default.weight` and `LAYER.lora_B.default.weight`.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# peft's name of a model's adapter if no other is given.
ADAPTER = "default"
FACTOR_A, FACTOR_B, FROZEN = ".lora_A.", ".lora_B.", ".base_layer."
# Attribute of a model with an adapter: its `AdapterOrigin`.
ORIGIN = "adapter_origin"


@dataclass(frozen=True, slots=True)
class AdapterOrigin:
    """The weights that an adapter belongs to, and how it was made."""

    base: str
    """Folder or hub name of the frozen weights."""
    base_checksum: str
    """Checksum of the frozen weights."""
    settings: Any
    """The `LoraConfig` of peft."""


def has_adapter(model: nn.Module) -> bool:
    """Return True if the model's weights are frozen and an adapter is trained."""
    return hasattr(model, ORIGIN)


def origin_of(model: nn.Module) -> AdapterOrigin:
    """Return the origin of the model's adapter. Raises AttributeError if it has none."""
    origin: AdapterOrigin = getattr(model, ORIGIN)
    return origin


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the factors A and B of all layers by name, the parameters themselves; empty without an adapter."""
    if not has_adapter(model):
        return {}
    return {name: own for name, own in model.named_parameters() if FACTOR_A in name or FACTOR_B in name}


def weight_names(model: nn.Module) -> Iterator[str]:
    """Yield the names of `named_weights`."""
    adapter = adapter_weights(model)
    return (plain_name(name) if adapter else name for name, _ in model.named_parameters() if name not in adapter)


def plain_name(name: str) -> str:
    """Return the name that a frozen weight has in a model without an adapter.

    >>> plain_name("h.0.attn.c_attn.base_layer.weight")
    'h.0.attn.c_attn.weight'
    """
    return name.replace(FROZEN, ".")


@torch.no_grad()
def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and value of every weight of the model with its adapter merged, in the order of its parameters.

    Each merged weight is made when it is asked for, so that one at a time need be held. Without an adapter these are
    the parameters.
    """
    adapter, layers = adapter_weights(model), _adapted_layers(model)
    for name, own in model.named_parameters():
        if name not in adapter:
            layer = layers.get(name.removesuffix(f"{FROZEN}weight"))
            value = own.detach()
            merged = value if layer is None else value + layer.get_delta_weight(ADAPTER)
            yield plain_name(name) if adapter else name, merged


def merged_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the `state_dict` of the model with its adapter merged. Without an adapter this is its `state_dict`."""
    state, adapter = model.state_dict(), adapter_weights(model)
    if not adapter:
        return state
    frozen = {plain_name(name): value for name, value in state.items() if name not in adapter}
    return frozen | dict(named_weights(model))


def copy_sharing_frozen(model: nn.Module) -> Any:
    """Return a copy of the model. If it has an adapter, the frozen weights are those of `model`, and take no memory."""
    shared = (*model.parameters(), *model.buffers()) if has_adapter(model) else ()
    return copy.deepcopy(model, {id(tensor): tensor for tensor in shared if not tensor.requires_grad})


def without_adapter(model: nn.Module) -> Any:
    """Take the adapter out of the model, which then has its frozen weights alone, and return it."""
    for name, layer in _adapted_layers(model).items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer.get_base_layer())
    if has_adapter(model):
        delattr(model, ORIGIN)
    return model


def load_adapter_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy values into the factors A and B. Raises ValueError unless every factor has a value of its shape."""
    own = adapter_weights(model)
    if own.keys() != weights.keys():
        first = min(own.keys() ^ weights.keys())
        raise ValueError(f"expected the weights of an adapter of the same layers, got others: {first}")
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != weights[name].shape:
                shapes = f"shape {tuple(parameter.shape)}, got {tuple(weights[name].shape)}"
                raise ValueError(f"model.lora.rank: expected {name} of {shapes}")
            parameter.copy_(weights[name])


def adapter_scaling(model: nn.Module) -> float:
    """Return the factor of B·A, alpha / rank, which all layers share."""
    [scaling] = {layer.scaling[ADAPTER] for layer in _adapted_layers(model).values()}
    return float(scaling)


def _adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers that have an adapter, by name."""
    if not has_adapter(model):
        return {}
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}

"""Low-rank adapters by peft (LoRA, arXiv 2106.09685): a few weights are trained, the model's own stay as they are.

The adapters are put into the model in place, so that generators and the packed pass use it like any other. Beside it
stands the model without them: another tree of modules over the same tensors, which is the reference of the KL.
"""

import copy
import importlib.util
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import UserError
from .weights import to_cpu

ALL_LINEAR = "all-linear"
INSIDE = "base_layer."


@dataclass(slots=True)
class LoraConfig:
    """The weights that get an adapter, and the adapter's size."""

    rank: int = 0
    """Rank of each adapter; 0: all weights of the model are trained. Needs the extra `lora`."""
    alpha: float = 32.0
    """An adapter's output is multiplied by alpha / rank."""
    targets: str = ALL_LINEAR
    """The modules that get an adapter: all linear ones but the output layer, or names, with commas between."""

    def __post_init__(self) -> None:
        if self.rank < 0 or not 0 < self.alpha < float("inf") or not self.targets:
            raise ValueError(f"model.lora: expected rank from 0, alpha above 0 and targets, got {self}")


def add_adapters(model: PreTrainedModel, config: LoraConfig) -> PreTrainedModel:
    """Put untrained adapters into the model, which leave its outputs as they are, and freeze its own weights.

    Returns the model without them, over the same tensors. Raises UserError without peft, or for targets there are not.
    """
    if importlib.util.find_spec("peft") is None:
        raise UserError("model.lora.rank: expected peft to be installed: pip install peft")
    import peft

    model.requires_grad_(False)
    tensors = [*model.parameters(), *model.buffers()]
    plain = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    targets = config.targets if config.targets == ALL_LINEAR else config.targets.split(",")
    settings = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=targets)  # type: ignore[arg-type]
    try:
        # It warns about GPT-2's layers, which it then handles by itself.
        with warnings.catch_warnings(action="ignore"):
            peft.inject_adapter_in_model(settings, model)
    except ValueError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        message = f"model.lora.targets: expected modules of this model, got {config.targets}: {reason}"
        raise UserError(message) from error
    return plain


def merged_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of the model with its adapters merged into them, by the names that they have without adapters."""
    deltas = _deltas(model)
    for name, parameter in model.named_parameters():
        if name in deltas:
            yield _plain(name), parameter.detach() + deltas[name]
        elif ".lora_" not in name:
            yield _plain(name), parameter.detach()


def merged_state_dict(model: nn.Module, keep: bool = True) -> dict[str, Tensor]:
    """The model's `state_dict` with adapters merged: tensors on the CPU, tied ones as one tensor."""
    merged = dict(merged_parameters(model))
    owners = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    first = {id(parameter): _plain(name) for name, parameter in model.named_parameters()}
    copies: dict[int, Tensor] = {}
    for tensor in owners.values():
        if id(tensor) not in copies:
            copies[id(tensor)] = to_cpu(merged.get(first.get(id(tensor), ""), tensor), keep)
    return {_plain(name): copies[id(owners[name])] for name in model.state_dict() if ".lora_" not in name}


@torch.no_grad()
def _deltas(model: nn.Module) -> dict[str, Tensor]:
    """The update of each adapted weight, by the weight's full name."""
    deltas: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        layer: Any = module
        if hasattr(module, "get_delta_weight") and hasattr(module, "base_layer"):
            for adapter in layer.active_adapters:
                deltas[f"{name}.{INSIDE}weight"] = layer.get_delta_weight(adapter)
    return deltas


def _plain(name: str) -> str:
    return name.replace(INSIDE, "")

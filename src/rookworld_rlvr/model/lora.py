"""LoRA by peft (arXiv 2106.09685): its options, adapters in a model, and folders with an adapter.

peft is imported only if an adapter is trained or read. What a model with an adapter does is in `model.adapter`.
"""

import importlib.util
import json
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils.peft_utils import find_adapter_config_file

from ..errors import UserError
from ..files import write_text
from .adapter import ADAPTER, ORIGIN, AdapterOrigin, adapter_weights, origin_of
from .sharded import transformer_blocks
from .weights import checksum, to_cpu

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Files of which a folder with weights of its own has one.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
# peft's prefix of the names in a file.
IN_FILE = "base_model.model."
LINEAR = (nn.Linear, Conv1D)


@dataclass(slots=True)
class LoRAConfig:
    """Low-rank adapters of linear layers, in place of training all weights (LoRA, by the library peft)."""

    rank: int = 0
    """Rank of the adapters, whose weights alone are trained. 0: none, all weights of the model are trained."""
    alpha: float = 32.0
    """Scale of the adapters: each adds alpha / rank times the product of its two matrices to a layer's weight."""
    targets: list[str] = field(default_factory=list)
    """Names of the layers that get an adapter, such as [q_proj,v_proj]. Empty: all linear layers of the blocks."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"model.lora.rank: expected 0 or more, got {self.rank}")
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"model.lora.alpha: expected a finite number above 0, got {self.alpha}")


def require_no_adapter(config: LoRAConfig) -> None:
    """Raise UserError if an adapter is to be trained: with weights in shards it is not supported."""
    if config.rank:
        raise UserError(f"model.lora.rank: expected 0 with distributed=fsdp2 (ddp trains adapters), got {config.rank}")


def add_adapter(model: PreTrainedModel, config: LoRAConfig, base: str) -> None:
    """Freeze the weights of the model, which come from `base`, and put an adapter into it, in place.

    A is drawn from torch's random state, and B is 0, so the model still computes the same. Raises UserError.
    """
    _require_peft("model.lora.rank")
    from peft import LoraConfig, inject_adapter_in_model

    targets = _targets(model, config.targets)
    settings = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        fan_in_fan_out=isinstance(model.get_submodule(targets[0]), Conv1D),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )
    origin = AdapterOrigin(base, checksum(model), settings)
    with warnings.catch_warnings(action="ignore"):
        inject_adapter_in_model(settings, model)
    setattr(model, ORIGIN, origin)


def save_adapter(model: nn.Module, folder: Path) -> None:
    """Write the model's adapter as peft does, without the weights that it belongs to."""
    settings = origin_of(model).settings.to_dict() | {"inference_mode": True}
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in settings.items()}
    write_text(folder / ADAPTER_CONFIG, json.dumps(plain, indent=2, sort_keys=True))
    weights = to_cpu(adapter_weights(model))
    # A file has one adapter, so its name is left out.
    names = {name: IN_FILE + name.replace(f".{ADAPTER}.", ".") for name in weights}
    save_file(
        {names[name]: value.contiguous() for name, value in weights.items()},
        folder / ADAPTER_WEIGHTS,
        metadata={"format": "pt"},
    )


def adapter_base(source: str) -> str | None:
    """Return the base model of the adapter at `source`, a folder or a hub name; None if there is no adapter.

    Raises UserError for a folder that also has weights, because those may already contain the adapter, and for a base
    model that cannot be found.
    """
    found = find_adapter_config_file(source)
    if found is None:
        return None
    if any((Path(source) / name).is_file() for name in WEIGHTS):
        raise UserError(
            f"model.path: expected weights or an adapter, got both in {source}; without {ADAPTER_CONFIG} the weights "
            "are loaded alone, and an adapter in a folder of its own is merged into its base model"
        )
    settings = json.loads(Path(found).read_text(encoding="utf-8"))
    base = str(settings.get("base_model_name_or_path") or "")
    for folder in (Path(os.path.expanduser(base)), Path(source) / base):
        # Another folder may have the name by chance.
        is_model = any((folder / name).is_file() for name in ("config.json", ADAPTER_CONFIG))
        if base and is_model and not (Path(source).is_dir() and folder.samefile(source)):
            return str(folder)
    if base.count("/") == 1 and not base.startswith((".", "/", "~")):
        return base
    raise UserError(
        f"model.path: expected the base model of the adapter {source} at the base_model_name_or_path of its "
        f"{ADAPTER_CONFIG}, got {base!r}, which is no folder of a model here"
    )


def merge_adapter(model: PreTrainedModel, source: str) -> Any:
    """Return the model with the adapter at `source`, of any kind that peft can merge, merged into its weights.

    Raises UserError if peft is missing, and errors of many kinds for an adapter that does not fit.
    """
    _require_peft("model.path")
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    settings: Any = PeftConfig.from_pretrained(source)
    # It decides the state of training alone.
    settings.inference_mode = False
    with warnings.catch_warnings(action="ignore"):
        adapted: Any = get_peft_model(model, settings)
    weights = load_peft_weights(source, device="cpu")
    expected = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    if expected.keys() != weights.keys():
        raise ValueError(f"weights of the adapter missing or unknown: {min(expected.keys() ^ weights.keys())}")
    set_peft_model_state_dict(adapted, weights)
    return adapted.merge_and_unload(safe_merge=True)


def _require_peft(option: str) -> None:
    """Raise UserError, with the command that installs peft, if it is not installed. It is not imported."""
    if importlib.util.find_spec("peft") is None:
        raise UserError(f"{option}: expected peft to be installed for an adapter: pip install 'rookworld-rlvr[lora]'")


def _targets(model: PreTrainedModel, wanted: Sequence[str]) -> list[str]:
    """Return the full names of the layers that get an adapter. Raises UserError for an unknown name."""
    inside = {id(module) for block in transformer_blocks(model) for module in block.modules()}
    linear = [name for name, own in model.named_modules() if id(own) in inside and isinstance(own, LINEAR)]
    known = sorted({_leaf(name) for name in linear})
    unknown = [name for name in wanted if name not in known]
    if unknown or not linear:
        raise UserError(
            f"model.lora.targets: expected names of linear layers in the blocks of {type(model).__name__}, of "
            f"{', '.join(known) or 'which there are none'}, got {', '.join(unknown) or 'none'}"
        )
    return [name for name in linear if not wanted or _leaf(name) in wanted]


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]

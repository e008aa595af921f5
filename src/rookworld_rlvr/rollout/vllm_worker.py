"""Extension of vLLM's worker that loads the trainer's weights and reads back those that it samples with.

vLLM loads this class by name into its worker; nothing here imports vllm. Written for vLLM 0.32 and one worker, without
tensor or pipeline parallelism.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..model.weights import checksum_of

STALE_HEAD = "stale lm_head"
# Weights of GPT-2 that transformers stores transposed.
CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


class WorkerExtension:
    """Mixin of vLLM's worker, whose attributes it uses."""

    model_runner: Any
    vllm_config: Any

    def rookworld_load(self, named: dict[str, Tensor]) -> None:
        """Load weights given by transformers' names."""
        with torch.inference_mode():
            self.model_runner.reload_weights(weights_iterator=iter(named.items()))
            model = self.model_runner.get_model()
            head = getattr(model, "lm_head", None)
            if _is_tied(model, named) and head is not None:
                # vLLM does not update the packed copy of a tied head.
                head.quant_method.process_weights_after_loading(head)

    def rookworld_checksum(self, names: Sequence[str]) -> str:
        """Return the `checksum` of these weights as the kernels see them, or a text if one cannot be read back."""
        model, dtype = self.model_runner.get_model(), self.vllm_config.model_config.dtype
        try:
            with torch.inference_mode():
                # Some kernels hold bf16 biases as float32, with the same values.
                checksum = checksum_of((name, held_weight(model, name).to(dtype)) for name in names)
                head_is_current = not _is_tied(model, names) or _tied_head_is_current(model, names)
        except (AttributeError, KeyError) as error:
            return f"unreadable: {error}"
        return checksum if head_is_current else f"{checksum}, {STALE_HEAD}"


def held_weight(model: nn.Module, name: str) -> Tensor:
    """Return a weight under transformers' name and in its layout, as the kernel that samples sees it.

    Raises KeyError or AttributeError for an unknown layout.
    """
    path, _, kind = name.rpartition(".")
    module, rows = _find(model, path)
    whole: Tensor = _kernel_weight(module) if kind == "weight" else getattr(module, kind)
    value = whole[rows]
    return value.t() if kind == "weight" and name.endswith(CONV1D) and _is_gpt2(model) else value


def _find(model: nn.Module, path: str) -> tuple[nn.Module, slice]:
    """Return the module of this name and all its rows, or the packed module that contains it and its part's rows."""
    modules = dict(model.named_modules())
    if path in modules:
        return modules[path], slice(getattr(modules[path], "org_vocab_size", None))
    parent, _, leaf = path.rpartition(".")
    for packed, parts in getattr(model, "packed_modules_mapping", {}).items():
        module = modules.get(f"{parent}.{packed}")
        if leaf in parts and module is not None:
            start = sum(module.output_sizes[: parts.index(leaf)])
            return module, slice(start, start + module.output_sizes[parts.index(leaf)])
    raise KeyError(path)


def _kernel_weight(module: nn.Module) -> Any:
    """Return a layer's weight (out, in). A CPU packs it, so it is read as the layer's exact output for unit vectors."""
    looks_up = type(module).__name__ == "VocabParallelEmbedding"
    if looks_up or not hasattr(module, "cpu_linear"):
        return module.weight
    layer: Any = module
    width = getattr(layer, "input_size_per_partition", None) or layer.embedding_dim
    return layer.quant_method.apply(layer, torch.eye(width, dtype=layer.weight.dtype), None).t()


def _is_gpt2(model: nn.Module) -> bool:
    return bool(model.config.model_type == "gpt2")  # type: ignore[union-attr]


def _is_tied(model: nn.Module, names: Iterable[str]) -> bool:
    return "lm_head.weight" not in names and hasattr(model, "lm_head")


def _tied_head_is_current(model: nn.Module, names: Iterable[str]) -> bool:
    """Return True if the head's kernel has the weights of the embedding that it is tied to."""
    head = held_weight(model, "lm_head.weight")
    paths = (name.removesuffix(".weight") for name in names if name.endswith(".weight"))
    embeddings = (path for path in paths if type(_find(model, path)[0]).__name__ == "VocabParallelEmbedding")
    return any(torch.equal(held_weight(model, f"{path}.weight"), head) for path in embeddings)

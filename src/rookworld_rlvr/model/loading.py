"""Loading of the trained model: its options, and the checks of what was loaded."""

import os
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from ..errors import UserError, first_line
from ..files import HEAD_BYTES, LFS_POINTER, asset, follow, foreign_content
from .batch import collate
from .device import Precision, is_accelerator, resolve_precision
from .lora import ADAPTER_CONFIG, LoRAConfig, adapter_base, add_adapter, merge_adapter
from .packed import pack
from .policy import Policy, evaluation_mode
from .shared_prefix import checkpoint_contexts, sees_all_before

TINY = "tiny"
# A Git LFS pointer has fewer bytes.
POINTER_BYTES = 1024
# Largest difference between the model's own logits and its head applied to its last hidden states, as a share of the
# largest logit. The logits are enlarged to TRIED_LOGIT for it: a cap changes small ones little.
HEAD_BOUND, TRIED_LOGIT = 1e-3, 30.0
# Largest difference between the states of packed and of padded rows, as a share of the largest state.
PACKING_BOUND = 1e-3
# Rows with which packing is tried: index of the prompt, number of its tokens, number of the completion's tokens.
TRIED_ROWS = ((0, 5, 4), (0, 5, 2), (1, 3, 6), (1, 3, 1))

# Dropout of a loaded model, whatever its config says (GPT-2's is 0.1). With dropout the policy would differ from the
# reference and from the sampler before the first update.
DROPOUT = 0.0


@dataclass(slots=True)
class ModelSourceConfig:
    """The model."""

    path: str = TINY
    """Folder in Hugging Face's format, hub name (owner/name), or `tiny` for the model that ships with the package. An
    adapter of peft is merged into the base model that it names."""


@dataclass(slots=True)
class ModelConfig(ModelSourceConfig):
    """The model that is trained."""

    activation_checkpointing: bool = False
    """Keep only each block's input, and recompute the block in backward, to save memory."""
    lora: LoRAConfig = field(default_factory=LoRAConfig)


def tiny_model_folder() -> Path:
    """Return the folder of the model that ships with the package."""
    return asset("tiny")


def is_model_folder(folder: Path) -> bool:
    """Return True if the folder has a model in Hugging Face's format, or an adapter of peft."""
    return any((folder / name).is_file() for name in ("config.json", ADAPTER_CONFIG))


def load_policy(config: ModelConfig, device: torch.device, precision: Precision) -> Policy:
    """Load the model in float32, and its tokenizer. Raises UserError with one line if they cannot be loaded."""
    source = _source(config.path)
    _check_source(source)
    # The problems that transformers warns about are checked here, and its progress bars would hide our message.
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = _load_tokenizer(source)
        model = _load_model(source, device)
    except UserError:
        raise
    # transformers reads the user's files, and damaged ones raise errors of any kind.
    except Exception as error:
        reason = first_line(error)
        raise UserError(f"model.path: expected a causal language model, got {source}: {reason}") from error
    # transformers 5 silently builds an empty tokenizer if its files are missing.
    if len(tokenizer) < 2 or tokenizer.eos_token_id is None:
        raise UserError(f"model.path: expected a tokenizer with a vocabulary and an end token in {source}")
    vocabulary = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > vocabulary:
        raise UserError(
            f"model.path: expected a model with as many tokens as its tokenizer, {len(tokenizer)}, got {vocabulary} "
            f"in {source}"
        )
    _set_dropout(model)
    if config.lora.rank:
        add_adapter(model, config.lora, source)
    precision, model = resolve_precision(precision, device), model.to(device).train()
    _check_head(model, source)
    policy = Policy(model, tokenizer, precision, device)
    # Rows are packed if a prompt's states can be shared: a prompt is computed once for all its completions.
    policy.shares = policy.packs = shares_prompts(policy)
    if config.activation_checkpointing:
        recompute_blocks(model)
    return policy


def _source(path: str) -> str:
    """Return the folder or hub name of a model's path."""
    if path == TINY:
        return str(tiny_model_folder())
    source = os.path.expanduser(path)
    # A Path has no "./" before it, by which a folder differs from a hub name.
    followed = follow(source)
    return source if followed == Path(source) else str(followed)


def _check_source(source: str) -> None:
    looks_local = source.startswith((".", "/", "~")) or source.count("/") != 1 or Path(source).is_dir()
    if looks_local and not is_model_folder(Path(source)):
        models = Path(source) / "checkpoints"
        hint = f": a run's folder, whose models are in {models}" if models.is_dir() else ""
        wanted = "a folder with a config.json or a hub name (owner/name)"
        raise UserError(f"model.path: expected {wanted}, got {source!r}{hint}")


def _refuse_pointers(source: str) -> None:
    """Raise UserError if a file of a model's folder is a Git LFS pointer, which a clone without LFS has instead."""
    folder = Path(source)
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file.is_file() and file.stat().st_size < POINTER_BYTES:
            with file.open("rb") as begun:
                if foreign_content(begun.read(HEAD_BYTES)) == LFS_POINTER:
                    raise UserError(f"model.path: expected a model, got {file}: {LFS_POINTER}")


def _load_tokenizer(source: str) -> Any:
    """Return the tokenizer at `source`, or that of the base model for an adapter in a folder without a tokenizer."""
    _refuse_pointers(source)
    folder, base = Path(source), adapter_base(source)
    if base is not None and folder.is_dir() and not (folder / "tokenizer_config.json").is_file():
        return _load_tokenizer(base)
    return AutoTokenizer.from_pretrained(source, trust_remote_code=False)


def _load_model(source: str, device: torch.device) -> Any:
    """Return the model at `source`; an adapter is merged into its base model."""
    _refuse_pointers(source)
    base = adapter_base(source)
    return _load_weights(source, device) if base is None else merge_adapter(_load_model(base, device), source)


def _load_weights(source: str, device: torch.device) -> Any:
    loaded = AutoConfig.from_pretrained(source, trust_remote_code=False)
    _set_noise(loaded)
    loaded_model: Any = AutoModelForCausalLM.from_pretrained(
        source,
        config=loaded,
        dtype=torch.float32,
        # On a CPU the fused kernel's backward is slower at these lengths.
        attn_implementation="sdpa" if is_accelerator(device) else "eager",
        output_loading_info=True,
        # Otherwise transformers raises an error of many lines.
        ignore_mismatched_sizes=True,
        trust_remote_code=False,
    )
    model, info = loaded_model
    if wrong := [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]:
        raise ValueError(f"weights missing or misshapen: {', '.join(sorted(map(str, wrong))[:3])}")
    return model


def _set_noise(config: PreTrainedConfig) -> None:
    """Set all dropout probabilities of a model's config, whatever their names, and remove the noise of its router."""
    for key, value in list(vars(config).items()):
        if type(value) in (int, float):
            if "drop" in key:
                setattr(config, key, DROPOUT)
            elif "jitter" in key:
                setattr(config, key, 0.0)


def _set_dropout(model: nn.Module) -> None:
    """Set every dropout module's probability, even if the model's config has another name for it."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = DROPOUT


@torch.no_grad()
def _check_head(model: PreTrainedModel, source: str) -> None:
    """Raise UserError unless the model's logits are its output layer applied to its last hidden states.

    Some models scale or cap their logits afterwards. Sampler and trainer leave that out, so they would train another
    distribution than the one that the saved model has.
    """
    # Several tokens, because the vector of a padding token may be 0.
    vocabulary: Any = model.get_input_embeddings().num_embeddings
    tokens_BT = torch.arange(min(16, vocabulary), device=model.device)[None]
    head: Any = model.get_output_embeddings()
    with evaluation_mode(model):
        states = getattr(model.base_model(input_ids=tokens_BT, use_cache=False), "last_hidden_state", None)
        if states is None:
            raise UserError(
                "model.path: expected a causal language model whose base model returns its last hidden states, got "
                f"{type(model).__name__} in {source}"
            )
        factor = TRIED_LOGIT / head(states).abs().max()
        with head.register_forward_hook(lambda _module, _inputs, logits: factor * logits):
            own, plain = model(input_ids=tokens_BT, use_cache=False).logits, head(states)
    gap = float((own - plain).abs().max()) / TRIED_LOGIT
    # Not for NaN: the weights of a model that diverged are named elsewhere.
    if gap > HEAD_BOUND:
        raise UserError(
            "model.path: expected a model whose logits are its output layer applied to its last hidden states, got one "
            f"that changes them afterwards, by up to {gap:.1%}, in {source}"
        )


@torch.no_grad()
def shares_prompts(policy: Policy) -> bool:
    """Return True if completions can share a computed prompt. Two short passes find this out.

    Packed rows must have the same states as padded rows. They do not if a model passes other arguments to its attention
    function, or if its values have another width than its keys; then the packed pass usually raises an error.
    """
    if not sees_all_before(policy.model):
        return False
    vocabulary: Any = policy.model.get_input_embeddings().num_embeddings
    rows = [
        (_tokens(1 + prompt, length, vocabulary), _tokens(11 + row, completion, vocabulary))
        for row, (prompt, length, completion) in enumerate(TRIED_ROWS)
    ]
    batch = collate(rows, pad_id=policy.pad_id, device=policy.device)
    batch = replace(batch, prompts_B=torch.tensor([prompt for prompt, _, _ in TRIED_ROWS], device=policy.device))
    with evaluation_mode(policy.model):
        padded = policy.trained_states(batch)
        try:
            packed = policy.trained_states(pack(batch))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError):
            return False
    # NaN weights pass here. The preflight checks find them.
    return not float((packed - padded).abs().max() / padded.abs().max()) > PACKING_BOUND


def _tokens(first: int, count: int, vocabulary: int) -> tuple[int, ...]:
    return tuple((first + 7 * i) % vocabulary for i in range(count))


def recompute_blocks(model: PreTrainedModel) -> None:
    """Make backward recompute each block (arXiv 1604.06174). Raises UserError if the model does not support it."""
    if not model.supports_gradient_checkpointing:
        raise UserError(f"model.activation_checkpointing: {type(model).__name__} does not support it")
    model.activation_checkpointing_enable(
        activation_checkpointing_kwargs={"use_reentrant": False, "context_fn": partial(checkpoint_contexts, model)}
    )

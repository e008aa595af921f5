"""The trained model: loading it, and its log-probs of a batch."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from ..errors import UserError, first_line
from ..files import asset
from ..objective import Head, TokenStatistics, sequence_kl, token_statistics
from .batch import Batch, micro_batch_indices
from .blocks import compile_blocks, recompute_blocks, require_compiler
from .device import Precision, autocast, is_accelerator, resolve_precision
from .packed import Packed, pack
from .sharded import is_sharded, run_forward, unshard
from .shared_prefix import can_share, sharing, states
from .world import World

TINY = "tiny"
# Maximum number of a micro-batch's logits to keep for backward, 64 MiB in float32; more are recomputed.
KEPT_LOGITS = 2**24
DROPOUT_KEYS = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout", "attention_dropout", "hidden_dropout")


class Attention(StrEnum):
    """The attention kernel."""

    auto = "auto"
    """eager on a CPU, where the fused kernel's backward is slower at these lengths; sdpa on CUDA."""
    eager = "eager"
    sdpa = "sdpa"


@dataclass(slots=True)
class ModelSourceConfig:
    """The model and its attention kernel."""

    path: str = TINY
    """Folder in Hugging Face's format, hub name, or `tiny` for the model that ships with the package."""
    attention: Attention = Attention.auto


@dataclass(slots=True)
class ModelConfig(ModelSourceConfig):
    """The model that is trained."""

    dropout: float | None = 0.0
    """Dropout probability that replaces the one in the model's own config (GPT-2's is 0.1); null keeps the latter. The
    preflight checks refuse a model with dropout."""
    packing: bool = True
    """Compute a prompt once for all its completions, without padding. Rows are padded anyway if the model's attention
    cannot be replaced, or does not see all earlier tokens."""
    activation_checkpointing: bool = False
    """Keep only each block's input, and recompute the block in backward, to save memory."""
    compile: bool = False
    """Train with blocks compiled by `torch.compile`. Needs packed rows and a C++ compiler. The first run on a machine
    compiles for a minute or two; later runs read the code from disk."""

    def __post_init__(self) -> None:
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout: expected from 0 to below 1 or null, got {self.dropout}")


@dataclass(slots=True)
class Policy:
    """A causal language model with its tokenizer, in training mode.

    The body runs once for all positions. The head runs chunk by chunk, only at positions that predict a trained token.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    precision: Precision = Precision.fp32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    packs: bool = False
    """True if rows are packed (see `model.packed`); otherwise they are padded on the right."""

    @property
    def sharded(self) -> bool:
        """True if this rank holds only its share of the weights, see `model.sharded`."""
        return is_sharded(self.model)

    @property
    def pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(self.tokenizer.eos_token_id if pad is None else pad)

    @property
    def head(self) -> Head:
        head: Head = self.model.get_output_embeddings()
        return head

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass in the policy's precision."""
        return autocast(self.device, self.precision)

    def trained_states(self, batch: "Batch | Packed") -> Tensor:
        """Return the last hidden states (M, E) that predict the batch's trained tokens, in the order of its mask."""
        if isinstance(batch, Packed):
            with sharing(self.model):
                return states(self.model, batch.tokens_1N, batch.positions_1N, batch.layout)[0][batch.states_M]
        output = self.model.base_model(
            input_ids=batch.tokens_BT,
            attention_mask=batch.attention_BT,
            position_ids=batch.positions_BT,
            use_cache=False,
        )
        trained: Tensor = output.last_hidden_state[batch.loss_mask_BT]
        return trained

    def statistics(
        self,
        batch: Batch,
        *,
        temperature: float,
        reference: "Policy | None" = None,
        entropy_gradient: bool = False,
        kl_gradient: bool = False,
    ) -> TokenStatistics:
        """Return log-probs, entropy and, with a reference, its log-probs and the exact KL, each (N,).

        N is the number of True values in `batch.loss_mask_BT`, whose order the results have; `spread` puts them back
        into (B, T). The entropy and the exact KL have a gradient only if requested.
        """
        inputs = pack(batch) if self.packs else batch

        def compute() -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
            reference_hidden = None
            if reference is not None:
                with torch.no_grad():
                    reference_hidden = run_forward(reference.model, lambda: reference.trained_states(inputs))
            statistics = token_statistics(
                self.trained_states(inputs),
                batch.targets_BT()[batch.loss_mask_BT],
                self.head,
                temperature=temperature,
                reference_hidden=reference_hidden,
                reference_head=reference.head if reference else None,
                entropy_gradient=entropy_gradient,
                kl_gradient=kl_gradient,
                recompute=batch.trained_tokens() * self.model.config.vocab_size > KEPT_LOGITS,
            )
            return statistics.logprobs, statistics.entropy, statistics.ref_logprobs, statistics.kl_exact

        with self.autocast():
            return TokenStatistics(*run_forward(self.model, compute))

    @torch.no_grad()
    def token_table(
        self,
        batch: Batch,
        *,
        micro_batch_size: int,
        temperature: float,
        reference: "Policy | None" = None,
        world: World | None = None,
    ) -> "TokenTable":
        """Return log-probs of a whole batch, and the reference's: (B, T), 0 where not trained, no gradient.

        The batch is divided into the same micro-batches as in training, so that equal weights give equal numbers. The
        ranks of a `world` divide the micro-batches among themselves.
        """
        world = world or World()
        names = ["logprobs"] if reference is None else ["logprobs", "ref_logprobs"]
        pieces = micro_batch_indices(batch, micro_batch_size, by_prompt=self.packs)

        def of_piece(rows: Tensor) -> list[Tensor]:
            micro = batch.select(rows, int(batch.attention_BT[rows].sum(1).max()))
            statistics = self.statistics(micro, temperature=temperature, reference=reference)
            return [spread(getattr(statistics, name), micro.loss_mask_BT) for name in names]

        with unshard(self.model, *([] if reference is None else [reference.model])):
            values_by_piece = world.gather_in_order(
                lambda: [of_piece(rows) for rows in world.share(pieces)], "log-probs"
            )
        tables = {name: torch.zeros(batch.tokens_BT.shape, device=self.device) for name in names}
        for rows, values in zip(pieces, values_by_piece, strict=True):
            for table, values_bt in zip(tables.values(), values, strict=True):
                table[rows, : values_bt.shape[1]] = values_bt.to(self.device)
        return TokenTable(batch.loss_mask_BT, tables["logprobs"], tables.get("ref_logprobs"))


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Log-probs of a batch's tokens under a policy and a reference; nat, (B, T), no gradient."""

    loss_mask_BT: Tensor
    logprobs_BT: Tensor
    ref_logprobs_BT: Tensor | None

    def sequence_kl_B(self) -> Tensor:
        """Return the sum of each completion's sampled log-ratios to the reference: k1 of the sequence, nat."""
        if self.ref_logprobs_BT is None:
            raise ValueError("sequence_kl_B: expected a table made with a reference, got one without")
        return sequence_kl(self.logprobs_BT, self.ref_logprobs_BT, self.loss_mask_BT)


def spread(values_N: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """Return the trained tokens' values at their places in (B, T), 0 elsewhere; keeps the gradient."""
    empty_BT = torch.zeros(loss_mask_BT.shape, dtype=values_N.dtype, device=values_N.device)
    return empty_BT.masked_scatter(loss_mask_BT, values_N)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode within the context; afterwards restore its mode (training or evaluation)."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def tiny_model_folder() -> Path:
    """Return the folder of the model that ships with the package."""
    return asset("tiny")


def load_policy(config: ModelConfig, device: torch.device, precision: Precision) -> Policy:
    """Load the model in float32, and its tokenizer. Raises UserError with one line if they cannot be loaded."""
    source = str(tiny_model_folder()) if config.path == TINY else config.path
    _check_source(source)
    # The problems that transformers warns about are checked here, and its progress bars would hide our message.
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model = _load_model(config, source, device)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
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
    _set_dropout(model, config.dropout)
    precision, model = resolve_precision(precision, device), model.to(device).train()
    packs = config.packing and can_share(model)
    if config.activation_checkpointing:
        recompute_blocks(model)
    policy = Policy(model, tokenizer, precision, device, packs=packs)
    if config.compile:
        compile_policy(policy)
    return policy


def _check_source(source: str) -> None:
    looks_local = source.startswith((".", "/", "~")) or source.count("/") != 1
    if looks_local and not (Path(source) / "config.json").is_file():
        raise UserError(f"model.path: expected a folder with a config.json or a hub name, got {source!r}")


def _load_model(config: ModelConfig, source: str, device: torch.device) -> Any:
    loaded = AutoConfig.from_pretrained(source, trust_remote_code=False)
    for key in DROPOUT_KEYS:
        if config.dropout is not None and hasattr(loaded, key):
            setattr(loaded, key, config.dropout)
    kernel = config.attention
    if kernel is Attention.auto:
        kernel = Attention.sdpa if is_accelerator(device) else Attention.eager
    loaded_model: Any = AutoModelForCausalLM.from_pretrained(
        source,
        config=loaded,
        dtype=torch.float32,
        attn_implementation=kernel.value,
        output_loading_info=True,
        trust_remote_code=False,
    )
    model, info = loaded_model
    if info["missing_keys"] or info["mismatched_keys"]:
        raise ValueError(f"weights missing or misshapen: {sorted(map(str, info['missing_keys']))[:3]}")
    return model


def compile_policy(policy: Policy) -> None:
    """Compile the blocks for packed rows. Raises UserError without a compiler, or if rows are not packed."""
    require_compiler("model.compile")
    if not policy.packs:
        raise UserError("model.compile: expected a model whose rows are packed (model.packing), got one that pads them")
    compile_blocks(policy.model)


def _set_dropout(model: nn.Module, probability: float | None) -> None:
    """Set every dropout module's probability, even if the model's config has another name for it."""
    for module in model.modules():
        if probability is not None and isinstance(module, nn.Dropout):
            module.p = probability

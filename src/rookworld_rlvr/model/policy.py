"""The trained model, and its log-probs of a batch."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..objective import Head, ReferenceStates, StatisticsOptions, TokenStatistics, token_statistics
from .batch import TokenBatch, micro_batch_indices
from .device import Precision, autocast, is_accelerator
from .packed import Packed, pack
from .sharded import is_sharded, run_forward, unshard
from .shared_prefix import sharing, states
from .world import World

# Maximum number of a micro-batch's logits to keep for backward, 64 MiB in float32; more are recomputed.
KEPT_LOGITS = 2**24


@dataclass(slots=True)
class Policy:
    """A causal language model with its tokenizer, in training mode.

    The body runs once for all positions. The head runs chunk by chunk, only at positions that predict a trained token.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    precision: Precision = Precision.fp32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    shares: bool = False
    """True if completions can share a computed prompt, see `model.loading.shares_prompts`."""
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

    def trained_states(self, batch: "TokenBatch | Packed") -> Tensor:
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
        batch: TokenBatch,
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
        options = StatisticsOptions(
            temperature=temperature,
            entropy_gradient=entropy_gradient,
            kl_gradient=kl_gradient,
            recompute=batch.trained_tokens() * self.model.config.vocab_size > KEPT_LOGITS,
        )

        def compute() -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
            states_of_reference = None
            if reference is not None:
                with torch.no_grad():
                    hidden = run_forward(reference.model, lambda: reference.trained_states(inputs))
                states_of_reference = ReferenceStates(hidden, reference.head)
            statistics = token_statistics(
                self.trained_states(inputs),
                batch.targets_BT()[batch.loss_mask_BT],
                self.head,
                reference=states_of_reference,
                options=options,
            )
            return statistics.logprobs, statistics.entropy, statistics.ref_logprobs, statistics.kl_exact

        # On a CPU several threads may compute statistics at a time; see `device.autocast`.
        with autocast(self.device, self.precision, keep_casts=is_accelerator(self.device)):
            return TokenStatistics(*run_forward(self.model, compute))

    @torch.no_grad()
    def logprob_table(
        self, batch: TokenBatch, *, micro_batch_size: int, temperature: float, world: World | None = None
    ) -> Tensor:
        """Return the log-probs of a whole batch's tokens: nat, (B, T), 0 where not trained, no gradient.

        The batch is divided into the same micro-batches as in training, so that equal weights give equal numbers. The
        ranks of a `world` divide the micro-batches among themselves.
        """
        world = world or World()
        pieces = micro_batch_indices(batch, micro_batch_size, by_prompt=self.packs)

        def of_piece(rows: Tensor) -> Tensor:
            micro = batch.select(rows, int(batch.attention_BT[rows].sum(1).max()))
            return spread(self.statistics(micro, temperature=temperature).logprobs, micro.loss_mask_BT)

        with unshard(self.model):
            values_by_piece = world.gather_in_order(
                lambda: [of_piece(rows) for rows in world.share(pieces)], "log-probs"
            )
        table_BT = torch.zeros(batch.tokens_BT.shape, device=self.device)
        for rows, values_bt in zip(pieces, values_by_piece, strict=True):
            table_BT[rows, : values_bt.shape[1]] = values_bt.to(self.device)
        return table_BT


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

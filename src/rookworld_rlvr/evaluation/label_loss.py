"""The suite `label_loss`: cross-entropy of the held-out labels under a model, teacher-forced."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..board.fen import parse_fen
from ..model.batch import collate, similar_lengths
from ..model.device import Precision
from ..model.policy import Policy, evaluation_mode, spread
from ..rollout.groups import prompt_tokens
from ..tasks import task_named
from ..tasks.types import Example
from .completions import CHUNK_ROWS
from .keys import with_slices
from .suite import Suite, SuiteName, by_chunks
from .table import Row

BATCH_ROWS = 32

Losses = Callable[[Sequence[Example]], "list[LabelLoss | None]"]
"""Function that returns the losses of examples, in their order; see `label_losses`."""


@dataclass(frozen=True, slots=True)
class LabelLoss:
    """The cross-entropy of one label, including its end-of-text token."""

    nat: float
    """−log of the label's probability, comparable between tokenizers. Infinite if the model's result is not finite."""
    tokens: int
    """Length of the label in tokens of this model's tokenizer, at least 1."""

    @property
    def nat_per_token(self) -> float:
        return self.nat / self.tokens


def label_loss_suite(losses: Losses, examples: Sequence[Example], *, facts: Mapping[str, Any]) -> Suite:
    """Return a suite with the values `label_loss/<task>` in nats and `label_loss/<task>_per_token` in nats per token.

    Tokens are the model's own. Both values also exist by the slices of the prompt's position. A label that is missing
    or too long for the model has no loss. `evaluate compare` of two models shows forgetting as a rise of this loss with
    an interval above 0.
    """

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        pairs = zip(chunk, losses(chunk), strict=True)
        return [Row(first + i, example, _values(example, loss)) for i, (example, loss) in enumerate(pairs)]

    return Suite(SuiteName.label_loss, examples, by_chunks(examples, CHUNK_ROWS, answer), CHUNK_ROWS, facts)


def _values(example: Example, loss: LabelLoss | None) -> dict[str, float]:
    if loss is None:
        return {}
    key = f"{SuiteName.label_loss}/{example.task}"
    values = {key: loss.nat, f"{key}_per_token": loss.nat_per_token}
    return with_slices(values, parse_fen(task_named(example.task).query(example.prompt).fen))


@torch.no_grad()
def label_losses(policy: Policy, examples: Sequence[Example]) -> list[LabelLoss | None]:
    """Return the loss of each example's label at temperature 1, in the examples' order, computed in float32.

    None if there is no label, or if prompt and label exceed the model's positions. Prompt and label are tokenised
    separately, as in sampling. The model's mode (training or evaluation) is restored.
    """
    policy = replace(policy, precision=Precision.fp32)
    most = getattr(policy.model.config, "max_position_embeddings", None) or 10**9
    tokenised = [_tokenised(policy.tokenizer, example) for example in examples]
    rows = {i: row for i, row in enumerate(tokenised) if row is not None and sum(map(len, row)) <= most}
    fitting = list(rows)
    losses: list[LabelLoss | None] = [None] * len(examples)
    with evaluation_mode(policy.model):
        for places in similar_lengths([sum(map(len, rows[i])) for i in fitting], BATCH_ROWS):
            chosen = [fitting[place] for place in places]
            batch = collate([rows[i] for i in chosen], pad_id=policy.pad_id, device=policy.device)
            logprobs_BT = spread(policy.statistics(batch, temperature=1.0).logprobs.double(), batch.loss_mask_BT)
            for i, nat in zip(chosen, (-logprobs_BT.sum(1)).tolist(), strict=True):
                losses[i] = LabelLoss(nat if math.isfinite(nat) else math.inf, len(rows[i][1]))
    return losses


def _tokenised(tokenizer: PreTrainedTokenizerBase, example: Example) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if example.completion is None:
        return None
    label = prompt_tokens(tokenizer, example.completion)
    return prompt_tokens(tokenizer, example.prompt), (*label, int(tokenizer.eos_token_id))

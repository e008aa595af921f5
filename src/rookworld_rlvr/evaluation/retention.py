"""The suite `retention`: the knowledge of the starting checkpoint that a model has kept.

Both models complete the same held-out examples of both tasks, and the cross-entropy of the labels is measured under
both, teacher-forced.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..board.fen import parse_fen
from ..model.batch import collate, similar_lengths
from ..model.device import Precision
from ..model.policy import Policy, spread
from ..rollout.groups import prompt_tokens
from ..tasks import Example, parse_prompt
from .completions import CHUNK_ROWS
from .held_out import Complete
from .keys import BASELINE, CHANGE, with_slices
from .suite import Suite, SuiteName, by_chunks
from .table import Row, difference, score_examples

BATCH_ROWS = 32


@dataclass(slots=True)
class RetentionConfig:
    """The model to compare with."""

    baseline: str = ""
    """The starting checkpoint: a model's folder, a hub name, or `tiny`. The suite needs it."""


@dataclass(frozen=True, slots=True)
class LabelLoss:
    """The cross-entropy of one label's completion, its end of text included."""

    nat: float
    """−log of the label's probability: comparable between tokenizers; infinite if the model gives no number."""
    tokens: int
    """Length of the label in tokens of this model's tokenizer, at least 1."""

    @property
    def nat_per_token(self) -> float:
        return self.nat / self.tokens


@dataclass(frozen=True, slots=True)
class RetentionModel:
    """A model as this suite uses it."""

    complete: Complete
    losses: Callable[[Sequence[Example]], list[LabelLoss | None]]


def retention_suite(
    model: RetentionModel,
    baseline: RetentionModel,
    examples: Sequence[Example],
    *,
    facts: Mapping[str, Any] | None = None,
) -> Suite:
    """Rows of the examples; each value exists for the model, for the baseline and as the change.

    Keys: `retention/<task>_loss`, in nats per row, and `retention/<task>_loss_per_token`, the mean over rows of nats
    per token, in the model's own tokens; `retention/<task>_<metric>` for the metrics of `score_examples`. Each key also
    has `/baseline`, and `/change`, the model's value less the baseline's, row by row, with the interval of paired
    differences. The model's value and the change also have keys by the slices of the prompt's position, `…/white` and
    `…/change/white`. A loss change above 0 and a metric change below 0 are forgetting. A label that is missing, or too
    long for one of the models, has no loss in either.
    """

    def answer(first: int, chunk: Sequence[Any]) -> list[Row]:
        own, other = _values(model, chunk), _values(baseline, chunk)
        return [Row(first + i, example, _compared(own[i], other[i], example)) for i, example in enumerate(chunk)]

    rows = by_chunks(examples, CHUNK_ROWS, answer)
    return Suite(SuiteName.retention, examples, rows, CHUNK_ROWS, facts or {})


def _values(model: RetentionModel, examples: Sequence[Example]) -> list[dict[str, float]]:
    """One model's values of each example, by `<task>_<name>`."""
    rows, losses = score_examples(examples, model.complete(examples)), model.losses(examples)
    values_by_row = []
    for example, row, loss in zip(examples, rows, losses, strict=True):
        values = {key.replace("/", "_"): value for key, value in row.values.items() if key.count("/") == 1}
        if loss is not None:
            values[f"{example.task}_loss"] = loss.nat
            values[f"{example.task}_loss_per_token"] = loss.nat_per_token
        values_by_row.append(values)
    return values_by_row


def _compared(own: Mapping[str, float], other: Mapping[str, float], example: Example) -> dict[str, float]:
    keys = {f"{SuiteName.retention}/{name}": name for name in sorted(own.keys() & other.keys())}
    values = {key: own[name] for key, name in keys.items()}
    values |= {f"{key}/{CHANGE}": difference(other[name], own[name]) for key, name in keys.items()}
    baseline = {f"{key}/{BASELINE}": other[name] for key, name in keys.items()}
    return with_slices(values, parse_fen(parse_prompt(example.prompt).fen)) | baseline


@torch.no_grad()
def label_losses(policy: Policy, examples: Sequence[Example]) -> list[LabelLoss | None]:
    """The loss of each example's label at temperature 1, in the examples' order, in float32.

    None if there is no label, or if prompt and label exceed the model's positions. Prompt and completion are tokenised
    apart, as in sampling. The model stays in its mode (training or evaluation).
    """
    policy = replace(policy, precision=Precision.fp32)
    most = getattr(policy.model.config, "max_position_embeddings", None) or 10**9
    tokenised = [_tokenised(policy.tokenizer, example) for example in examples]
    rows = {i: row for i, row in enumerate(tokenised) if row is not None and sum(map(len, row)) <= most}
    fitting = list(rows)
    losses: list[LabelLoss | None] = [None] * len(examples)
    was_training = policy.model.training
    policy.model.eval()
    for places in similar_lengths([sum(map(len, rows[i])) for i in fitting], BATCH_ROWS):
        chosen = [fitting[place] for place in places]
        batch = collate([rows[i] for i in chosen], pad_id=policy.pad_id, device=policy.device)
        logprobs_BT = spread(policy.statistics(batch, temperature=1.0).logprobs.double(), batch.loss_mask_BT)
        for i, nat in zip(chosen, (-logprobs_BT.sum(1)).tolist(), strict=True):
            losses[i] = LabelLoss(nat if math.isfinite(nat) else math.inf, len(rows[i][1]))
    policy.model.train(was_training)
    return losses


def _tokenised(tokenizer: PreTrainedTokenizerBase, example: Example) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if example.completion is None:
        return None
    label = prompt_tokens(tokenizer, example.completion)
    return prompt_tokens(tokenizer, example.prompt), (*label, int(tokenizer.eos_token_id))

"""How probable a model holds what the labels say: cross-entropy of reference completions, teacher-forced."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..model.padding import position_ids, right_padded, similar_lengths
from ..rollout.collect import prompt_tokens
from ..tasks import Example

BATCH_ROWS = 32


@dataclass(frozen=True, slots=True)
class LabelLoss:
    """The cross-entropy of one label's completion, its end of text included."""

    nat: float
    """−log of the label's probability: comparable between tokenizers; infinite where the model gives no number."""
    tokens: int
    """Tokens of this model's tokenizer that it is of, at least 1."""

    @property
    def nat_per_token(self) -> float:
        return self.nat / self.tokens


@torch.no_grad()
def label_losses(model: Any, tokenizer: Any, examples: Sequence[Example]) -> list[LabelLoss | None]:
    """The loss of each example's label at temperature 1, in the examples' order, in the weights' precision.

    None where there is no label, or where prompt and label exceed the model's positions. Prompt and completion are
    tokenised apart, as in sampling. The model is left in the mode it was in.
    """
    device = next(model.parameters()).device
    most = getattr(model.config, "max_position_embeddings", None) or 10**9
    rows = {i: row for i, row in enumerate(_tokenised(tokenizer, example) for example in examples) if row is not None}
    fitting = [i for i, (prompt, label) in rows.items() if len(prompt) + len(label) <= most]
    found: list[LabelLoss | None] = [None] * len(examples)
    was_training = model.training
    model.eval()
    for batch in similar_lengths([sum(map(len, rows[i])) for i in fitting], BATCH_ROWS):
        chosen = [fitting[place] for place in batch]
        logprobs_BT = _logprobs(model, [(*rows[i][0], *rows[i][1]) for i in chosen], device)
        for logprobs_T, i in zip(logprobs_BT, chosen, strict=True):
            prompt, label = rows[i]
            # The token at t is predicted at t - 1.
            own = logprobs_T[len(prompt) - 1 : len(prompt) + len(label) - 1]
            nat = -own.double().sum().item()
            found[i] = LabelLoss(nat if math.isfinite(nat) else math.inf, len(label))
    model.train(was_training)
    return found


def _tokenised(tokenizer: Any, example: Example) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if example.completion is None:
        return None
    label = prompt_tokens(tokenizer, example.completion)
    return prompt_tokens(tokenizer, example.prompt), (*label, int(tokenizer.eos_token_id))


def _logprobs(model: Any, rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """(B, T - 1): the log-prob of each token but the first, whatever stands under a pad."""
    tokens_BT, attention_BT = right_padded(rows, 0, device)
    logits_BTV: Tensor = model(
        input_ids=tokens_BT, attention_mask=attention_BT, position_ids=position_ids(attention_BT), use_cache=False
    ).logits[:, :-1]
    chosen_BT = logits_BTV.gather(-1, tokens_BT[:, 1:].unsqueeze(-1)).squeeze(-1).float()
    # Less than the log-softmax of the whole: a vocabulary of 50,257 at 200 tokens a row is large.
    normaliser_BT = torch.stack([row.float().logsumexp(-1) for row in logits_BTV])
    return chosen_BT - normaliser_BT

"""How probable a model holds what the labels say: cross-entropy of reference completions, teacher-forced."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedTokenizerBase

from ..model.batch import collate, similar_lengths
from ..model.device import Precision
from ..model.policy import Policy, spread
from ..rollout.groups import prompt_tokens
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
def label_losses(policy: Policy, examples: Sequence[Example]) -> list[LabelLoss | None]:
    """The loss of each example's label at temperature 1, in the examples' order, in float32.

    None where there is no label, or where prompt and label exceed the model's positions. Prompt and completion are
    tokenised apart, as in sampling. The model is left in the mode it was in.
    """
    policy = replace(policy, precision=Precision.fp32)
    most = getattr(policy.model.config, "max_position_embeddings", None) or 10**9
    tokenised = [_tokenised(policy.tokenizer, example) for example in examples]
    rows = {i: row for i, row in enumerate(tokenised) if row is not None and sum(map(len, row)) <= most}
    fitting = list(rows)
    found: list[LabelLoss | None] = [None] * len(examples)
    was_training = policy.model.training
    policy.model.eval()
    for places in similar_lengths([sum(map(len, rows[i])) for i in fitting], BATCH_ROWS):
        chosen = [fitting[place] for place in places]
        batch = collate([rows[i] for i in chosen], pad_id=policy.pad_id, device=policy.device)
        logprobs_BT = spread(policy.statistics(batch, temperature=1.0).logprobs.double(), batch.loss_mask_BT)
        for i, nat in zip(chosen, (-logprobs_BT.sum(1)).tolist(), strict=True):
            found[i] = LabelLoss(nat if math.isfinite(nat) else math.inf, len(rows[i][1]))
    policy.model.train(was_training)
    return found


def _tokenised(tokenizer: PreTrainedTokenizerBase, example: Example) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if example.completion is None:
        return None
    label = prompt_tokens(tokenizer, example.completion)
    return prompt_tokens(tokenizer, example.prompt), (*label, int(tokenizer.eos_token_id))


"""Expected value of the first candidate over all legal moves: an all-action policy gradient.

    loss = −coef · mean over prompts of Σ p(move) · value(move)        over the legal moves of a `P:` prompt

A completion samples one first candidate, but a position has only about thirty legal moves, and the evaluation cache
knows the value of each. So the expected value and its gradient are computed, not estimated: the gradient has no noise
of sampling, and a good move that is never sampled gets its share too. `p(move)` is the probability of the move's tokens
behind the first marker, at the sampling temperature. An illegal move has value 0: its probability is lost. Where a step
makes several updates, each has the legal moves of all the step's prompts.

Source: all-action (expected) policy gradient, arXiv 1706.05374; the values: `rewards.move_values`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ..evaluation.amplification import FIRST, move_tokens
from ..model.batch import Batch, collate
from ..model.policy import Policy, spread
from ..rollout.groups import Group

# Rows of a move are short: where they share their prompt, so many times as many fit in a pass as completions.
ROWS_PER_COMPLETION = 4


@dataclass(frozen=True, slots=True)
class MoveBatch(Batch):
    """A row per legal move: prompt and first marker, then the move's tokens, which are its trained tokens.

    `advantages_B` has the moves' values, divided by the number of prompts with values.
    """


def move_batch(groups: Sequence[Group], policy: Policy) -> MoveBatch | None:
    """The legal moves of the groups that have move values and a completion with a first marker; None without any."""
    rows, prompts, values, count = list[tuple[tuple[int, ...], tuple[int, ...]]](), list[int](), list[float](), 0
    for group in groups:
        start = _up_to_first_marker(group, policy) if group.move_values else None
        if start is None:
            continue
        for move, value in group.move_values.items():
            rows.append((start, move_tokens(policy, move)))
            prompts.append(count)
            values.append(value)
        count += 1
    if not rows:
        return None
    batch = collate(rows, pad_id=policy.pad_id, device=policy.device)
    batch = replace(
        batch,
        advantages_B=torch.tensor(values, device=policy.device) / count,
        prompts_B=torch.tensor(prompts, device=policy.device),
    )
    return MoveBatch(**{spec.name: getattr(batch, spec.name) for spec in fields(batch)})


def expected_value(policy: Policy, moves: MoveBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
    """This batch's share of the mean expected value, a scalar with a gradient, and the tokens' log-probs (N,), nat."""
    statistics = policy.statistics(moves, temperature=temperature)
    chances_B = spread(statistics.logprobs, moves.loss_mask_BT).sum(1).exp()
    return (chances_B * moves.advantages_B).sum(), statistics.logprobs.detach()


def _up_to_first_marker(group: Group, policy: Policy) -> tuple[int, ...] | None:
    """Prompt and completion up to the first marker, as the policy itself wrote them; None if it did not."""
    for sample in group.samples:
        for length in range(1, len(sample.completion.tokens)):
            done = sample.completion.tokens[:length]
            if FIRST in (text := str(policy.tokenizer.decode(list(done)))):
                if text.strip() == FIRST and text.endswith(FIRST):
                    return (*group.prompt_tokens, *done)
                break
    return None

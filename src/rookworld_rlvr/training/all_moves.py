"""Expected value of the first candidate over all legal moves: an all-action policy gradient.

    loss = −coef · mean over prompts of Σ p(move) · value(move)        over the legal moves of a `P:` prompt

A completion samples one first candidate, but a position has only about thirty legal moves, and the scorer knows the
value of each. So the expected value and its gradient are computed exactly: the gradient has no sampling noise, and a
good move that is never sampled is reinforced too. `p(move)` is the probability of the move's tokens after the first
marker, at the sampling temperature. An illegal move has value 0, so its probability adds nothing. If a step makes
several updates, each uses the legal moves of all prompts of the step.

Source: all-action (expected) policy gradient, arXiv 1706.05374. `stockfish.move_values` defines the values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..model.batch import TokenBatch, collate
from ..model.policy import Policy, spread
from ..rollout.groups import Group, prompt_tokens
from ..tasks.policy.text import FIRST_MARKER

# Rows of moves are short. If they share their prompt, this many times more of them fit in a pass than completions.
ROWS_PER_COMPLETION = 4


@dataclass(frozen=True, slots=True)
class MoveBatch(TokenBatch):
    """Batch with a row per legal move: prompt and first marker, then the move's tokens, which are trained."""

    values_B: Tensor
    """Value of the move, divided by the number of prompts with values; float32."""


def move_batch(groups: Sequence[Group], policy: Policy) -> MoveBatch | None:
    """Return the legal moves of all groups with move values and a completion with a first marker; None without any."""
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
    batch = replace(batch, prompts_B=torch.tensor(prompts, device=policy.device))
    return MoveBatch(**batch.tensors(), values_B=torch.tensor(values, device=policy.device) / count)


def move_tokens(policy: Policy, move: str) -> tuple[int, ...]:
    """Return the tokens of a move that follows the first marker."""
    marker = len(prompt_tokens(policy.tokenizer, FIRST_MARKER))
    return prompt_tokens(policy.tokenizer, f"{FIRST_MARKER} {move}")[marker:]


def expected_value(policy: Policy, moves: MoveBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
    """Return this batch's share of the expected value (a scalar with a gradient) and the log-probs (N,), nat."""
    statistics = policy.statistics(moves, temperature=temperature)
    chances_B = spread(statistics.logprobs, moves.loss_mask_BT).sum(1).exp()
    return (chances_B * moves.values_B).sum(), statistics.logprobs.detach()


def _up_to_first_marker(group: Group, policy: Policy) -> tuple[int, ...] | None:
    """Return the tokens of the prompt and of a completion up to its first marker, as the policy wrote them.

    None if no completion begins with the marker.
    """
    for sample in group.samples:
        for length in range(1, len(sample.completion.tokens)):
            done = sample.completion.tokens[:length]
            if FIRST_MARKER in (text := str(policy.tokenizer.decode(list(done)))):
                if text.strip() == FIRST_MARKER and text.endswith(FIRST_MARKER):
                    return (*group.prompt_tokens, *done)
                break
    return None

"""Expected value of a move over all legal moves: an all-action policy gradient.

    loss = −coef · mean over prompts of Σ p(move) · value(move)        over the legal moves of a prompt

A completion names one move, or one first candidate, but a position has only about thirty legal moves, and the scorer
knows the value of each. So the expected value and its gradient are computed exactly: the gradient has no sampling
noise, and a good move that is never sampled is reinforced too. The task says where a completion names its move.
`p(move)` is the probability of the move's tokens at that place, at the sampling temperature. An illegal move has value
0, so its probability adds nothing. If a step makes several updates, each uses the legal moves of all prompts of the
step.

Source: all-action (expected) policy gradient, arXiv 1706.05374. `stockfish.move_values` defines the values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..model.batch import TokenBatch, collate
from ..model.policy import Policy, spread
from ..rollout.groups import Group, prompt_tokens
from ..tasks import task_named

# Rows of moves are short. If they share their prompt, this many times more of them fit in a pass than completions.
ROWS_PER_COMPLETION = 4


@dataclass(frozen=True, slots=True)
class MoveBatch(TokenBatch):
    """Batch with a row per legal move: prompt and beginning of a completion, then the move, which is trained."""

    values_B: Tensor
    """Value of the move, divided by the number of prompts with values; float32."""


def move_batch(groups: Sequence[Group], policy: Policy) -> MoveBatch | None:
    """Return the legal moves of all groups with move values and a completion that names a move; None without any."""
    rows, prompts, values, count = list[tuple[tuple[int, ...], tuple[int, ...]]](), list[int](), list[float](), 0
    for group in groups:
        begun = _up_to_move(group, policy) if group.move_values else None
        if begun is None:
            continue
        text, start = begun
        for move, value in group.move_values.items():
            rows.append((start, move_tokens(group, policy, text, move)))
            prompts.append(count)
            values.append(value)
        count += 1
    if not rows:
        return None
    batch = collate(rows, pad_id=policy.pad_id, device=policy.device)
    batch = replace(batch, prompts_B=torch.tensor(prompts, device=policy.device))
    return MoveBatch(**batch.tensors(), values_B=torch.tensor(values, device=policy.device) / count)


def move_tokens(group: Group, policy: Policy, begun: str, move: str) -> tuple[int, ...]:
    """Return the tokens of a legal move of the group's position behind the text `begun` of a completion."""
    task = task_named(group.example.task)
    text = task.move_text(move, task.query(group.example.prompt))
    known = len(prompt_tokens(policy.tokenizer, begun))
    return prompt_tokens(policy.tokenizer, begun + text)[known:]


def expected_value(policy: Policy, moves: MoveBatch, *, temperature: float) -> tuple[Tensor, Tensor]:
    """Return this batch's share of the expected value (a scalar with a gradient) and the log-probs (N,), nat."""
    statistics = policy.statistics(moves, temperature=temperature)
    chances_B = spread(statistics.logprobs, moves.loss_mask_BT).sum(1).exp()
    return (chances_B * moves.values_B).sum(), statistics.logprobs.detach()


def _up_to_move(group: Group, policy: Policy) -> tuple[str, tuple[int, ...]] | None:
    """Return the beginning of a completion up to its move, and the tokens of prompt and beginning.

    The tokens are those that the policy wrote. None if no completion names a move.
    """
    task = task_named(group.example.task)
    query = task.query(group.example.prompt)
    for sample in group.samples:
        begun = task.before_move(sample.text, query)
        if begun is None:
            continue
        for length in range(len(sample.completion.tokens)):
            done = sample.completion.tokens[:length]
            text = str(policy.tokenizer.decode(list(done)))
            if text == begun:
                return begun, (*group.prompt_tokens, *done)
            if len(text) > len(begun):
                break
    return None

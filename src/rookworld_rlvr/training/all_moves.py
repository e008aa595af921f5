"""Expected value of a move over all legal moves: an all-action policy gradient.

    loss = −coef · mean over prompts of Σ p · (value − temperature · log p)        over the legal moves of a prompt

A completion names one move, or one first candidate, but a position has only about thirty legal moves, and the scorer
knows the value of each. So expected value and gradient are computed exactly for the text before the move, and a good
move that is never sampled is reinforced too. The task says where a completion names its move. The text before it is of
the first completion that names one, and so it is sampled: in `P:` blanks and the marker, in a chat perhaps a sentence.
`p` is the probability of the move's tokens at that place, at the sampling temperature; a model that plays chooses its
move from this distribution (`evaluation.legal_choice`). An illegal move has value 0, so its probability adds nothing.
`objective.all_moves_temperature` above 0 adds the entropy over the moves: without it the exact gradient soon leaves all
probability to one move, and from then on only that one is learned about. If a step makes several updates, each uses the
legal moves of all prompts that the step sampled, also where their completions are dropped, replaced or masked.

Source: all-action (expected) policy gradient, arXiv 1706.05374. `stockfish.move_values` defines the values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import prefixed
from ..model.batch import Batch, TokenBatch, collate
from ..model.policy import Policy, spread
from ..objective import TokenStatistics
from ..rollout.groups import Group, move_tokens

# Rows of moves are short. If they share their prompt, this many times more of them fit in a pass than completions.
ROWS_PER_COMPLETION = 4


@dataclass(frozen=True, slots=True)
class MoveBatch(TokenBatch):
    """Batch with a row per legal move: prompt and beginning of a completion, then the move, which is trained.

    `prompts_B` is the number of the group if nothing is written before the move, else another number.
    """

    values_B: Tensor
    """Value of the move, divided by the number of prompts with values; float32."""
    shares_B: Tensor
    """1 divided by that number, float32."""


def move_batch(groups: Sequence[Group], policy: Policy) -> MoveBatch | None:
    """Return the legal moves of all groups with a completion that names a move of known value; None without any.

    Raises UserError for a tokenizer that joins the end of what comes before a move and the move.
    """
    rows, prompts, values, count = list[tuple[tuple[int, ...], tuple[int, ...]]](), list[int](), list[float](), 0
    for number, group in enumerate(groups):
        start = up_to_move(group, policy)
        if start is None or group.choice is None:
            continue
        for move, value in group.choice.values.items():
            with prefixed("objective.all_moves_coef", ValueError):
                tokens = move_tokens(policy.tokenizer, group.choice.begun, move, group.choice.after)
            rows.append((start, tokens))
            prompts.append(number if start == group.prompt_tokens else len(groups) + number)
            values.append(value)
        count += 1
    if not rows:
        return None
    batch = collate(rows, pad_id=policy.pad_id, device=policy.device)
    batch = replace(batch, prompts_B=torch.tensor(prompts, device=policy.device))
    values_B = torch.tensor(values, device=policy.device)
    return MoveBatch(**batch.tensors(), values_B=values_B / count, shares_B=torch.ones_like(values_B) / count)


def beside(micros: Sequence[Batch], moves: MoveBatch) -> tuple[list[MoveBatch | None], MoveBatch | None]:
    """Return for each micro-batch of completions the moves of its prompts, and those of the other prompts; else None.

    The moves of a prompt go with the first micro-batch that has it, so that one pass computes the prompt for both.
    """
    left_B = torch.ones_like(moves.prompts_B, dtype=torch.bool)
    chosen: list[MoveBatch | None] = []
    for micro in micros:
        own_B = left_B & torch.isin(moves.prompts_B, micro.prompts_B)
        left_B = left_B & ~own_B
        chosen.append(moves.select(own_B) if own_B.any() else None)
    return chosen, moves.select(left_B) if left_B.any() else None


def expected_value(
    policy: Policy, moves: MoveBatch, *, temperature: float, statistics: TokenStatistics | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return this batch's shares of the expected value and of the entropy over legal moves, and the log-probs (N,).

    The first two are scalars with a gradient. Entropy and log-probs are in nat. `statistics` are those of the batch at
    this temperature, if a pass has them already.
    """
    statistics = statistics or policy.statistics(moves, temperature=temperature)
    logprobs_B = spread(statistics.logprobs, moves.loss_mask_BT).sum(1)
    chances_B = logprobs_B.exp()
    entropy = -(chances_B * logprobs_B * moves.shares_B).sum()
    return (chances_B * moves.values_B).sum(), entropy, statistics.logprobs.detach()


def up_to_move(group: Group, policy: Policy) -> tuple[int, ...] | None:
    """Return the tokens of the prompt and of a completion up to its move, as the policy wrote them.

    None if no completion names a move, or if no token of one that does ends where the move begins.
    """
    if group.choice is None:
        return None
    for sample in group.samples:
        for length in range(len(sample.completion.tokens) if sample.text.startswith(group.choice.begun) else 0):
            done = sample.completion.tokens[:length]
            text = str(policy.tokenizer.decode(list(done)))
            if text == group.choice.begun:
                return (*group.prompt_tokens, *done)
            if len(text) > len(group.choice.begun):
                break
    return None

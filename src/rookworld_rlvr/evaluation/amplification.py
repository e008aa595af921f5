"""Amplification: held-out positions whose best move gained or lost probability, by the move's rank before training.

Reinforcement learning can amplify moves that the model already rates highly, or find moves that it rated low.
Probabilities are computed exactly, so sampling noise does not change ranks. They are those of the first candidate, the
first move after `M:`, which depends only on the prompt. Later candidates depend on the candidates before them.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import fmean
from typing import Any

import torch

from ..board.fen import parse_fen
from ..model.batch import collate
from ..model.policy import Policy
from ..model.world import World
from ..rollout.groups import prompt_tokens
from ..tasks.policy import parse_policy_prompt
from ..tasks.types import Example
from .scoring import best_of_label
from .table import Row

PROBABILITY, RANK = "policy/best_move_probability", "policy/best_move_rank"
FIRST = "M:"
# First and last rank in each range of ranks of the table.
RANKS = {"1": (1, 1), "2-3": (2, 3), "4-5": (4, 5), "6-": (6, inf)}


def best_move_probabilities(
    policy: Policy,
    examples: Iterable[Example],
    *,
    micro_batch_size: int,
    temperature: float,
    world: World | None = None,
) -> dict[Hashable, dict[str, float]]:
    """Return PROBABILITY and RANK of the label's best move as first candidate, for each policy example with a label.

    The probability of a move is that of its tokens at the temperature. Moves that share the label's highest eval count
    as one: the probability is their sum, and the rank is that of the likeliest. Ranks from 1 are among all legal moves.
    """
    known = {example: best for example in examples if (best := best_of_label(example))}
    if not known:
        return {}
    rows = [(place, example, move) for place, example in enumerate(known) for move in _legal_moves(example)]
    contexts = [prompt_tokens(policy.tokenizer, _context(example)) for example in known]
    moves = {move: move_tokens(policy, move) for _, _, move in rows}
    batch = collate(
        [(contexts[place], moves[move]) for place, _, move in rows], pad_id=policy.pad_id, device=policy.device
    )
    prompts_B = torch.tensor([place for place, _, _ in rows], device=policy.device)
    logprobs_BT = policy.logprob_table(
        replace(batch, prompts_B=prompts_B), micro_batch_size=micro_batch_size, temperature=temperature, world=world
    )
    chances: dict[Example, dict[str, float]] = {example: {} for example in known}
    for (_, example, move), chance in zip(rows, logprobs_BT.sum(1).exp().tolist(), strict=True):
        chances[example][move] = chance
    return {example: _of_best(chances[example], best) for example, best in known.items()}


def _legal_moves(example: Example) -> list[str]:
    return [move.uci() for move in parse_fen(parse_policy_prompt(example.prompt).fen).legal_moves]


def _context(example: Example) -> str:
    """Return the prompt and the label up to and including its first marker."""
    assert example.completion is not None
    return example.prompt + example.completion.partition(FIRST)[0] + FIRST


def move_tokens(policy: Policy, move: str) -> tuple[int, ...]:
    """Return the tokens of a move that follows the first marker."""
    return prompt_tokens(policy.tokenizer, f"{FIRST} {move}")[len(prompt_tokens(policy.tokenizer, FIRST)) :]


def _of_best(chances: Mapping[str, float], best: frozenset[str]) -> dict[str, float]:
    likeliest = max(chances[move] for move in best)
    rank = 1 + sum(chance > likeliest for chance in chances.values())
    return {PROBABILITY: sum(chances[move] for move in best), RANK: float(rank)}


def amplification(before: Sequence[Row], after: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a line for each range of ranks before training that has positions, as a dictionary:

    - `ranks`: the range, a key of RANKS.
    - `positions`: number of positions whose best move had a rank in this range.
    - `gained`, `lost`: number of positions whose best move is likelier, or less likely, after training.
    - `first`: number of positions whose best move is the likeliest move after training.
    - `before`, `after`: mean probability of the best move.

    Rows before and after have the same items and order.
    """
    pairs = [(old.values, new.values) for old, new in zip(before, after, strict=True) if RANK in old.values]
    lines = []
    for name, (lowest, highest) in RANKS.items():
        own = [pair for pair in pairs if lowest <= pair[0][RANK] <= highest]
        changes = [(old[PROBABILITY], new[PROBABILITY]) for old, new in own]
        if own:
            line = {
                "ranks": name,
                "positions": len(own),
                "gained": sum(new > old for old, new in changes),
                "lost": sum(new < old for old, new in changes),
                "first": sum(new[RANK] == 1 for _, new in own),
                "before": fmean(old for old, _ in changes),
                "after": fmean(new for _, new in changes),
            }
            lines.append(line)
    return lines

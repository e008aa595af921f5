"""Choice among the legal moves of a position by the probabilities that a model gives to their texts.

A model that writes a move may write an illegal one. Here it chooses: its task says where a completion names the move,
and one packed pass computes log p(move), the sum over the move's tokens at that place, for every legal move. This is
the distribution that the term over all legal moves trains (`training.all_moves`).
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import chess
import torch

from ..model.batch import collate
from ..model.policy import Policy, evaluation_mode, spread
from ..rollout.groups import move_tokens, prompt_tokens
from ..tasks import Task

# Legal moves that are computed in one pass.
ROWS = 1024


@dataclass(frozen=True, slots=True)
class LegalPlayer:
    """A model that plays the likeliest legal move, or draws among the legal moves at a temperature above 0."""

    policy: Policy
    task: Task
    temperature: float = 0.0
    seed: int = 0

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`. Empty where the game is over."""
        return [
            self._move(logprobs, f"{self.seed}:{number}:{board.fen()}") if logprobs else ""
            for board, number, logprobs in zip(
                boards, numbers, legal_logprobs(self.policy, self.task, boards), strict=True
            )
        ]

    def _move(self, logprobs: dict[str, float], seed: str) -> str:
        best = max(logprobs, key=logprobs.__getitem__)
        if not self.temperature:
            return best
        weights = [math.exp((value - logprobs[best]) / self.temperature) for value in logprobs.values()]
        return random.Random(seed).choices(list(logprobs), weights)[0]


def can_choose(task: Task) -> bool:
    """Return whether a task's completions begin with a move, so that a model can choose among the legal ones."""
    return task.names_move and task.opening(task.query(task.prompt(chess.STARTING_FEN))) is not None


@torch.no_grad()
def legal_logprobs(policy: Policy, task: Task, boards: Sequence[chess.Board]) -> list[dict[str, float]]:
    """Return log p of each legal move of each position at temperature 1, nat, by move in UCI, in sorted order.

    Raises ValueError for a tokenizer that joins the end of what comes before a move and the move.
    """
    rows, prompts, moves = list[tuple[tuple[int, ...], tuple[int, ...]]](), list[int](), list[str]()
    for number, board in enumerate(boards):
        for tokens, move in _move_rows(policy, task, board):
            rows.append(tokens)
            prompts.append(number)
            moves.append(move)
    found: list[dict[str, float]] = [{} for _ in boards]
    if not rows:
        return found
    batch = collate(rows, pad_id=policy.pad_id, device=policy.device)
    batch = replace(batch, prompts_B=torch.tensor(prompts, device=policy.device))
    with evaluation_mode(policy.model):
        for start in range(0, len(rows), ROWS):
            chosen = slice(start, start + ROWS)
            part = batch.select(torch.arange(len(rows))[chosen].to(policy.device))
            logprobs_B = spread(policy.statistics(part, temperature=1.0).logprobs.double(), part.loss_mask_BT).sum(1)
            for prompt, move, value in zip(prompts[chosen], moves[chosen], logprobs_B.tolist(), strict=True):
                found[prompt][move] = value
    return found


def _move_rows(
    policy: Policy, task: Task, board: chess.Board
) -> Iterator[tuple[tuple[tuple[int, ...], tuple[int, ...]], str]]:
    """Yield each legal move with its row: the tokens before it, and its own."""
    prompt = task.prompt(board.fen())
    query = task.query(prompt)
    begun = task.opening(query)
    if begun is None:
        raise ValueError(f"expected a task whose completions begin with a move, got {task.name}")
    start = (*prompt_tokens(policy.tokenizer, prompt), *prompt_tokens(policy.tokenizer, begun))
    for move in sorted(move.uci() for move in board.legal_moves):
        yield (start, move_tokens(policy.tokenizer, begun, task.move_text(move, query))), move

"""Choice among the legal moves of a position by the probabilities that a model gives to their texts.

A model that writes a move may write an illegal one. Here it chooses: its task says where a completion names the move,
and one packed pass computes log p(move), the sum over the move's tokens at that place, for every legal move. This is
the distribution that the term over all legal moves trains (`training.all_moves`).
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import chess
import torch

from ..board.fen import parse_fen
from ..errors import UserError, prefixed
from ..model.batch import collate
from ..model.policy import Policy, evaluation_mode, spread
from ..rollout.generator import Generator
from ..rollout.groups import move_tokens, prompt_tokens
from ..stockfish.analysis import Analysis
from ..stockfish.move_values import move_values
from ..tasks import Task, task_named
from ..tasks.types import Example
from .completions import Choose
from .config import Decoding
from .players import DecodingConfig, ModelPlayer, Player

# Positions whose legal moves are computed in one pass.
POSITIONS = 32
Row = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LegalPlayer:
    """A model that plays the likeliest legal move, or at a temperature above 0 draws one of the `top_k` likeliest."""

    policy: Policy
    task: Task
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """Temperature, and number of the likeliest legal moves to draw from; 0 draws from all of them."""
    seed: int = 0

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        """See `Player.choose`. Empty where the game is over."""
        found = legal_logprobs(self.policy, self.task, [self.task.prompt(board.fen()) for board in boards])
        return [
            self.drawn(logprobs, number, board) for board, number, logprobs in zip(boards, numbers, found, strict=True)
        ]

    def drawn(self, logprobs: Mapping[str, float], number: int, board: chess.Board) -> str:
        """Return the move of a position for these log-probs, nat, by legal move; empty without any."""
        if not logprobs:
            return ""
        best, temperature = likeliest(logprobs), self.decoding.temperature
        if not temperature:
            return best
        moves = sorted(logprobs, key=logprobs.__getitem__, reverse=True)[: self.decoding.top_k or None]
        weights = [math.exp((logprobs[move] - logprobs[best]) / temperature) for move in moves]
        return random.Random(f"{self.seed}:{number}:{board.fen()}").choices(moves, weights)[0]


def model_player(
    policy: Policy, generator: Generator, config: DecodingConfig, seed: int, task: Task, decoding: Decoding
) -> Player:
    """Return the player of a model, see `decoding_of`.

    Raises UserError if it must choose but the task's completions begin with words.
    """
    if decoding_of(policy, task, decoding) is Decoding.text:
        return ModelPlayer(generator, policy.tokenizer, config, seed, task)
    if task.opening(task.query(task.prompt(chess.STARTING_FEN))) is None:
        raise UserError(f"evaluation.decoding: expected text, since words come first in {task.name}, got legal")
    with prefixed("evaluation.decoding: expected text, got legal", ValueError):
        require_move_tokens(policy, task)
    return LegalPlayer(policy, task, config, seed)


def decoding_of(policy: Policy, task: Task, decoding: Decoding) -> Decoding:
    """Return the decoding, with `auto` replaced by `legal` if the model can choose a legal move, else by `text`."""
    if decoding is not Decoding.auto:
        return decoding
    begins = task.opening(task.query(task.prompt(chess.STARTING_FEN))) is not None
    return Decoding.legal if begins and separates_moves(policy, task) else Decoding.text


def written_by_default(decoding: Decoding) -> Decoding:
    """Return the decoding of a suite that counts illegal moves: with `auto` a model plays the move that it writes."""
    return Decoding.text if decoding is Decoding.auto else decoding


def likeliest(logprobs: Mapping[str, float]) -> str:
    """Return the move of the highest log-prob; the first in their order if several are equal."""
    return max(logprobs, key=logprobs.__getitem__)


def choice_measure(policy: Policy, decoding: Decoding) -> Choose | None:
    """Return `choice_values` of a policy, or None if it is measured by what it writes alone."""
    return None if decoding is Decoding.text else partial(choice_values, policy)


def choice_values(
    policy: Policy, examples: Sequence[Example], analyses: Mapping[str, Analysis]
) -> list[dict[str, float]]:
    """Return `<task>/legal_choice_loss` and `…_best` of each example, by the engine's evaluations in `analyses` by FEN.

    They are empty for an example without evaluations, without a legal move, or whose completion does not begin with a
    move, and for a tokenizer that joins what comes before a move and the move.
    """
    values: list[dict[str, float]] = [{} for _ in examples]
    for name in dict.fromkeys(example.task for example in examples):
        task = task_named(name)
        if not separates_moves(policy, task):
            continue
        places = [i for i, example in enumerate(examples) if example.task == name and _can_choose(task, example)]
        fens = {i: task.query(examples[i].prompt).fen for i in places}
        known = [i for i in places if fens[i] in analyses and analyses[fens[i]].lines]
        found = legal_logprobs(policy, task, [examples[i].prompt for i in known])
        for i, move in zip(known, map(likeliest, found), strict=True):
            evals = dict(analyses[fens[i]].lines)
            values[i] = {
                f"{name}/legal_choice_loss": move_values(analyses[fens[i]]).loss(move),
                f"{name}/legal_choice_best": float(evals.get(move) == max(evals.values())),
            }
    return values


def require_move_tokens(policy: Policy, task: Task) -> None:
    """Raise ValueError for a tokenizer that joins what comes before a move and the move, where a task names its move.

    Two moves of the start position are tried. A task whose completions begin with other words is not checked.
    """
    query = task.query(task.prompt(chess.STARTING_FEN)) if task.names_move else None
    begun = None if query is None else task.opening(query)
    if begun is not None:
        for move in ("e2e4", "g1f3"):
            move_tokens(policy.tokenizer, begun, task.move_text(move, query), task.after_move(query))


def separates_moves(policy: Policy, task: Task) -> bool:
    """Return True if the tokens of a move stand alone where a completion of the task names it."""
    try:
        require_move_tokens(policy, task)
    except ValueError:
        return False
    return True


def _can_choose(task: Task, example: Example) -> bool:
    return task.names_move and task.opening(task.query(example.prompt)) is not None


@torch.no_grad()
def legal_logprobs(policy: Policy, task: Task, prompts: Sequence[str]) -> list[dict[str, float]]:
    """Return log p of each legal move of each prompt's position at temperature 1, nat, by move in UCI, sorted.

    Raises ValueError for a task whose completions do not begin with a move, and for a tokenizer that joins the end of
    what comes before a move and the move.
    """
    found: list[dict[str, float]] = [{} for _ in prompts]
    for start in range(0, len(prompts), POSITIONS):
        places, moves, rows = list[int](), list[str](), list[Row]()
        for place in range(start, min(start + POSITIONS, len(prompts))):
            for move, row in _rows(policy, task, prompts[place]):
                places.append(place)
                moves.append(move)
                rows.append(row)
        if not rows:
            continue
        batch = collate(rows, pad_id=policy.pad_id, device=policy.device)
        batch = replace(batch, prompts_B=torch.tensor(places, device=policy.device))
        with evaluation_mode(policy.model):
            logprobs_N = policy.statistics(batch, temperature=1.0).logprobs.double()
        for place, move, value in zip(
            places, moves, spread(logprobs_N, batch.loss_mask_BT).sum(1).tolist(), strict=True
        ):
            found[place][move] = value
    return found


def _rows(policy: Policy, task: Task, prompt: str) -> Iterator[tuple[str, Row]]:
    """Yield each legal move with the tokens before it and its own."""
    query = task.query(prompt)
    begun = task.opening(query)
    if begun is None:
        raise ValueError(f"expected a task whose completions begin with a move, got {task.name}")
    start = (*prompt_tokens(policy.tokenizer, prompt), *prompt_tokens(policy.tokenizer, begun))
    for move in sorted(move.uci() for move in parse_fen(query.fen).legal_moves):
        text, after = task.move_text(move, query), task.after_move(query)
        yield move, (start, move_tokens(policy.tokenizer, begun, text, after))

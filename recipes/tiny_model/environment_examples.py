"""Training examples of `A:` rows: the completion's tokens, the move's outcome, and the legal targets of its piece."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import chess
import numpy as np
from transformers import PreTrainedTokenizerFast

from rookworld_rlvr.board.transition import REWARD_WIN, Transition
from rookworld_rlvr.tasks.environment.text import (
    SEPARATOR,
    environment_truth,
    parse_environment,
    parse_environment_prompt,
    render_environment,
    render_environment_prompt,
)
from rookworld_rlvr.tasks.move_classes import TransitionClass, illegal_kind, transition_class
from rookworld_rlvr.tasks.types import Example

from .encoder import Encoder
from .policy_examples import SQUARES, Array
from .tokenizer import placed_pieces

# Shares of the classes among `A:` examples. Illegal moves have the rest, divided equally among their kinds.
SHARES = {
    TransitionClass.quiet: 0.22,
    TransitionClass.capture: 0.13,
    TransitionClass.castling: 0.06,
    TransitionClass.en_passant: 0.04,
    TransitionClass.promotion: 0.06,
    TransitionClass.mate: 0.12,
    TransitionClass.stalemate: 0.04,
    TransitionClass.insufficient_material: 0.04,
    TransitionClass.seventy_five_moves: 0.02,
}
# Share of `A:` examples that get a random full-move number from 1 to NUMBERS, because files that contain each position
# once have hardly any low numbers.
RENUMBERED, NUMBERS = 0.2, 40


@dataclass(frozen=True, slots=True)
class EnvironmentExample:
    """A tokenized `A:` example."""

    tokens: list[int]
    """Prompt, completion, end of text."""
    prompt_length: int
    copied: tuple[bool, ...]
    """For each token of the completion, True if it is a piece that has not moved."""
    outcome: int
    """0: the move is illegal, 1: the game continues, 2: checkmate, 3: draw."""
    origin_at: int
    """Position in `tokens` of the square that the move starts from."""
    targets: Array
    """(64,): 1 for a square on which a legal move from that square ends, else 0."""


def transition_kind(prompt: str) -> str:
    """Return the class of an `A:` prompt's move; for an illegal move followed by its kind: `illegal blocked`.

    Raises PromptError.
    """
    query = parse_environment_prompt(prompt)
    board = chess.Board(query.fen)
    kind = transition_class(board, query.uci)
    return f"{kind} {illegal_kind(board, query.uci)}" if kind is TransitionClass.illegal else str(kind)


class TransitionPool:
    """Labelled `A:` rows by the kind of their move, such as `mate`, `quiet` or `illegal blocked`."""

    def __init__(self, rows: Sequence[Example]) -> None:
        self._by_kind = defaultdict[str, list[Example]](list)
        for row in rows:
            self._by_kind[transition_kind(row.prompt)].append(row)
        illegal = sum(kind.startswith(TransitionClass.illegal) for kind in self._by_kind)
        rest = (1 - sum(SHARES.values())) / max(1, illegal)
        self._kinds = list(self._by_kind)
        shares = {str(kind): share for kind, share in SHARES.items()}
        self._shares = [shares.get(kind, rest) for kind in self._kinds]

    def sample(self, rng: random.Random) -> Example:
        """Return a row of a kind that is sampled by SHARES; one in five gets a random full-move number."""
        row = rng.choice(self._by_kind[rng.choices(self._kinds, self._shares)[0]])
        return renumbered(row, rng.randint(1, NUMBERS)) if rng.random() < RENUMBERED else row


def renumbered(row: Example, number: int) -> Example:
    """Return the `A:` row with the full-move number `number` in its prompt, and the right completion for it."""
    prompt = parse_environment_prompt(row.prompt)
    position, _, _ = prompt.fen.rpartition(" ")
    text = render_environment_prompt(f"{position} {number}", prompt.uci, prompt.history)
    truth = environment_truth(parse_environment_prompt(text))
    return replace(row, prompt=text, completion=render_environment(truth))


class EnvironmentExamples:
    """Maker of training examples from labelled `A:` rows."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._encode, self._end = Encoder(tokenizer), tokenizer.eos_token_id
        self._separator = tokenizer.get_vocab()[SEPARATOR]

    def example(self, row: Example) -> EnvironmentExample:
        """Return the example of a labelled `A:` row."""
        text, prompt = row.completion or "", parse_environment_prompt(row.prompt)
        prompt_ids, completion_ids = self._encode(row.prompt), self._encode(text)
        before = set(self._encode(prompt.fen))
        pieces = len(placed_pieces(text.split(" ")[0]))
        copied = tuple(at < pieces and token in before for at, token in enumerate(completion_ids))
        return EnvironmentExample(
            tokens=[*prompt_ids, *completion_ids, self._end],
            prompt_length=len(prompt_ids),
            copied=(*copied, False),
            outcome=_outcome(text),
            origin_at=prompt_ids.index(self._separator) + 1,
            targets=legal_targets(prompt.fen, prompt.uci[:2]),
        )


def legal_targets(fen: str, origin: str) -> Array:
    """Return (64,): 1 where a legal move from the square `origin` ends, else 0; all 0 if `origin` is no square."""
    targets = np.zeros(SQUARES, np.float32)
    if origin in chess.SQUARE_NAMES:
        from_mask = chess.BB_SQUARES[chess.parse_square(origin)]
        targets[[move.to_square for move in chess.Board(fen).generate_legal_moves(from_mask)]] = 1
    return targets


def _outcome(text: str) -> int:
    completion = parse_environment(text)
    assert isinstance(completion, Transition), text
    if completion.reward < 0:
        return 0
    if not completion.terminated:
        return 1
    return 2 if completion.reward == REWARD_WIN else 3

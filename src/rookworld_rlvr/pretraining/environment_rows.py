"""Rows of cloning of labelled `A:` rows: the answer's tokens, what comes of the move, and where its man may go."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import chess
import numpy as np
from transformers import PreTrainedTokenizerFast

from ..board.transition import REWARD_WIN
from ..model.chess_tokenizer import placed_pieces
from ..tasks.classes import TransitionClass
from ..tasks.environment import (
    SEPARATOR,
    environment_truth,
    parse_environment,
    parse_environment_prompt,
    render_environment,
    render_environment_prompt,
)
from ..tasks.transitions import transition_kind
from ..tasks.types import EnvironmentCompletion, Example
from .encoder import Encoder
from .soft_targets import SQUARES, Array

# Shares of `A:` rows by class; illegal moves have the rest, each of their kinds as much as another.
SHARES = {
    TransitionClass.quiet: 0.26,
    TransitionClass.capture: 0.13,
    TransitionClass.castling: 0.06,
    TransitionClass.en_passant: 0.04,
    TransitionClass.promotion: 0.06,
    TransitionClass.mate: 0.08,
    TransitionClass.stalemate: 0.04,
    TransitionClass.insufficient_material: 0.04,
    TransitionClass.seventy_five_moves: 0.02,
}
# Of `A:` rows, those whose full-move number is drawn anew, from 1 to NUMBERS: files that keep a position once hold
# hardly any early ones.
RENUMBERED, NUMBERS = 0.2, 40


@dataclass(frozen=True, slots=True)
class EnvironmentRow:
    """A tokenised `A:` row."""

    tokens: list[int]
    """Prompt, completion, end of text."""
    prompt_length: int
    copied: tuple[bool, ...]
    """For each token of the completion, whether it is a man that stands where it stood."""
    outcome: int
    """What comes of the move: 0 illegal, 1 the game goes on, 2 a mate, 3 a draw."""
    origin_at: int
    """The token of the square that the move leaves."""
    targets: Array
    """(64,): 1 where a legal move from that square ends, else 0."""


class TransitionPool:
    """`A:` rows by what their move is: `mate`, `quiet`, `illegal blocked`."""

    def __init__(self, rows: Sequence[Example]) -> None:
        self._by_kind = defaultdict[str, list[Example]](list)
        for row in rows:
            self._by_kind[transition_kind(row.prompt)].append(row)
        illegal = sum(kind.startswith(TransitionClass.illegal) for kind in self._by_kind)
        rest = (1 - sum(SHARES.values())) / max(1, illegal)
        self._kinds = list(self._by_kind)
        shares = {str(kind): share for kind, share in SHARES.items()}
        self._shares = [shares.get(kind, rest) for kind in self._kinds]

    def draw(self, rng: random.Random) -> Example:
        """A row of a kind that is drawn by SHARES; one in five has another full-move number than in the file."""
        row = rng.choice(self._by_kind[rng.choices(self._kinds, self._shares)[0]])
        return renumbered(row, rng.randint(1, NUMBERS)) if rng.random() < RENUMBERED else row


def renumbered(row: Example, number: int) -> Example:
    """An `A:` row whose prompt has the full-move number `number`, and the answer that is true then."""
    asked = parse_environment_prompt(row.prompt)
    position, _, _ = asked.fen.rpartition(" ")
    prompt = render_environment_prompt(f"{position} {number}", asked.uci, asked.history)
    truth = environment_truth(parse_environment_prompt(prompt))
    return replace(row, prompt=prompt, completion=render_environment(truth))


class EnvironmentRows:
    """Makes rows of labelled `A:` rows."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._encode, self._end = Encoder(tokenizer), tokenizer.eos_token_id
        self._separator = tokenizer.get_vocab()[SEPARATOR]

    def row(self, example: Example) -> EnvironmentRow:
        """A labelled `A:` row as tokens."""
        text = example.completion or ""
        prompt, answer = self._encode(example.prompt), self._encode(text)
        asked = parse_environment_prompt(example.prompt)
        before = set(self._encode(asked.fen))
        men = len(placed_pieces(text.split(" ")[0]))
        copied = tuple(at < men and token in before for at, token in enumerate(answer))
        tokens = [*prompt, *answer, self._end]
        origin_at = prompt.index(self._separator) + 1
        return EnvironmentRow(
            tokens, len(prompt), (*copied, False), _outcome(text), origin_at, legal_targets(asked.fen, asked.uci[:2])
        )


def legal_targets(fen: str, origin: str) -> Array:
    """(64,): 1 where a legal move from the square `origin` ends, else 0; all 0 if that names no square."""
    targets = np.zeros(SQUARES, np.float32)
    if origin in chess.SQUARE_NAMES:
        from_mask = chess.BB_SQUARES[chess.parse_square(origin)]
        targets[[move.to_square for move in chess.Board(fen).generate_legal_moves(from_mask)]] = 1
    return targets


def _outcome(completion: str) -> int:
    answer = parse_environment(completion)
    assert isinstance(answer, EnvironmentCompletion), completion
    if answer.reward < 0:
        return 0
    if not answer.terminated:
        return 1
    return 2 if answer.reward == REWARD_WIN else 3

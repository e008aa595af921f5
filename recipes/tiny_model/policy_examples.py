"""Training examples of `P:` prompts, whose tokens have targets made from the evaluations of all legal moves."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import chess
import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from rookworld_rlvr.board.evals import MATE_THRESHOLD_PAWNS, win_probability
from rookworld_rlvr.stockfish.move_evals import MoveEvals
from rookworld_rlvr.tasks.policy.text import MAX_CANDIDATES, render_policy, render_policy_prompt
from rookworld_rlvr.tasks.types import PolicyCompletion

from .encoder import Encoder
from .tokenizer import piece_symbols, placed_pieces

Array = NDArray[Any]
SoftTarget = tuple[int, bool, Array]
"""Position of a move's square in the tokens; True for the first of its two squares; probabilities of 64 squares."""

SQUARES = 64
# Temperature of the softmax over move scores that is the target of the candidates.
TEMPERATURE = 0.04
# In a won position win probability does not distinguish mates. The fastest mate, in n moves, has the first of these as
# a bonus, divided by n; a mate that takes one move more has the second one less, so that it is e times less likely.
MATE_BONUS, MATE_DELAY = 0.12, TEMPERATURE
# Win-probability loss that halves the value of a move.
HALVING_LOSS = 0.1
# Logit of a move that is already an earlier candidate.
NAMED_LOGIT = -1e9
LEAST_SHARE = 1e-9
# The board's tokens follow the token `P: `.
BOARD_AT = 1
LAYOUT_WEIGHT, EVAL_WEIGHT = 0.3, 0.05


@dataclass(frozen=True, slots=True)
class BoardExample:
    """A tokenized `P:` prompt with the targets of the heads on its board."""

    tokens: list[int]
    squares: tuple[int, ...]
    """Squares of the board's M tokens, from BOARD_AT on: all pieces, then the opponent's and the own ones again."""
    repeated_at: int
    """Index of the first repeated piece among the squares."""
    own_at: int
    """Index of the first repeated own piece among the squares."""
    moves: Array
    """(M, 64): probability of each move, by its piece's token and its target square."""
    legal: Array
    """(M, 64): 1 for a legal move."""
    attacks: Array
    """(M, 64): 1 where the piece attacks the square."""
    move_values: Array
    """(M, 64): 1 for the best move, halved for each HALVING_LOSS of win probability lost; 0 where no move is legal."""


@dataclass(frozen=True, slots=True)
class PolicyExample:
    """A tokenized `P:` example with the targets of its tokens."""

    tokens: list[int]
    """Prompt, completion, end of text."""
    board: BoardExample
    """The prompt with the targets of the heads on its board."""
    hard: list[tuple[int, float]]
    """Positions whose target is the token in `tokens`, with weights."""
    soft: list[SoftTarget]
    win_at: int
    """Position of the prompt's last token, from which the win probability is predicted."""
    win_probability: float
    """Win probability of the side to move, plus the bonus of a mate."""


def move_scores(evals: MoveEvals) -> Array:
    """Return the score of each move; see `scores_of`."""
    pawns = np.array([*evals.evals_pawns.values()])
    return scores_of(pawns, np.array([win_probability_of(eval_) for eval_ in pawns.tolist()]))


def scores_of(pawns: Array, wins: Array) -> Array:
    """Return scores (…, N) of N moves from their evals and win probabilities, which are -inf where there is no move.

    The score is the win probability, and mates are told apart by their length. The fastest one has a bonus; each move
    that another one takes longer costs MATE_DELAY, so that a won ending has a best move far from the mate, but no mate
    falls behind a move that does not mate. Being mated is the reverse: the slowest is best.
    """
    moves = np.maximum(1, np.round((1000 - np.abs(pawns)) * 100))
    mates, mated = pawns > MATE_THRESHOLD_PAWNS, (pawns < -MATE_THRESHOLD_PAWNS) & np.isfinite(pawns)
    fastest = np.where(mates, moves, np.inf).min(-1, keepdims=True)
    slowest = np.where(mated, moves, 1).max(-1, keepdims=True)
    best_other = np.where(mates, -np.inf, wins).max(-1, keepdims=True)
    mating = np.maximum(1 + MATE_BONUS / fastest - MATE_DELAY * (moves - fastest), best_other)
    losing = -MATE_BONUS / slowest - MATE_DELAY * (slowest - moves)
    scores: Array = np.where(mates, mating, np.where(mated, losing, wins))
    return scores


# Cached, because the same evals occur again and again.
win_probability_of = lru_cache(maxsize=1 << 16)(win_probability)


def square_ids(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """Return (2, 64): token ids of the squares' names as the second and as the first square of a move."""
    ids = tokenizer.get_vocab()
    return torch.tensor([[ids[lead + name] for name in chess.SQUARE_NAMES] for lead in ("", " ")])


def coarse(pawns: float) -> float:
    """Round an eval to a grid that a small model can learn: tenths, halves or whole pawns; mates are unchanged."""
    if abs(pawns) > MATE_THRESHOLD_PAWNS:
        return pawns
    step = 0.1 if abs(pawns) < 2 else 0.5 if abs(pawns) < 5 else 1.0
    return round(round(pawns / step) * step, 1) + 0.0


class PolicyExamples:
    """Maker of training examples from move evaluations."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._encode = Encoder(tokenizer)
        ids = tokenizer.get_vocab()
        self._first = set(square_ids(tokenizer)[1].tolist())
        self._markers = {ids[name]: name for name in ("M:", "E:", "B:")}
        self.end = tokenizer.eos_token_id

    def board(self, evals: MoveEvals) -> BoardExample:
        """Return the example of a position's prompt alone, for the heads on the board."""
        scores, (origins, targets) = move_scores(evals), _squares_of(evals)
        placement, letter = evals.fen.split(" ")[:2]
        pieces, turn = placed_pieces(placement), letter == "w"
        own, opponent = ([square for square, piece in pieces if piece in piece_symbols(s)] for s in (turn, not turn))
        squares = (*(square for square, _ in pieces), *opponent, *own)
        own_at = len(squares) - len(own)
        index = {square: number for number, square in enumerate(own, start=own_at)}
        at = np.array([index[origin] for origin in origins]), targets
        moves, legal, move_values = np.zeros((3, len(squares), SQUARES), np.float32)
        np.add.at(moves, at, softmax(scores / TEMPERATURE).astype(np.float32))
        legal[at] = 1
        wins = np.array([win_probability_of(pawns) for pawns in evals.evals_pawns.values()])
        np.maximum.at(move_values, at, (0.5 ** ((wins.max() - wins) / HALVING_LOSS)).astype(np.float32))
        attacks = attacks_of(chess.Board(evals.fen), squares)
        tokens = self._encode(render_policy_prompt(evals.fen))
        return BoardExample(tokens, squares, len(pieces), own_at, moves, legal, attacks, move_values)

    def example(self, evals: MoveEvals) -> PolicyExample:
        """Return the example of a position's prompt and completion; the best move is a copy of the first candidate."""
        moves, scores = list(evals.evals_pawns), move_scores(evals)
        candidates = [int(i) for i in np.argsort(-scores, kind="stable")[:MAX_CANDIDATES]]
        best = candidates[0]
        pawns = [coarse(evals.evals_pawns[moves[i]]) for i in candidates]
        completion = PolicyCompletion(tuple(moves[i] for i in candidates), tuple(pawns), moves[best])
        board = self.board(evals)
        tokens = [*board.tokens, *self._encode(render_policy(completion, evals.fen)), self.end]
        hard, soft = self._targets(tokens, [*candidates, best], scores / TEMPERATURE, _squares_of(evals))
        return PolicyExample(tokens, board, hard, soft, len(board.tokens) - 1, float(scores[best]))

    def _targets(
        self, tokens: list[int], named: Sequence[int], logits: Array, squares: tuple[Array, Array]
    ) -> tuple[list[tuple[int, float]], list[SoftTarget]]:
        """Return targets of the completion's tokens; `named`: numbers of the candidates, then that of the best move."""
        marker_at = {self._markers[token]: at for at, token in enumerate(tokens) if token in self._markers}
        soft: list[SoftTarget] = []
        left = np.ones(len(logits), bool)
        # A promotion's letter may follow a move, so moves are found by their first square, whose token has a space.
        places = [at for at in range(marker_at["M:"] + 1, marker_at["E:"]) if tokens[at] in self._first]
        for at, number in zip(places, named[:-1], strict=True):
            soft += _square_targets(at, softmax(np.where(left, logits, NAMED_LOGIT)), number, squares)
            left[number] = False
        copied = (np.arange(len(logits)) == named[-1]).astype(float)
        soft += _square_targets(marker_at["B:"] + 1, copied, named[-1], squares)
        soft_at = {at for at, _, _ in soft}
        evals_at = range(marker_at["E:"] + 1, marker_at["B:"])
        others = (at for at in range(marker_at["M:"] - 1, len(tokens)) if at not in soft_at)
        return [(at, EVAL_WEIGHT if at in evals_at else LAYOUT_WEIGHT) for at in others], soft


def _squares_of(evals: MoveEvals) -> tuple[Array, Array]:
    """Return the squares that each move begins and ends on."""
    origins = np.array([chess.parse_square(move[:2]) for move in evals.evals_pawns])
    return origins, np.array([chess.parse_square(move[2:4]) for move in evals.evals_pawns])


def _square_targets(at: int, probabilities: Array, number: int, squares: tuple[Array, Array]) -> list[SoftTarget]:
    """Return targets of a move's two tokens: its first square, and its second square given the first one in the tokens.

    A first square has the probability of its best move, so that the likeliest square begins the best move.
    """
    origins, targets = squares
    shares = np.where(origins == origins[number], probabilities, 0.0)
    if shares.sum() < LEAST_SHARE:
        shares = (np.arange(len(shares)) == number).astype(float)
    second = np.bincount(targets, shares / shares.sum(), SQUARES)
    first = np.zeros(SQUARES)
    np.maximum.at(first, origins, probabilities)
    return [(at, True, first / first.sum()), (at + 1, False, second)]


def attacks_of(board: chess.Board, squares: Sequence[int]) -> Array:
    """Return (M, 64): 1 where the piece on each of M squares attacks a square, else 0."""
    masks = np.array([board.attacks_mask(square) for square in squares], np.uint64)
    bits = np.unpackbits(masks.view(np.uint8).reshape(len(squares), 8), axis=1, bitorder="little")
    attacks: Array = bits.astype(np.float32)
    return attacks

"""Rows of cloning with soft targets: an engine's verdict on every legal move becomes what each token should say."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import chess
import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ..board.evals import MATE_THRESHOLD_PAWNS, win_probability
from ..tasks.policy import MAX_CANDIDATES, render_policy, render_policy_prompt
from ..tasks.types import PolicyAnswer
from ..tasks.verdicts import Verdict
from .codec import BOARD_ORDER

# Of the softmax of win probabilities that candidates are drawn from and asked for, and of the one for the best move.
TEMPERATURE, BEST_TEMPERATURE = 0.04, 0.02
# Win probability hides a mate in a won position: a mate in n counts this much more, divided by n.
MATE_BONUS = 0.12
SQUARES = 64
LAYOUT_WEIGHT, EVAL_WEIGHT, BEST_WEIGHT = 0.05, 0.05, 1.0


@dataclass(frozen=True, slots=True)
class SoftRow:
    """A tokenised `P:` row and what its tokens should say."""

    tokens: list[int]
    hard: list[tuple[int, float]]
    """Positions whose token is asked for as it stands, with weights."""
    soft: list[tuple[int, bool, np.ndarray]]
    """Positions of a move's squares; whether it is the first of the two; probabilities of 64 squares."""
    board_at: int
    """Where the 64 tokens begin that the board's heads look at."""
    moves: np.ndarray
    """(64, 64): probability of each move, in the order of the board's tokens."""
    legal: np.ndarray
    """(64, 64): whether it is legal."""
    attacks: np.ndarray
    """(64, 64): whether the piece on a square attacks another."""
    value: float
    """Win probability of the side to move."""


PLACE_OF = np.empty(SQUARES, dtype=np.int64)
PLACE_OF[BOARD_ORDER] = np.arange(SQUARES)


def move_scores(verdict: Verdict) -> np.ndarray:
    """What each move is worth: win probability and a bonus for a mate."""
    scores = []
    for pawns in verdict.evals_pawns.values():
        bonus = 0.0
        if abs(pawns) > MATE_THRESHOLD_PAWNS:
            bonus = math.copysign(MATE_BONUS / max(1, round((1000 - abs(pawns)) * 100)), pawns)
        scores.append(win_probability(pawns) + bonus)
    return np.array(scores)


def softmax(logits: np.ndarray) -> np.ndarray:
    exponents = np.exp(logits - logits.max())
    return exponents / exponents.sum()


def coarse(pawns: float) -> float:
    """An eval on a grid that a small model can learn: mates as they are, else tenths, halves or whole pawns."""
    if abs(pawns) > MATE_THRESHOLD_PAWNS:
        return pawns
    step = 0.1 if abs(pawns) < 2 else 0.5 if abs(pawns) < 5 else 1.0
    return round(round(pawns / step) * step, 1) + 0.0


class SoftRows:
    """Makes rows of verdicts."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        ids = tokenizer.get_vocab()
        self.first_ids = torch.tensor([ids[" " + name] for name in chess.SQUARE_NAMES])
        self.second_ids = torch.tensor([ids[name] for name in chess.SQUARE_NAMES])
        self._first = {int(token): square for square, token in enumerate(self.first_ids)}
        self._second = {int(token): square for square, token in enumerate(self.second_ids)}
        self._markers = {ids[name]: name for name in ("M:", "E:", "B:")}
        self.end = tokenizer.eos_token_id

    def row(self, verdict: Verdict, rng: random.Random) -> SoftRow:
        moves = list(verdict.evals_pawns)
        scores = move_scores(verdict)
        origins = np.array([chess.parse_square(move[:2]) for move in moves])
        targets = np.array([chess.parse_square(move[2:4]) for move in moves])
        logits = scores / TEMPERATURE
        noise = np.array([-math.log(-math.log(rng.random() + 1e-12) + 1e-12) for _ in moves])
        chosen = list(np.argsort(-(logits + noise))[:MAX_CANDIDATES])
        best = int(scores.argmax())
        evals = [coarse(verdict.evals_pawns[moves[i]]) for i in chosen]
        answer = PolicyAnswer(tuple(moves[i] for i in chosen), tuple(evals), moves[best])
        text = render_policy_prompt(verdict.fen) + render_policy(answer, verdict.fen)
        tokens = [*self.tokenizer(text, add_special_tokens=False).input_ids, self.end]
        hard, soft = self._targets(tokens, chosen, best, logits, origins, targets)
        board = chess.Board(verdict.fen)
        policy = np.zeros((SQUARES, SQUARES), np.float32)
        places = PLACE_OF[origins], PLACE_OF[targets]
        np.add.at(policy, places, softmax(logits).astype(np.float32))
        legal = np.zeros((SQUARES, SQUARES), np.float32)
        legal[places] = 1
        return SoftRow(tokens, hard, soft, 65, policy, legal, attacks_of(board), float(scores[best]))

    def _targets(self, tokens, chosen, best, logits, origins, targets):  # type: ignore[no-untyped-def]
        place = {self._markers[token]: at for at, token in enumerate(tokens) if token in self._markers}
        hard, soft = [], []
        asked = set()
        left = np.ones(len(logits), bool)
        at = place["M:"] + 1
        for number in chosen:
            self._ask(soft, asked, at, softmax(np.where(left, logits, -1e9)), number, origins, targets)
            left[number] = False
            at += 2
            while tokens[at] not in self._first and tokens[at] != tokens[place["E:"] - 1] and at < place["E:"]:
                at += 1
        self._ask(
            soft, asked, place["B:"] + 1, softmax(logits * (TEMPERATURE / BEST_TEMPERATURE)), best, origins, targets
        )
        for at in range(place["M:"] - 1, len(tokens)):
            if at not in asked:
                weight = EVAL_WEIGHT if place["E:"] < at < place["B:"] else LAYOUT_WEIGHT
                hard.append((at, weight))
        return hard, soft

    def _ask(self, soft, asked, at, probabilities, number, origins, targets):  # type: ignore[no-untyped-def]
        soft.append((at, True, np.bincount(origins, probabilities, SQUARES)))
        same = origins == origins[number]
        shares = np.where(same, probabilities, 0.0)
        if shares.sum() < 1e-9:
            shares = np.zeros_like(shares)
            shares[number] = 1.0
        soft.append((at + 1, False, np.bincount(targets, shares / shares.sum(), SQUARES)))
        asked.update((at, at + 1))


def attacks_of(board: chess.Board) -> np.ndarray:
    """(64, 64) in the order of the board's tokens: which square's piece attacks which square."""
    masks = np.zeros(SQUARES, np.uint64)
    for square in chess.scan_forward(board.occupied):
        masks[square] = board.attacks_mask(square)
    bits = np.unpackbits(masks.view(np.uint8).reshape(SQUARES, 8), axis=1, bitorder="little")
    return bits[np.ix_(BOARD_ORDER, BOARD_ORDER)].astype(np.float32)


@dataclass(slots=True)
class SoftBatch:
    """Rows as tensors; N positions are asked for."""

    tokens_BT: Tensor
    hard_at: tuple[Tensor, Tensor]
    hard_ids_N: Tensor
    hard_weights_N: Tensor
    soft_at: tuple[Tensor, Tensor]
    soft_first_N: Tensor
    soft_NS: Tensor
    moves: Tensor
    legal: Tensor
    attacks: Tensor
    values: Tensor
    extra: dict[str, float] = field(default_factory=dict)


def collate(rows: Sequence[SoftRow], length: int, pad: int) -> SoftBatch:
    tokens = torch.full((len(rows), length), pad)
    for i, row in enumerate(rows):
        tokens[i, : len(row.tokens)] = torch.tensor(row.tokens)
    hard = [(i, at, weight) for i, row in enumerate(rows) for at, weight in row.hard]
    soft = [(i, at, first, shares) for i, row in enumerate(rows) for at, first, shares in row.soft]
    hard_rows, hard_places = torch.tensor([h[0] for h in hard]), torch.tensor([h[1] for h in hard])
    soft_rows, soft_places = torch.tensor([s[0] for s in soft]), torch.tensor([s[1] for s in soft])
    return SoftBatch(
        tokens,
        (hard_rows, hard_places - 1),
        tokens[hard_rows, hard_places],
        torch.tensor([h[2] for h in hard]),
        (soft_rows, soft_places - 1),
        torch.tensor([s[2] for s in soft]),
        torch.tensor(np.stack([s[3] for s in soft]), dtype=torch.float32),
        torch.tensor(np.stack([row.moves for row in rows])),
        torch.tensor(np.stack([row.legal for row in rows])),
        torch.tensor(np.stack([row.attacks for row in rows])),
        torch.tensor([row.value for row in rows]),
    )

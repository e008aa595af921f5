"""Rows of cloning with soft targets: an engine's verdict on every legal move becomes what each token should say."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import chess
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ..board.evals import MATE_THRESHOLD_PAWNS, win_probability
from ..model.chess_tokenizer import piece_symbols, placed_pieces
from ..tasks.move_evals import MoveEvals
from ..tasks.policy import MAX_CANDIDATES, render_policy, render_policy_prompt
from ..tasks.types import PolicyCompletion
from .encoder import Encoder

Array = NDArray[Any]

# Of the softmax of win probabilities that candidates are asked for, and of the one for the best move.
TEMPERATURE, BEST_TEMPERATURE = 0.04, 0.02
# Win probability hides a mate in a won position: a mate in n counts this much more, divided by n.
MATE_BONUS = 0.12
# In win probability: a move that gives away this much more is worth half.
HALVING_LOSS = 0.1
SQUARES = 64
# Candidates are ordered best first, and about equal moves in any order, by this share of Gumbel's noise on the logits.
# With the whole noise, which draws candidates from the softmax, greedy answers repeat the best move.
ORDER_NOISE = 0.1
# In place of the logit of a move that was named before.
LEFT_OUT = -1e9
LEAST_SHARE = 1e-9
# Behind `P: `.
BOARD_AT = 1
LAYOUT_WEIGHT, EVAL_WEIGHT = 0.3, 0.05


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A tokenised `P:` prompt and what the heads on its board should say."""

    tokens: list[int]
    squares: tuple[int, ...]
    """The squares of the board's M tokens, which begin at BOARD_AT: all men, then again the rivals, then the movers."""
    again_at: int
    """The place among the squares of the first man that is listed again."""
    movers_at: int
    """The place among the squares of the first mover."""
    moves: Array
    """(M, 64): probability of each move, by its mover's token and its target."""
    legal: Array
    """(M, 64): whether it is legal."""
    attacks: Array
    """(M, 64): whether the man attacks the square."""
    worth: Array
    """(M, 64): 1 for the best move, half of it for each HALVING_LOSS given away; 0 where no move is legal."""


@dataclass(frozen=True, slots=True)
class SoftRow:
    """A tokenised `P:` row and what its tokens should say."""

    tokens: list[int]
    """Prompt, completion, end of text."""
    board: BoardRow
    """The prompt alone."""
    hard: list[tuple[int, float]]
    """Positions whose token is asked for as it stands, with weights."""
    soft: list[tuple[int, bool, Array]]
    """Positions of a move's squares; whether it is the first of the two; probabilities of 64 squares."""
    value_at: int
    """The prompt's last token, from which the win probability is read."""
    value: float
    """Win probability of the side to move."""


def move_scores(verdict: MoveEvals) -> Array:
    """What each move is worth: win probability and a bonus for a mate."""
    scores = []
    for pawns in verdict.evals_pawns.values():
        bonus = 0.0
        if abs(pawns) > MATE_THRESHOLD_PAWNS:
            bonus = math.copysign(MATE_BONUS / max(1, round((1000 - abs(pawns)) * 100)), pawns)
        scores.append(_win_probability(pawns) + bonus)
    return np.array(scores)


# Centipawns repeat.
_win_probability = lru_cache(maxsize=1 << 16)(win_probability)


def softmax(logits: Array) -> Array:
    exponents = np.exp(logits - logits.max())
    shares: Array = exponents / exponents.sum()
    return shares


def coarse(pawns: float) -> float:
    """An eval on a grid that a small model can learn: mates as they are, else tenths, halves or whole pawns."""
    if abs(pawns) > MATE_THRESHOLD_PAWNS:
        return pawns
    step = 0.1 if abs(pawns) < 2 else 0.5 if abs(pawns) < 5 else 1.0
    return round(round(pawns / step) * step, 1) + 0.0


class SoftRows:
    """Makes rows of verdicts."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._encode = Encoder(tokenizer)
        ids = tokenizer.get_vocab()
        self.first_ids = torch.tensor([ids[" " + name] for name in chess.SQUARE_NAMES])
        self.second_ids = torch.tensor([ids[name] for name in chess.SQUARE_NAMES])
        self._first = {int(token): square for square, token in enumerate(self.first_ids)}
        self._second = {int(token): square for square, token in enumerate(self.second_ids)}
        self._markers = {ids[name]: name for name in ("M:", "E:", "B:")}
        self.end = tokenizer.eos_token_id

    def board(self, verdict: MoveEvals) -> BoardRow:
        """What the heads on the board are asked about a position."""
        scores, (origins, targets) = move_scores(verdict), _squares_of(verdict)
        placement, turn = verdict.fen.split(" ")[:2]
        men = placed_pieces(placement)
        movers, rivals = ([square for square, piece in men if piece in piece_symbols(side)] for side in _sides(turn))
        squares = (*(square for square, _ in men), *rivals, *movers)
        movers_at, again_at = len(squares) - len(movers), len(men)
        place = {square: number for number, square in enumerate(movers, start=movers_at)}
        at = np.array([place[origin] for origin in origins]), targets
        policy, legal, worth = np.zeros((3, len(squares), SQUARES), np.float32)
        np.add.at(policy, at, softmax(scores / TEMPERATURE).astype(np.float32))
        legal[at] = 1
        wins = np.array([_win_probability(pawns) for pawns in verdict.evals_pawns.values()])
        np.maximum.at(worth, at, (0.5 ** ((wins.max() - wins) / HALVING_LOSS)).astype(np.float32))
        attacks = attacks_of(chess.Board(verdict.fen), squares)
        tokens = self._encode(render_policy_prompt(verdict.fen))
        return BoardRow(tokens, squares, again_at, movers_at, policy, legal, attacks, worth)

    def row(self, verdict: MoveEvals, rng: random.Random) -> SoftRow:
        """A row of prompt and completion, and what every token of it is asked."""
        moves, scores, (origins, targets) = list(verdict.evals_pawns), move_scores(verdict), _squares_of(verdict)
        logits = scores / TEMPERATURE
        noise = np.array([-math.log(-math.log(rng.random() + 1e-12) + 1e-12) for _ in moves])
        chosen = list(np.argsort(-(logits + ORDER_NOISE * noise))[:MAX_CANDIDATES])
        best = int(scores.argmax())
        evals = [coarse(verdict.evals_pawns[moves[i]]) for i in chosen]
        answer = PolicyCompletion(tuple(moves[i] for i in chosen), tuple(evals), moves[best])
        board = self.board(verdict)
        tokens = [*board.tokens, *self._encode(render_policy(answer, verdict.fen)), self.end]
        hard, soft = self._targets(tokens, [int(i) for i in chosen], best, logits, origins, targets)
        return SoftRow(tokens, board, hard, soft, len(board.tokens) - 1, float(scores[best]))

    def _targets(
        self, tokens: list[int], chosen: Sequence[int], best: int, logits: Array, origins: Array, targets: Array
    ) -> tuple[list[tuple[int, float]], list[tuple[int, bool, Array]]]:
        place = {self._markers[token]: at for at, token in enumerate(tokens) if token in self._markers}
        soft: list[tuple[int, bool, Array]] = []
        left = np.ones(len(logits), bool)
        # A promotion's piece stands between two moves; the next begins with a square that has a blank before it.
        places = [at for at in range(place["M:"] + 1, place["E:"]) if tokens[at] in self._first]
        for at, number in zip(places, chosen, strict=True):
            soft += _asked(at, softmax(np.where(left, logits, LEFT_OUT)), number, origins, targets)
            left[number] = False
        sharp = softmax(logits * (TEMPERATURE / BEST_TEMPERATURE))
        soft += _asked(place["B:"] + 1, sharp, best, origins, targets)
        asked = {at for at, _, _ in soft}
        evals = range(place["E:"] + 1, place["B:"])
        rest = (at for at in range(place["M:"] - 1, len(tokens)) if at not in asked)
        return [(at, EVAL_WEIGHT if at in evals else LAYOUT_WEIGHT) for at in rest], soft


def _sides(turn: str) -> tuple[chess.Color, chess.Color]:
    """The side to move, by its letter in a FEN, and the side that waits."""
    return turn == "w", turn != "w"


def _squares_of(verdict: MoveEvals) -> tuple[Array, Array]:
    """The squares that each move begins and ends on."""
    origins = np.array([chess.parse_square(move[:2]) for move in verdict.evals_pawns])
    return origins, np.array([chess.parse_square(move[2:4]) for move in verdict.evals_pawns])


def _asked(at: int, probabilities: Array, number: int, origins: Array, targets: Array) -> list[tuple[int, bool, Array]]:
    """Targets of a move's two tokens: the square to move from, and the square to move to from the one in the row."""
    shares = np.where(origins == origins[number], probabilities, 0.0)
    if shares.sum() < LEAST_SHARE:
        shares = (np.arange(len(shares)) == number).astype(float)
    second = np.bincount(targets, shares / shares.sum(), SQUARES)
    return [(at, True, np.bincount(origins, probabilities, SQUARES)), (at + 1, False, second)]


def attacks_of(board: chess.Board, squares: Sequence[int]) -> Array:
    """(M, 64): whether the man on each of M squares, if there is one, attacks each square."""
    masks = np.array([board.attacks_mask(square) for square in squares], np.uint64)
    bits = np.unpackbits(masks.view(np.uint8).reshape(len(squares), 8), axis=1, bitorder="little")
    attacks: Array = bits.astype(np.float32)
    return attacks


@dataclass(slots=True)
class BoardBatch:
    """Prompts' boards as tensors; rows are padded to the longest list of M men."""

    again_BM: Tensor
    """Whether a token of the board is of a man that is listed again, which has seen the whole board."""
    mover_BM: Tensor
    """Whether it is a mover's."""
    moves_BMS: Tensor
    legal_BMS: Tensor
    attacks_BMS: Tensor
    worth_BMS: Tensor

    def to(self, device: torch.device) -> "BoardBatch":
        """A copy of all tensors on another device."""
        return BoardBatch(*(getattr(self, spec.name).to(device) for spec in fields(self)))


@dataclass(slots=True)
class SoftBatch:
    """Rows as tensors; N positions are asked for."""

    tokens_BT: Tensor
    board: BoardBatch
    hard_at: tuple[Tensor, Tensor]
    hard_ids_N: Tensor
    hard_weights_N: Tensor
    soft_at: tuple[Tensor, Tensor]
    soft_first_N: Tensor
    soft_NS: Tensor
    value_at_B: Tensor
    values_B: Tensor

    def to(self, device: torch.device) -> "SoftBatch":
        """A copy of all tensors on another device."""
        moved: dict[str, Any] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            pair = isinstance(value, tuple)
            moved[spec.name] = tuple(part.to(device) for part in value) if pair else value.to(device)
        return SoftBatch(**moved)


def tokens_of(rows: Sequence[list[int]], pad: int) -> Tensor:
    """(B, T): rows of tokens, padded behind to the longest."""
    tokens_BT = torch.full((len(rows), max(map(len, rows))), pad)
    for number, row in enumerate(rows):
        tokens_BT[number, : len(row)] = torch.tensor(row)
    return tokens_BT


def collate_boards(rows: Sequence[BoardRow]) -> BoardBatch:
    """What the heads on the boards are asked, padded to the longest list of men."""
    longest = max(len(row.squares) for row in rows)
    starts = torch.tensor([[row.again_at, row.movers_at, len(row.squares)] for row in rows])
    (again, movers, ends), places = starts.T.unsqueeze(2), torch.arange(longest)
    return BoardBatch(
        (places >= again) & (places < ends),
        (places >= movers) & (places < ends),
        _padded([row.moves for row in rows], longest),
        _padded([row.legal for row in rows], longest),
        _padded([row.attacks for row in rows], longest),
        _padded([row.worth for row in rows], longest),
    )


def collate(rows: Sequence[SoftRow], pad: int) -> SoftBatch:
    """Rows padded to the longest, with all that is asked of them."""
    tokens = tokens_of([row.tokens for row in rows], pad)
    hard = [(i, at, weight) for i, row in enumerate(rows) for at, weight in row.hard]
    soft = [(i, at, first, shares) for i, row in enumerate(rows) for at, first, shares in row.soft]
    hard_rows, hard_places = torch.tensor([h[0] for h in hard]), torch.tensor([h[1] for h in hard])
    soft_rows, soft_places = torch.tensor([s[0] for s in soft]), torch.tensor([s[1] for s in soft])
    return SoftBatch(
        tokens,
        collate_boards([row.board for row in rows]),
        (hard_rows, hard_places - 1),
        tokens[hard_rows, hard_places],
        torch.tensor([h[2] for h in hard]),
        (soft_rows, soft_places - 1),
        torch.tensor([s[2] for s in soft]),
        torch.tensor(np.stack([s[3] for s in soft]), dtype=torch.float32),
        torch.tensor([row.value_at for row in rows]),
        torch.tensor([row.value for row in rows]),
    )


def _padded(boards: Sequence[Array], men: int) -> Tensor:
    """(B, men, 64), zeros behind a board's last token."""
    padded = np.zeros((len(boards), men, SQUARES), np.float32)
    for number, board in enumerate(boards):
        padded[number, : len(board)] = board
    return torch.from_numpy(padded)

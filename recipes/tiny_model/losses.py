"""Losses of a batch of examples: of its tokens, and of the auxiliary heads."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from .batches import BoardBatch, EnvironmentBatch, PolicyBatch
from .model import ATTACKS, LEGAL, MOVE_VALUES, MOVES, ModelWithHeads
from .policy_examples import BOARD_AT

# Logit of a move at a token that is not an own piece.
IMPOSSIBLE_LOGIT = -1e4


@dataclass(slots=True)
class LossWeights:
    """Weights of the auxiliary heads' losses and of copied pieces; all else has weight 1."""

    moves: float = 0.5
    """Weight of the board head for the distribution of moves."""
    legal: float = 0.02
    """Weight of the board head for legal moves."""
    attacks: float = 0.03
    """Weight of the board head for attacks."""
    move_values: float = 0.05
    """Weight of the board head for the value of each legal move."""
    pieces: float = 0.5
    """Weight of the head for the piece that moves, at the tokens of the own pieces."""
    win_probability: float = 0.3
    """Weight of the head for the win probability, at the end of a `P:` prompt."""
    outcome: float = 0.5
    """Weight of the head for the outcome of an `A:` example's move, at the end of its prompt."""
    targets: float = 0.1
    """Weight of the board head for the legal targets of an `A:` example's piece, at the token of its square."""
    copied: float = 1.0
    """Weight of the tokens in an `A:` completion for pieces that have not moved; its other tokens have 1."""

    def __post_init__(self) -> None:
        heads = (self.moves, self.legal, self.attacks, self.move_values, self.pieces, self.targets)
        if min(*heads, self.win_probability, self.outcome, self.copied) < 0:
            raise ValueError("training.weights: expected weights of at least 0")


@dataclass(frozen=True, slots=True)
class Losses:
    """Computes the weighted losses by name; their sum is the loss of the step."""

    model: ModelWithHeads
    weights: LossWeights
    square_ids: Tensor
    """(2, 64): token ids of the squares' names as the second and as the first square of a move."""

    def policy(self, batch: PolicyBatch, count: int, embeddings_VH: Tensor) -> dict[str, Tensor]:
        """Return losses, sums over `P:` examples divided by `count`: completion, board heads, win probability."""
        batch = batch.to(self.square_ids.device)
        middle, hidden = self.model(batch.tokens_BT, embeddings_VH)
        win = self.model.win_probability(hidden[torch.arange(len(batch.win_at_B)), batch.win_at_B])[:, 0].float()
        win_loss = F.binary_cross_entropy_with_logits(win, batch.wins_B.clamp(0, 1), reduction="sum")
        return {
            "tokens": self._tokens(batch, hidden, embeddings_VH) / count,
            **self._heads(batch.board, middle, count),
            "win_probability": self.weights.win_probability * win_loss / count,
        }

    def environment(self, batch: EnvironmentBatch, count: int, embeddings_VH: Tensor) -> dict[str, Tensor]:
        """Return losses, sums over `A:` examples divided by `count`: completion, outcome and legal targets."""
        batch, numbers = batch.to(self.square_ids.device), torch.arange(len(batch.tokens_BT))
        middle_BTH, hidden_BTH = self.model(batch.tokens_BT, embeddings_VH)
        logits = self.model.outcome(hidden_BTH[numbers, batch.last_B]).float()
        heads = self.model.board(middle_BTH[numbers, batch.origins_B].unsqueeze(1)).float()
        targets = F.binary_cross_entropy_with_logits(heads[:, LEGAL, 0], batch.targets_BS, reduction="sum")
        outcome = F.cross_entropy(logits, batch.outcomes_B, reduction="sum")
        return {
            "environment": self._completions(batch, hidden_BTH, embeddings_VH) / count,
            "outcome": self.weights.outcome * outcome / count,
            "targets": self.weights.targets * targets / count,
        }

    def _heads(self, board: BoardBatch, middle_BTH: Tensor, count: int) -> dict[str, Tensor]:
        repeated, own = board.repeated_BM.unsqueeze(2), board.own_BM.unsqueeze(2)
        board_BMH = middle_BTH[:, BOARD_AT : BOARD_AT + board.own_BM.shape[1]]
        heads = self.model.board(board_BMH).float()
        pieces = self.model.piece(board_BMH).float().masked_fill(~own, IMPOSSIBLE_LOGIT).log_softmax(1)
        best_BM1 = board.moves_BMS.amax(2, keepdim=True)
        logprobs = heads[:, MOVES].masked_fill(~own, IMPOSSIBLE_LOGIT).flatten(1).log_softmax(1)
        binary = partial(F.binary_cross_entropy_with_logits, reduction="sum")
        shape = board.legal_BMS.shape
        legal = binary(heads[:, LEGAL], board.legal_BMS, weight=own.float().expand(shape))
        attacks = binary(heads[:, ATTACKS], board.attacks_BMS, weight=repeated.float().expand(shape))
        values = binary(heads[:, MOVE_VALUES], board.move_values_BMS, weight=board.legal_BMS)
        return {
            "moves": self.weights.moves * -(board.moves_BMS.flatten(1) * logprobs).sum() / count,
            "legal": self.weights.legal * legal / count,
            "attacks": self.weights.attacks * attacks / count,
            "move_values": self.weights.move_values * values / count,
            "pieces": self.weights.pieces * -(best_BM1 / best_BM1.sum(1, keepdim=True) * pieces).sum() / count,
        }

    def _tokens(self, batch: PolicyBatch, hidden_BTH: Tensor, embeddings_VH: Tensor) -> Tensor:
        """Return the sum over tokens: KL(target‖model) for squares of moves, weighted cross-entropy for the others."""
        logprobs_NV = (hidden_BTH[batch.soft_at] @ embeddings_VH.T).float().log_softmax(-1)
        logprobs_NS = logprobs_NV.gather(1, self.square_ids[batch.soft_first_N.long()])
        entropy = torch.special.entr(batch.soft_NS).sum()
        soft = -(logprobs_NS * batch.soft_NS).sum() - entropy
        logits_NV = (hidden_BTH[batch.hard_at] @ embeddings_VH.T).float()
        hard_N = F.cross_entropy(logits_NV, batch.hard_ids_N, reduction="none")
        loss: Tensor = soft + (hard_N * batch.hard_weights_N).sum()
        return loss

    def _completions(self, batch: EnvironmentBatch, hidden_BTH: Tensor, embeddings_VH: Tensor) -> Tensor:
        """Return the weighted cross-entropy, summed over the completions' tokens."""
        rows_N, places_N = batch.completion_at
        weights_N = torch.ones_like(batch.copied_N, dtype=torch.float32)
        weights_N.masked_fill_(batch.copied_N, self.weights.copied)
        logits_NV = (hidden_BTH[rows_N, places_N - 1] @ embeddings_VH.T).float()
        losses_N = F.cross_entropy(logits_NV, batch.tokens_BT[rows_N, places_N], reduction="none")
        return (losses_N * weights_N).sum()

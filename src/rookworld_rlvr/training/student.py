"""The training form of a small GPT-2: factored embeddings and heads on the board, both gone once it is exported."""

import math
from dataclasses import dataclass
from typing import Any

import chess
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from .codec import POSITIONS, board_pieces, piece_token, seen_token

SQUARES = 64
# What comes of a move in an `A:` row: illegal, the game goes on, a mate, a draw.
OUTCOMES = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a new model."""

    layers: int = 6
    width: int = 192
    heads: int = 6
    board_layer: int = 4
    """The layers before the heads on the board."""


def token_features(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """(V, features), zeros and ones: what a token is about.

    A piece on a square has those of its piece, colour, kind, square, file, rank and diagonals; on the board of a
    prompt also of whose it is and of the square as the side to move sees it. A square's name in a move shares the
    square's.
    """
    names: dict[str, int] = {}
    rows: list[list[int]] = [[] for _ in range(len(tokenizer))]
    ids = tokenizer.get_vocab()

    def add(token: str, *features: str) -> None:
        rows[ids[token]] += [names.setdefault(feature, len(names)) for feature in features]

    for square in chess.SQUARES:
        for piece in board_pieces(square):
            add(piece_token(piece, square), "board", *_square(square), *_piece(piece))
            for turn in chess.COLORS:
                seen = square if turn else chess.square_mirror(square)
                sides = _side(piece, turn)
                relative = [f"seen {feature}" for feature in _square(seen)]
                features = [*_square(square), *_piece(piece), *sides, *relative, f"turn {turn}"]
                pawn_like = [f"{side} seen rank {chess.square_rank(seen)}" for side in sides]
                add(seen_token(piece, square, turn), "seen board", *features, *pawn_like)
        for lead in ("", " "):
            add(lead + chess.square_name(square), f"name {lead!r}", *_square(square))
    features_VF = torch.zeros(len(tokenizer), len(names))
    for token, own in enumerate(rows):
        features_VF[token, own] = 1.0
    return features_VF


def _square(square: int) -> list[str]:
    file, rank = chess.square_file(square), chess.square_rank(square)
    lines = [f"file {file}", f"rank {rank}", f"diagonal {file + rank}", f"antidiagonal {file - rank}"]
    return [f"square {square}", *lines, f"shade {(file + rank) % 2}"]


def _piece(piece: str) -> list[str]:
    if piece.upper() not in "PNBRQK":
        return ["blank"]
    return [f"piece {piece}", f"kind {piece.upper()}", f"white {piece.isupper()}"]


def _side(piece: str, turn: chess.Color) -> list[str]:
    if piece.upper() not in "PNBRQK":
        return ["seen blank"]
    own = piece.isupper() == turn
    return [f"own {own}", f"own {own} {piece.upper()}"]


class Block(nn.Module):
    """GPT-2's block: pre-norm attention and MLP. Query, key and value are matrices of their own, as Muon wants them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for layer in (self.query, self.key, self.value, self.up):
            nn.init.normal_(layer.weight, std=width**-0.5)
        for layer in (self.query, self.key, self.value, self.out, self.up, self.down):
            nn.init.zeros_(layer.bias)
        for layer in (self.out, self.down):
            nn.init.normal_(layer.weight, std=0.1 * width**-0.5)

    def forward(self, hidden_BTH: Tensor, bias_TT: Tensor) -> Tensor:
        batch, length, width = hidden_BTH.shape
        normed_BTH = self.ln_1(hidden_BTH)
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (f(normed_BTH).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = (query * (width // self.heads) ** -0.5) @ key.transpose(2, 3) + bias_TT
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        hidden_BTH = hidden_BTH + self.out(mixed)
        inner = F.relu(self.up(self.ln_2(hidden_BTH))).square()
        found: Tensor = hidden_BTH + self.down(inner)
        return found


class BoardHeads(nn.Module):
    """What is asked of the tokens of a board while the model learns: which squares each man goes to or attacks.

    `moves`: logits of all moves, one distribution over the position's legal moves. `legal`: logits of each being legal.
    `attacks`: logits of each being an attack, of either side's men.
    """

    NAMES = ("moves", "legal", "attacks")

    def __init__(self, width: int, size: int = 64) -> None:
        super().__init__()
        self.size = size
        self.norm = nn.LayerNorm(width)
        self.origin = nn.Linear(width, len(self.NAMES) * size)
        self.targets = nn.Parameter(0.3 * torch.randn(len(self.NAMES), SQUARES, size))
        self.offset = nn.Parameter(torch.tensor([0.0, -4.0, -4.0]))

    def forward(self, hidden_BMH: Tensor) -> Tensor:
        """(B, 3, M, 64): logits by head, token of the board, and target square."""
        shape = (*hidden_BMH.shape[:2], len(self.NAMES), self.size)
        origin = self.origin(self.norm(hidden_BMH)).view(shape).transpose(1, 2)
        logits: Tensor = origin @ self.targets.mT * self.size**-0.5 + self.offset[:, None, None]
        return logits


class Student(nn.Module):
    """A GPT-2 whose token embeddings are sums of features' vectors, tied to the head."""

    features_VF: Tensor
    bias_TT: Tensor

    def __init__(self, shape: Shape, features_VF: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("features_VF", features_VF, persistent=False)
        self.feature_vectors = nn.Parameter(0.02 * torch.randn(features_VF.shape[1], shape.width))
        self.own_VH = nn.Parameter(torch.zeros(len(features_VF), shape.width))
        bare = features_VF.sum(1) == 0
        self.own_VH.data[bare] = 0.02 * torch.randn(int(bare.sum()), shape.width)
        self.positions = nn.Parameter(sinusoids(POSITIONS, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.board = BoardHeads(shape.width)
        self.value = nn.Linear(shape.width, 1)
        self.outcome = nn.Linear(shape.width, OUTCOMES)
        future = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).triu(1)
        self.register_buffer("bias_TT", torch.zeros(POSITIONS, POSITIONS).masked_fill(future, -1e4), persistent=False)

    def embeddings(self) -> Tensor:
        """(V, H)."""
        return self.features_VF @ self.feature_vectors + self.own_VH

    def forward(self, tokens_BT: Tensor, embeddings_VH: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states (B, T, H) of the layer that the board's heads look at, and the last ones, normed."""
        length = tokens_BT.shape[1]
        hidden = F.embedding(tokens_BT, embeddings_VH) + self.positions[:length]
        bias = self.bias_TT[:length, :length]
        middle = hidden
        for number, block in enumerate(self.blocks, start=1):
            hidden = block(hidden, bias)
            if number == self.shape.board_layer:
                middle = hidden
        return middle, self.norm(hidden)

    def hidden_matrices(self) -> list[nn.Parameter]:
        """What Muon steps: the matrices within the blocks."""
        return [parameter for parameter in self.blocks.parameters() if parameter.ndim == 2]

    def other_parameters(self) -> list[nn.Parameter]:
        """What AdamW steps."""
        matrices = set(map(id, self.hidden_matrices()))
        return [parameter for parameter in self.parameters() if id(parameter) not in matrices]


def sinusoids(positions: int, width: int) -> Tensor:
    """(positions, width), at the scale of GPT-2's initial embeddings; arXiv 1706.03762."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(positions).unsqueeze(1) * rates
    return 0.02 * torch.cat([angles.sin(), angles.cos()], dim=1)


def gpt2_config(
    tokenizer: PreTrainedTokenizerFast, layers: int, width: int, heads: int, *, activation_function: str
) -> GPT2Config:
    """A GPT-2 without dropout for this tokenizer."""
    return GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=POSITIONS,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        activation_function=activation_function,
    )


@torch.no_grad()
def export(student: Student, tokenizer: PreTrainedTokenizerFast) -> Any:
    """The same function as a stock `GPT2LMHeadModel`: embeddings added up, the heads on the board left out."""
    shape = student.shape
    config = gpt2_config(tokenizer, shape.layers, shape.width, shape.heads, activation_function="relu2")
    model: Any = GPT2LMHeadModel(config)
    body = model.transformer
    body.wte.weight.copy_(student.embeddings())
    body.wpe.weight.copy_(student.positions)
    body.ln_f.load_state_dict(student.norm.state_dict())
    blocks: Any = student.blocks
    for block, ours in zip(body.h, blocks, strict=True):
        block.ln_1.load_state_dict(ours.ln_1.state_dict())
        block.ln_2.load_state_dict(ours.ln_2.state_dict())
        projections = (ours.query, ours.key, ours.value)
        block.attn.c_attn.weight.copy_(torch.cat([layer.weight for layer in projections]).T)
        block.attn.c_attn.bias.copy_(torch.cat([layer.bias for layer in projections]))
        for theirs, layer in ((block.attn.c_proj, ours.out), (block.mlp.c_fc, ours.up), (block.mlp.c_proj, ours.down)):
            theirs.weight.copy_(layer.weight.T)
            theirs.bias.copy_(layer.bias)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval()

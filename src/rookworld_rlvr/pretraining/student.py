"""The training form of a small Qwen3: factored embeddings and heads on the board, both gone once it is exported."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import chess
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from ..model.blocks import compiled
from ..model.chess_tokenizer import (
    POSITIONS,
    board_pieces,
    opponent_token,
    own_token,
    piece_symbols,
    piece_token,
    prompt_token,
)

SQUARES = 64
NORM_EPS = 1e-6
NUMBER = re.compile(r"(?P<lead>[ +.]?)(?P<digits>[0-9]{1,2})")
ROPE_THETA = 10_000.0
# The heads on the board, by number.
MOVES, LEGAL, ATTACKS, WORTH = range(4)
# What comes of a move in an `A:` row: illegal, the game goes on, a mate, a draw.
OUTCOMES = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a new model."""

    layers: int = 6
    width: int = 192
    heads: int = 6
    board_layer: int = 4
    """The layers before the heads on the board."""

    @property
    def inner(self) -> int:
        """Width within the MLP: about 8/3 of the hidden size, a multiple of 32."""
        return (8 * self.width // 3 + 31) // 32 * 32


def token_features(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """(V, features), zeros and ones: what a token is about.

    A piece on a square has features of its piece, colour, kind, square, file, rank and diagonals. On the board of a
    prompt it also has features of whose piece it is and of the square as the side to move sees it. A square's name
    in a move shares the features of the square. A number has features of its digits.
    """
    features = _Features(tokenizer.get_vocab())
    for square in chess.SQUARES:
        _add_board_tokens(features, square)
    features.add_numbers()
    for square in chess.SQUARES:
        for turn in chess.COLORS:
            for name, side, token in (("mover", turn, own_token), ("rival", not turn, opponent_token)):
                for piece in piece_symbols(side):
                    whose = [*_piece(piece), *_side(piece, turn), f"turn {turn}"]
                    features.add(token(piece, square, turn), name, *_square(square), *whose, *_relative(square, turn))
    return features.matrix()


class _Features:
    """Names features as they come, and notes which token has which."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids, self._names = ids, dict[str, int]()
        self._rows: list[list[int]] = [[] for _ in ids]

    def add(self, token: str, *features: str) -> None:
        self._rows[self._ids[token]] += [self._names.setdefault(feature, len(self._names)) for feature in features]

    def add_numbers(self) -> None:
        # In the order of their ids: a vocabulary comes in another order every time.
        for token in sorted(self._ids, key=self._ids.__getitem__):
            if found := NUMBER.fullmatch(token):
                lead, digits = found["lead"], found["digits"]
                places = [f"digit {place} {digit}" for place, digit in enumerate(reversed(digits))]
                self.add(token, f"number {lead!r}", f"digits {len(digits)}", *places)

    def matrix(self) -> Tensor:
        """(V, features)."""
        features_VF = torch.zeros(len(self._rows), len(self._names))
        for number, own in enumerate(self._rows):
            features_VF[number, own] = 1.0
        return features_VF


def _add_board_tokens(features: _Features, square: int) -> None:
    for piece in board_pieces(square):
        features.add(piece_token(piece, square), "board", *_square(square), *_piece(piece))
        for turn in chess.COLORS:
            sides = _side(piece, turn)
            rank = chess.square_rank(square if turn else chess.square_mirror(square))
            pawn_like = [f"{side} seen rank {rank}" for side in sides]
            about = [*_square(square), *_piece(piece), *sides, *_relative(square, turn), f"turn {turn}", *pawn_like]
            features.add(prompt_token(piece, square, turn), "seen board", *about)
    for lead in ("", " "):
        features.add(lead + chess.square_name(square), f"name {lead!r}", *_square(square))


def _relative(square: int, turn: chess.Color) -> list[str]:
    """A square as the side to move sees it."""
    return [f"seen {feature}" for feature in _square(square if turn else chess.square_mirror(square))]


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
    """Qwen3's block: attention with rotary positions and normed queries and keys, and a gated MLP; no biases.

    Source: arXiv 2505.09388.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner = shape.width, shape.inner
        self.heads = shape.heads
        self.norm_1, self.norm_2 = (nn.RMSNorm(width, eps=NORM_EPS) for _ in range(2))
        self.query_norm, self.key_norm = (nn.RMSNorm(width // shape.heads, eps=NORM_EPS) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        for layer in (self.query, self.key, self.value, self.gate, self.up):
            nn.init.normal_(layer.weight, std=width**-0.5)
        for layer in (self.out, self.down):
            nn.init.normal_(layer.weight, std=0.1 * width**-0.5)

    def forward(self, hidden_BTH: Tensor, rotation: tuple[Tensor, Tensor], bias_TT: Tensor) -> Tensor:
        batch, length, width = hidden_BTH.shape
        normed_BTH = self.norm_1(hidden_BTH)
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (f(normed_BTH).view(shape) for f in (self.query, self.key, self.value))
        query, key = (rotated(norm(x), *rotation) for norm, x in ((self.query_norm, query), (self.key_norm, key)))
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        scores = (query * (width // self.heads) ** -0.5) @ key.transpose(2, 3) + bias_TT
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        hidden_BTH = hidden_BTH + self.out(mixed)
        normed_BTH = self.norm_2(hidden_BTH)
        found: Tensor = hidden_BTH + self.down(F.silu(self.gate(normed_BTH)) * self.up(normed_BTH))
        return found


def rotation_of(positions: int, size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each (positions, 1, size), of rotary positions; arXiv 2104.09864."""
    rates = ROPE_THETA ** (-torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(positions).float(), rates).repeat(1, 2).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotated(x_BTND: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Queries or keys turned by their positions, as transformers' Qwen3 does: the halves of a head are its pairs."""
    first, second = x_BTND.chunk(2, dim=-1)
    return x_BTND * cosines + torch.cat([-second, first], -1) * sines


class BoardHeads(nn.Module):
    """What is asked of the tokens of a board while the model learns: which squares each man goes to or attacks.

    `moves`: logits of all moves, one distribution over the position's legal moves. `legal`: logits of each being legal.
    `attacks`: logits of each being an attack, of either side's men. `worth`: logits of what each legal move is worth.
    """

    COUNT = 4

    def __init__(self, width: int, size: int = 64) -> None:
        super().__init__()
        self.size = size
        self.norm = nn.LayerNorm(width)
        self.origin = nn.Linear(width, self.COUNT * size)
        self.targets = nn.Parameter(0.3 * torch.randn(self.COUNT, SQUARES, size))
        self.offset = nn.Parameter(torch.tensor([0.0, -4.0, -4.0, 0.0]))

    def forward(self, hidden_BMH: Tensor) -> Tensor:
        """(B, 4, M, 64): logits by head, token of the board, and target square."""
        shape = (*hidden_BMH.shape[:2], self.COUNT, self.size)
        origin = self.origin(self.norm(hidden_BMH)).view(shape).transpose(1, 2)
        logits: Tensor = origin @ self.targets.mT * self.size**-0.5 + self.offset[:, None, None]
        return logits


class Student(nn.Module):
    """A Qwen3 whose token embeddings are sums of features' vectors, tied to the head."""

    features_VF: Tensor
    bias_TT: Tensor
    cosines: Tensor
    sines: Tensor

    def __init__(self, shape: Shape, features_VF: Tensor, *, compile_blocks: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self._block_pass: Any = compiled(Block.forward) if compile_blocks else Block.forward
        self.register_buffer("features_VF", features_VF, persistent=False)
        self.feature_vectors = nn.Parameter(0.02 * torch.randn(features_VF.shape[1], shape.width))
        self.own_VH = nn.Parameter(torch.zeros(len(features_VF), shape.width))
        bare = features_VF.sum(1) == 0
        self.own_VH.data[bare] = 0.02 * torch.randn(int(bare.sum()), shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=NORM_EPS)
        self.board = BoardHeads(shape.width)
        self.value = nn.Linear(shape.width, 1)
        self.outcome = nn.Linear(shape.width, OUTCOMES)
        cosines, sines = rotation_of(POSITIONS, shape.width // shape.heads)
        future = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).triu(1)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self.register_buffer("bias_TT", torch.zeros(POSITIONS, POSITIONS).masked_fill(future, -1e4), persistent=False)

    def embeddings(self) -> Tensor:
        """(V, H)."""
        return self.features_VF @ self.feature_vectors + self.own_VH

    def forward(self, tokens_BT: Tensor, embeddings_VH: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states (B, T, H) of the layer that the board's heads look at, and the last ones, normed."""
        middle = self.middle(tokens_BT, embeddings_VH)
        return middle, self.norm(self._through(middle, self.shape.board_layer, self.shape.layers))

    def middle(self, tokens_BT: Tensor, embeddings_VH: Tensor) -> Tensor:
        """Hidden states (B, T, H) of the layer that the board's heads look at; the later layers are not computed."""
        return self._through(F.embedding(tokens_BT, embeddings_VH), 0, self.shape.board_layer)

    def _through(self, hidden_BTH: Tensor, first: int, last: int) -> Tensor:
        length = hidden_BTH.shape[1]
        rotation, bias = (self.cosines[:length], self.sines[:length]), self.bias_TT[:length, :length]
        for block in self.blocks[first:last]:
            hidden_BTH = self._block_pass(block, hidden_BTH, rotation, bias)
        return hidden_BTH

    def hidden_matrices(self) -> list[nn.Parameter]:
        """What Muon steps: the matrices within the blocks."""
        return [parameter for parameter in self.blocks.parameters() if parameter.ndim == 2]

    def other_parameters(self) -> list[nn.Parameter]:
        """What AdamW steps."""
        matrices = set(map(id, self.hidden_matrices()))
        return [parameter for parameter in self.parameters() if id(parameter) not in matrices]


@torch.no_grad()
def export(student: Student, tokenizer: PreTrainedTokenizerFast) -> Any:
    """The student as a stock `Qwen3ForCausalLM`: embeddings added up, the heads on the board left out."""
    model: Any = Qwen3ForCausalLM(_config(student.shape, tokenizer))
    model.model.embed_tokens.weight.copy_(student.embeddings())
    model.model.norm.load_state_dict(student.norm.state_dict())
    blocks: Any = student.blocks
    for layer, block in zip(model.model.layers, blocks, strict=True):
        attention = layer.self_attn
        pairs = (
            (layer.input_layernorm, block.norm_1),
            (layer.post_attention_layernorm, block.norm_2),
            (attention.q_norm, block.query_norm),
            (attention.k_norm, block.key_norm),
            (attention.q_proj, block.query),
            (attention.k_proj, block.key),
            (attention.v_proj, block.value),
            (attention.o_proj, block.out),
            (layer.mlp.gate_proj, block.gate),
            (layer.mlp.up_proj, block.up),
            (layer.mlp.down_proj, block.down),
        )
        for theirs, ours in pairs:
            theirs.load_state_dict(ours.state_dict())
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval()


def _config(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.width // shape.heads,
        max_position_embeddings=POSITIONS,
        rms_norm_eps=NORM_EPS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )

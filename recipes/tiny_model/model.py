"""Qwen3 with auxiliary heads: the form in which the small model is trained.

Token embeddings are sums of feature vectors, and heads read the board's tokens. The export has neither: each embedding
is one vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from rookworld_rlvr.errors import UserError

from .tokenizer import POSITIONS

SQUARES = 64
NORM_EPS = 1e-6
ROPE_THETA = 10_000.0
# The heads on the board, by number.
MOVES, LEGAL, ATTACKS, MOVE_VALUES = range(4)
# Number of outcomes of a move in an `A:` example: illegal, the game continues, checkmate, draw.
OUTCOMES = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a new model."""

    layers: int
    width: int
    heads: int
    board_layer: int
    """Number of layers before the heads on the board."""

    @property
    def inner(self) -> int:
        """Width within the MLP: about 8/3 of the hidden size, a multiple of 32."""
        return (8 * self.width // 3 + 31) // 32 * 32


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
        query, key = (
            rotated(normed(norm, x), *rotation) for norm, x in ((self.query_norm, query), (self.key_norm, key))
        )
        # The backward pass of torch's own attention in bfloat16 takes three times as long on a CPU (torch 2.13).
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        scores = (query * (width // self.heads) ** -0.5) @ key.transpose(2, 3) + bias_TT.to(query.dtype)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        hidden_BTH = hidden_BTH + self.out(mixed)
        normed_BTH = self.norm_2(hidden_BTH)
        output: Tensor = hidden_BTH + self.down(F.silu(self.gate(normed_BTH)) * self.up(normed_BTH))
        return output


def normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """Return `x` normalised in its own dtype, which may be the bfloat16 of an autocast."""
    return F.rms_norm(x, x.shape[-1:], norm.weight.to(x.dtype), NORM_EPS)


def rotation_of(positions: int, size: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each (positions, 1, size), of rotary positions; arXiv 2104.09864."""
    rates = ROPE_THETA ** (-torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(positions).float(), rates).repeat(1, 2).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotated(x_BTND: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate queries or keys by their positions, as in transformers' Qwen3: pairs combine the two halves of a head."""
    first, second = x_BTND.chunk(2, dim=-1)
    return x_BTND * cosines.to(x_BTND.dtype) + torch.cat([-second, first], -1) * sines.to(x_BTND.dtype)


class BoardHeads(nn.Module):
    """Auxiliary heads on the tokens of a board, which predict the squares that each piece goes to or attacks.

    MOVES: logits of one distribution over the position's legal moves. LEGAL: logits of a move's legality. ATTACKS:
    logits of an attack, by either side's pieces. MOVE_VALUES: logits of the value of a legal move.
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
        """Return logits (B, 4, M, 64) by head, token of the board, and target square."""
        shape = (*hidden_BMH.shape[:2], self.COUNT, self.size)
        origin = self.origin(self.norm(hidden_BMH)).view(shape).transpose(1, 2)
        logits: Tensor = origin @ self.targets.mT * self.size**-0.5 + self.offset[:, None, None]
        return logits


class ModelWithHeads(nn.Module):
    """Qwen3 with auxiliary heads, and with embeddings that are sums of feature vectors and tied to the output."""

    features_VF: Tensor
    bias_TT: Tensor
    cosines: Tensor
    sines: Tensor

    def __init__(self, shape: Shape, features_VF: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("features_VF", features_VF, persistent=False)
        self.feature_vectors = nn.Parameter(0.02 * torch.randn(features_VF.shape[1], shape.width))
        self.own_VH = nn.Parameter(torch.zeros(len(features_VF), shape.width))
        without = features_VF.sum(1) == 0
        self.own_VH.data[without] = 0.02 * torch.randn(int(without.sum()), shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=NORM_EPS)
        self.board = BoardHeads(shape.width)
        self.piece = nn.Linear(shape.width, 1)
        self.win_probability = nn.Linear(shape.width, 1)
        self.outcome = nn.Linear(shape.width, OUTCOMES)
        cosines, sines = rotation_of(POSITIONS, shape.width // shape.heads)
        future = torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).triu(1)
        self.register_buffer("bias_TT", torch.zeros(POSITIONS, POSITIONS).masked_fill(future, -1e4), persistent=False)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)

    def embeddings(self) -> Tensor:
        """Return (V, H): for each token the sum of its features' vectors and a vector of its own."""
        return self.features_VF @ self.feature_vectors + self.own_VH

    def forward(self, tokens_BT: Tensor, embeddings_VH: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states (B, T, H): those that the heads on the board read, and the normalised last ones."""
        middle = self._through(F.embedding(tokens_BT, embeddings_VH), 0, self.shape.board_layer)
        return middle, self.norm(self._through(middle, self.shape.board_layer, self.shape.layers))

    def _through(self, hidden_BTH: Tensor, first: int, last: int) -> Tensor:
        length = hidden_BTH.shape[1]
        rotation, bias = (self.cosines[:length], self.sines[:length]), self.bias_TT[:length, :length]
        for block in self.blocks[first:last]:
            hidden_BTH = block(hidden_BTH, rotation, bias)
        return hidden_BTH

    def hidden_matrices(self) -> list[nn.Parameter]:
        """Return the matrices within the blocks, which Muon updates."""
        return [parameter for parameter in self.blocks.parameters() if parameter.ndim == 2]

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the auxiliary heads."""
        heads = (self.board, self.piece, self.win_probability, self.outcome)
        return [parameter for head in heads for parameter in head.parameters()]

    def other_parameters(self) -> list[nn.Parameter]:
        """Return all other parameters, which AdamW updates."""
        matrices = set(map(id, self.hidden_matrices()))
        return [parameter for parameter in self.parameters() if id(parameter) not in matrices]


@torch.no_grad()
def export(trained: ModelWithHeads, tokenizer: PreTrainedTokenizerFast) -> Any:
    """Return a stock `Qwen3ForCausalLM` that computes the same: embeddings summed, auxiliary heads left out."""
    model: Any = Qwen3ForCausalLM(_config(trained.shape, tokenizer))
    model.model.embed_tokens.weight.copy_(trained.embeddings())
    for stock, own in _pairs(model.model, trained):
        stock.load_state_dict(own.state_dict())
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model.eval()


@torch.no_grad()
def load_exported(trained: ModelWithHeads, folder: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Load an exported model's weights; keep feature vectors and heads. Raises UserError if the model does not fit."""
    try:
        model: Any = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"training.start: expected an exported model, got {folder}: {error}") from error
    shape, expected = (
        (config.vocab_size, config.hidden_size, config.intermediate_size, config.num_hidden_layers)
        for config in (model.config, _config(trained.shape, tokenizer))
    )
    if shape != expected:
        raise UserError(f"training.start: expected vocabulary, width, inner width and layers {expected}, got {shape}")
    trained.own_VH.add_(model.model.embed_tokens.weight - trained.embeddings())
    for stock, own in _pairs(model.model, trained):
        own.load_state_dict(stock.state_dict())


def _pairs(stock: Any, trained: Any) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield each module of the stock model with the module of the trained model that has the same weights."""
    yield stock.norm, trained.norm
    for layer, block in zip(stock.layers, trained.blocks, strict=True):
        attention = layer.self_attn
        yield layer.input_layernorm, block.norm_1
        yield layer.post_attention_layernorm, block.norm_2
        yield attention.q_norm, block.query_norm
        yield attention.k_norm, block.key_norm
        yield attention.q_proj, block.query
        yield attention.k_proj, block.key
        yield attention.v_proj, block.value
        yield attention.o_proj, block.out
        yield layer.mlp.gate_proj, block.gate
        yield layer.mlp.up_proj, block.up
        yield layer.mlp.down_proj, block.down


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

"""Behaviour cloning on rows of both tasks, from nothing or from a model that is there; resumable."""

import copy
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import chess
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from ..errors import UserError
from ..model.policy import ModelConfig, Precision, load_policy
from ..model.weights import checksum
from ..tasks.types import Example, Task
from .codec import PIECES, POSITIONS, board_pieces, build_tokenizer, piece_token, seen_token
from .state import Header, digest, read_state, save_state

IGNORED = -100
# Batches are cut from pools of this many, sorted by length, so that rows of a batch are alike.
POOL_BATCHES = 40
# They decide what is saved and told, not what is learned.
FREE = ("save_every", "log_every")


@dataclass(slots=True)
class WarmstartConfig:
    """A new model's shape, and how long a model learns."""

    layers: int = 4
    """Layers of a new model; an existing one keeps its own, as its width and heads."""
    width: int = 192
    """Hidden size; a multiple of heads."""
    heads: int = 4
    steps: int = 4500
    batch_size: int = 64
    """Rows a step."""
    lr: float = 1.5e-3
    """Peak learning rate of AdamW, reached after warmup_steps, then cosine to a tenth."""
    warmup_steps: int = 200
    weight_decay: float = 0.01
    environment_weight: float = 4.0
    """What a token of an `A:` answer counts: most are copies with next to no loss, and Adam's step size
    is set by the larger gradients of `P:`."""
    eval_weight: float = 0.2
    """What a token of the evals counts: they are mostly noise to a model this small."""
    save_every: int = 200
    """Steps between saves; a run that is stopped goes on from the last one."""
    log_every: int = 50

    def __post_init__(self) -> None:
        counts = (
            self.layers,
            self.heads,
            self.steps,
            self.batch_size,
            self.warmup_steps,
            self.save_every,
            self.log_every,
        )
        if min(counts) < 1 or self.width < 1 or self.width % self.heads:
            raise ValueError("model: expected counts of at least 1 and a width that is a multiple of heads")
        if not 0 < self.lr < math.inf or min(self.weight_decay, self.environment_weight, self.eval_weight) < 0:
            raise ValueError("model: expected lr above 0, weight_decay and the weights from 0 up")


@dataclass(frozen=True, slots=True)
class Row:
    """A tokenised example."""

    tokens: tuple[int, ...]
    """Prompt, completion, end of text."""
    prompt_length: int
    weights: tuple[float, ...]
    """What each token behind the prompt counts in the loss."""


def build_model(config: WarmstartConfig, tokenizer: PreTrainedTokenizerFast) -> Any:
    """An untrained GPT-2 whose embeddings begin with what is known: places and squares.

    Positions start as sinusoids, and a piece on a square as the sum of a piece's vector and
    a square's, which the square's name in a move shares.
    """
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=POSITIONS,
            n_embd=config.width,
            n_layer=config.layers,
            n_head=config.heads,
            # The same function as GPT-2's, in one kernel.
            activation_function="gelu_pytorch_tanh",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    # On a CPU the fused kernel's backward pass takes longer than plain attention's at these lengths.
    model.set_attn_implementation("eager")
    with torch.no_grad():
        model.transformer.wpe.weight.copy_(_sinusoids(POSITIONS, config.width))
        _compose_squares(model.transformer.wte.weight, tokenizer)
    return model


def _sinusoids(positions: int, width: int) -> Tensor:
    """(positions, width), at the scale of GPT-2's initial embeddings; arXiv 1706.03762."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(positions).unsqueeze(1) * rates
    return 0.02 * torch.cat([angles.sin(), angles.cos()], dim=1)


def _compose_squares(embeddings_VH: Tensor, tokenizer: PreTrainedTokenizerFast) -> None:
    width = embeddings_VH.shape[1]
    pieces = {piece: 0.02 * torch.randn(width) for piece in PIECES}
    sides = {turn: 0.02 * torch.randn(width) for turn in chess.COLORS}
    ids = tokenizer.get_vocab()
    for square in chess.SQUARES:
        place = 0.02 * torch.randn(width)
        for piece in board_pieces(square):
            embeddings_VH[ids[piece_token(piece, square)]] = place + pieces[piece]
            for turn, side in sides.items():
                embeddings_VH[ids[seen_token(piece, square, turn)]] = place + pieces[piece] + side
        for lead in ("", " "):
            embeddings_VH[ids[lead + chess.square_name(square)]] += place


def tokenise(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast, config: WarmstartConfig, positions: int = POSITIONS
) -> list[Row]:
    """Rows of labelled examples; those longer than the model's positions are left out."""
    texts = [example.completion or "" for example in examples]
    prompts = tokenizer([example.prompt for example in examples], add_special_tokens=False).input_ids
    completions = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    rows = []
    for i, (example, prompt, completion) in enumerate(zip(examples, prompts, completions.input_ids, strict=True)):
        if len(prompt) + len(completion) < positions:
            weights = _weights(example.task, texts[i], completions.offset_mapping[i], config)
            rows.append(Row((*prompt, *completion, tokenizer.eos_token_id), len(prompt), weights))
    return rows


def _weights(
    task: Task, text: str, offsets: Sequence[tuple[int, int]], config: WarmstartConfig
) -> tuple[float, ...]:
    """The weight of each token of a completion, and of its end; `offsets` are the characters that each token covers."""
    if task is Task.environment:
        return (config.environment_weight,) * (len(offsets) + 1)
    evals = range(text.find("E:") + len("E:"), text.find("B:")) if "E:" in text else ()
    return (*(config.eval_weight if first in evals else 1.0 for first, _ in offsets), 1.0)


def batches(rows: Sequence[Row], batch_size: int, seed: int) -> Iterator[list[Row]]:
    """Endless batches of rows of similar length, in an order that seed alone decides."""
    rng = random.Random(seed)
    while True:
        order = rng.sample(range(len(rows)), len(rows))
        for start in range(0, len(order), batch_size * POOL_BATCHES):
            pool = [rows[i] for i in order[start : start + batch_size * POOL_BATCHES]]
            pool.sort(key=lambda row: len(row.tokens))
            cuts = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
            yield from rng.sample(cuts, len(cuts))


def cloning_loss(model: Any, rows: Sequence[Row]) -> Tensor:
    """Weighted cross-entropy of the completions, nat a token; the head runs on their positions alone."""
    longest = max(len(row.tokens) for row in rows)
    tokens_BT = torch.zeros(len(rows), longest, dtype=torch.long)
    targets_BT = torch.full((len(rows), longest), IGNORED)
    weights_N = torch.tensor([weight for row in rows for weight in row.weights])
    for i, row in enumerate(rows):
        tokens_BT[i, : len(row.tokens)] = torch.tensor(row.tokens)
        targets_BT[i, row.prompt_length - 1 : len(row.tokens) - 1] = torch.tensor(row.tokens[row.prompt_length :])
    device = next(model.parameters()).device
    hidden_BTH = model.base_model(input_ids=tokens_BT.to(device)).last_hidden_state
    trained_BT = targets_BT != IGNORED
    logits_NV = model.get_output_embeddings()(hidden_BTH[trained_BT.to(device)])
    losses_N = cross_entropy(logits_NV.float(), targets_BT[trained_BT].to(device), reduction="none")
    return (losses_N * weights_N.to(device)).mean()


def _new(config: WarmstartConfig, device: torch.device) -> tuple[Any, Any]:
    tokenizer = build_tokenizer()
    return build_model(config, tokenizer).to(device), tokenizer


def _loaded(path: str, device: torch.device) -> tuple[Any, Any]:
    try:
        policy = load_policy(ModelConfig(path=path), device, Precision.fp32)
    except UserError as error:
        raise UserError(f"init_from: {error}") from error
    if not policy.tokenizer.is_fast:
        raise UserError(f"init_from: expected a model with a fast tokenizer, got {path}")
    return policy.model, policy.tokenizer


class Warmstart:
    """The training's state: model, optimiser, step. Saved whole, so that a stopped run goes on."""

    def __init__(
        self, config: WarmstartConfig, *, seed: int, device: torch.device, bf16: bool, init_from: str = ""
    ) -> None:
        """`init_from`: the model to begin with, as `load_policy` takes it; empty: a new one. Raises UserError."""
        torch.manual_seed(seed)
        self.config, self.seed, self.device, self.bf16 = config, seed, device, bf16
        self.model, self.tokenizer = _loaded(init_from, device) if init_from else _new(config, device)
        self.positions = getattr(self.model.config, "max_position_embeddings", POSITIONS)
        self._begun_with = checksum(self.model) if init_from else "a new model"
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.lr,
            weight_decay=config.weight_decay,
            betas=(0.9, 0.98),
            fused=True,
        )
        self.step = 0

    def run(self, rows: Sequence[Row], folder: Path) -> Iterator[dict[str, float]]:
        """Train to the last step, saving into `folder`; yields step, loss and lr every log_every steps."""
        stream, losses, header = batches(rows, self.config.batch_size, self.seed), [], self._header(rows)
        for _ in range(self.step):
            next(stream)
        while self.step < self.config.steps:
            losses.append(self._train_step(next(stream)))
            if self.step % self.config.log_every == 0 or self.step == self.config.steps:
                yield {"step": self.step, "loss": sum(losses) / len(losses), "lr": self._lr()}
                losses.clear()
            if self.step % self.config.save_every == 0 or self.step == self.config.steps:
                self._save(folder, header)

    def _lr(self) -> float:
        config = self.config
        warm = min(1.0, (self.step + 1) / config.warmup_steps)
        progress = self.step / config.steps
        return config.lr * warm * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))

    def _train_step(self, rows: Sequence[Row]) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            loss = cloning_loss(self.model, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.item()

    def _header(self, rows: Sequence[Row]) -> Header:
        """What is learned depends on it, and on nothing else but the kind of machine."""
        config = {f"model.{name}": value for name, value in asdict(self.config).items() if name not in FREE}
        made_of = digest((row.prompt_length, *row.tokens) for row in rows)
        begun = {"seed": self.seed, "precision": "bf16" if self.bf16 else "fp32", "init_from": self._begun_with}
        return {**begun, **config, "corpus, exclude": made_of}

    def _save(self, folder: Path, header: Header) -> None:
        """Write the model as a Hugging Face folder (bf16, half the size) and the state to go on from."""
        # The bar of its shards would stand between the lines that tell of steps.
        transformers_logging.disable_progress_bar()
        export = copy.deepcopy(self.model).to(torch.bfloat16)
        export.generation_config.pad_token_id = self.tokenizer.pad_token_id
        export.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        # Last: where it says that all is done, the model is there.
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        save_state(folder, header, state)

    def resume(self, folder: Path, rows: Sequence[Row]) -> bool:
        """Load the state saved in `folder`; False if there is none. Raises UserError for that of another run."""
        state = read_state(folder, self._header(rows), self.device)
        if state is None:
            return False
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        return True

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
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from ..errors import UserError
from ..model.batch import batch_of
from ..model.chess_tokenizer import PIECES, POSITIONS, board_pieces, build_tokenizer, piece_token, prompt_token
from ..model.device import Precision, resolve_precision
from ..model.policy import ModelConfig, Policy, compile_policy, load_policy
from ..model.shared_prefix import can_share
from ..model.weights import checksum
from ..provenance import digest
from ..tasks.types import Example, Task
from ..training.optim import OptimConfig, learning_rate, make_optimizer
from .state import Header, read_state, save_state

# Batches are cut from pools of this many, sorted by length, so that rows of a batch are alike.
POOL_BATCHES = 40
# They decide what is saved and told, not what is learned.
FREE = ("save_every", "log_every", "compile")


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
    compile: bool = False
    """Whether the blocks are computed by code that `torch.compile` makes. Needs a C++ compiler."""

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
class ClonedRow:
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
                embeddings_VH[ids[prompt_token(piece, square, turn)]] = place + pieces[piece] + side
        for lead in ("", " "):
            embeddings_VH[ids[lead + chess.square_name(square)]] += place


def tokenise(
    examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase, config: WarmstartConfig, positions: int = POSITIONS
) -> list[ClonedRow]:
    """Rows of labelled examples; those longer than the model's positions are left out."""
    texts = [example.completion or "" for example in examples]
    prompts = tokenizer([example.prompt for example in examples], add_special_tokens=False).input_ids
    completions = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    rows = []
    for i, (example, prompt, completion) in enumerate(zip(examples, prompts, completions.input_ids, strict=True)):
        if len(prompt) + len(completion) < positions:
            weights = _weights(example.task, texts[i], completions.offset_mapping[i], config)
            rows.append(ClonedRow((*prompt, *completion, tokenizer.eos_token_id), len(prompt), weights))
    return rows


def _weights(
    task: Task, text: str, offsets: Sequence[tuple[int, int]], config: WarmstartConfig
) -> tuple[float, ...]:
    """The weight of each token of a completion, and of its end; `offsets` are the characters that each token covers."""
    if task is Task.environment:
        return (config.environment_weight,) * (len(offsets) + 1)
    evals = range(text.find("E:") + len("E:"), text.find("B:")) if "E:" in text else ()
    return (*(config.eval_weight if first in evals else 1.0 for first, _ in offsets), 1.0)


def batches(rows: Sequence[ClonedRow], batch_size: int, seed: int) -> Iterator[list[ClonedRow]]:
    """Endless batches of rows of similar length, in an order that seed alone decides."""
    rng = random.Random(seed)
    while True:
        order = rng.sample(range(len(rows)), len(rows))
        for start in range(0, len(order), batch_size * POOL_BATCHES):
            pool = [rows[i] for i in order[start : start + batch_size * POOL_BATCHES]]
            pool.sort(key=lambda row: len(row.tokens))
            cuts = [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
            yield from rng.sample(cuts, len(cuts))


def cloning_loss(policy: Policy, rows: Sequence[ClonedRow]) -> Tensor:
    """Weighted cross-entropy of the completions, nat a token."""
    parts = [(row.tokens[: row.prompt_length], row.tokens[row.prompt_length :]) for row in rows]
    batch = batch_of(parts, pad_id=policy.pad_id, device=policy.device)
    weights_N = torch.tensor([weight for row in rows for weight in row.weights], device=policy.device)
    return -(policy.statistics(batch, temperature=1.0).logprobs * weights_N).mean()


def _new(config: WarmstartConfig, device: torch.device, precision: Precision) -> Policy:
    tokenizer = build_tokenizer()
    model = build_model(config, tokenizer).to(device)
    return Policy(model, tokenizer, precision, device, packs=can_share(model))


def _loaded(path: str, device: torch.device, precision: Precision) -> Policy:
    try:
        policy = load_policy(ModelConfig(path=path), device, precision)
    except UserError as error:
        raise UserError(f"init_from: {error}") from error
    if not policy.tokenizer.is_fast:
        raise UserError(f"init_from: expected a model with a fast tokenizer, got {path}")
    return policy


class Warmstart:
    """The training's state: model, optimiser, step. Saved whole, so that a stopped run goes on."""

    def __init__(
        self, config: WarmstartConfig, *, seed: int, device: torch.device, precision: Precision, init_from: str = ""
    ) -> None:
        """`init_from`: the model to begin with, as `load_policy` takes it; empty: a new one. Raises UserError."""
        torch.manual_seed(seed)
        self.config, self.seed, self.step = config, seed, 0
        precision = resolve_precision(precision, device)
        self.policy = _loaded(init_from, device, precision) if init_from else _new(config, device, precision)
        if config.compile:
            compile_policy(self.policy)
        self.positions = getattr(self.policy.model.config, "max_position_embeddings", POSITIONS)
        self._begun_with = checksum(self.policy.model) if init_from else "a new model"
        self._optim = OptimConfig(
            lr=config.lr, warmup_steps=config.warmup_steps, weight_decay=config.weight_decay, beta2=0.98
        )
        self._optimizer = make_optimizer(self.policy.model.parameters(), self._optim)

    def run(self, rows: Sequence[ClonedRow], folder: Path) -> Iterator[dict[str, float]]:
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
        return learning_rate(self._optim, self.step, self.config.steps)

    def _train_step(self, rows: Sequence[ClonedRow]) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._lr()
        loss = cloning_loss(self.policy, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self._optim.max_grad_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        return loss.item()

    def _header(self, rows: Sequence[ClonedRow]) -> Header:
        """What is learned depends on it, and on nothing else but the kind of machine."""
        config = {f"model.{name}": value for name, value in asdict(self.config).items() if name not in FREE}
        made_of = digest((row.prompt_length, *row.tokens) for row in rows)
        begun = {"seed": self.seed, "precision": self.policy.precision.value, "init_from": self._begun_with}
        return {**begun, **config, "corpus, exclude": made_of}

    def _save(self, folder: Path, header: Header) -> None:
        """Write the model as a Hugging Face folder (bf16, half the size) and the state to go on from."""
        # The bar of its shards would stand between the lines that tell of steps.
        transformers_logging.disable_progress_bar()
        export = copy.deepcopy(self.policy.model).bfloat16()
        export.generation_config.pad_token_id = self.policy.tokenizer.pad_token_id
        export.save_pretrained(folder)
        self.policy.tokenizer.save_pretrained(folder)
        # Last: where it says that all is done, the model is there.
        state = {
            "model": self.policy.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
        }
        save_state(folder, header, state)

    def resume(self, folder: Path, rows: Sequence[ClonedRow]) -> bool:
        """Load the state saved in `folder`; False if there is none. Raises UserError for that of another run."""
        state = read_state(folder, self._header(rows), self.policy.device)
        if state is None:
            return False
        self.policy.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        return True

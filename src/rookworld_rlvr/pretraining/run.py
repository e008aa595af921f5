"""A small model from nothing: engine verdicts as soft targets for `P:`, transitions for `A:`; resumable.

Each step learns from rows of both tasks. What a `P:` row asks for is in `soft_targets`; heads on its board, and on the
prompts of `A:`, are asked too (see `student`). Matrices are stepped by Muon, all else by AdamW. The learning rate is
constant until the last part of the run, in which it falls to 0; what is exported is a running average of the weights.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import UserError
from ..model.blocks import require_compiler
from ..model.chess_tokenizer import POSITIONS, build_tokenizer
from ..model.device import add_gradients, map_on_cores
from ..model.weights import checksum
from ..provenance import digest
from ..tasks.move_evals import MoveEvals, mirrored, render_move_evals
from ..tasks.types import Example
from ..training.saved_state import Header, load_state, read_state, save_state
from .environment_rows import EnvironmentRow, EnvironmentRows, TransitionPool
from .muon import Muon
from .soft_targets import (
    BOARD_AT,
    BoardBatch,
    BoardRow,
    SoftBatch,
    SoftRow,
    SoftRows,
    collate,
    collate_boards,
    tokens_of,
)
from .student import ATTACKS, LEGAL, MOVES, WORTH, Shape, Student, export, token_features

# They decide what is saved and told, not what is learned.
FREE = ("save_every", "log_every", "compile")
# The rows of a task in a step are padded and passed in so many parts, shorter rows first; parts go to the cores.
PARTS = 2
NEW = "a new model"
# Of `P:` rows, those that are seen with colours exchanged.
MIRRORED = 0.5
ADAM_BETAS = (0.9, 0.98)
MUON_WEIGHT_DECAY = 0.01
# In place of the logit of a move of a token that moves no man.
NOT_THERE = -1e4


@dataclass(slots=True)
class PretrainConfig:
    """A new model's shape, how long it learns, and what counts how much."""

    layers: int = 6
    width: int = 192
    """Hidden size; a multiple of heads."""
    heads: int = 6
    board_layer: int = 5
    """The layers before the heads on the board; at most layers."""
    steps: int = 2600
    policy_rows: int = 32
    """`P:` rows a step."""
    environment_rows: int = 24
    """`A:` rows a step."""
    board_rows: int = 0
    """`P:` prompts a step, beside the rows, that are asked by the heads on the board alone: they cost no
    completion and no layer behind board_layer."""
    muon_lr: float = 0.02
    """Learning rate of Muon, for the matrices within the blocks."""
    lr: float = 2e-3
    """Learning rate of AdamW, for embeddings, norms and heads."""
    warmup_steps: int = 100
    decay_fraction: float = 0.2
    """The last part of the run, in which the learning rates fall to 0. With 0 they stay: a later run can go on from
    there by init_from=."""
    average: float = 0.995
    """What of the weights' running average stays at a step; 0: the weights as they are."""
    moves_weight: float = 0.5
    """Weight of the board head for the moves' distribution; the completion's tokens have 1."""
    legal_weight: float = 0.02
    """Weight of the board head for legal moves."""
    attacks_weight: float = 0.03
    """Weight of the board head for attacks."""
    worth_weight: float = 0.05
    """Weight of the board head for what each legal move is worth."""
    value_weight: float = 0.3
    """Weight of the win probability, read at the end of a `P:` prompt."""
    outcome_weight: float = 0.5
    """Weight of what comes of an `A:` row's move, read at the end of its prompt."""
    targets_weight: float = 0.1
    """Weight of the legal targets from the square that an `A:` row's move leaves, read at that square's token."""
    copy_weight: float = 1.0
    """Weight of the men in an `A:` answer that stand where they stood; its other tokens have 1."""
    save_every: int = 200
    """Steps between saves; a run that is stopped goes on from the last one."""
    log_every: int = 50
    compile: bool = False
    """Whether the blocks are computed by code that `torch.compile` makes. Needs a C++ compiler."""

    def __post_init__(self) -> None:
        counts = (self.layers, self.heads, self.steps, self.policy_rows, self.environment_rows, self.warmup_steps)
        if min(*counts, self.save_every, self.log_every) < 1 or self.width < 1 or self.width % self.heads:
            raise ValueError("model: expected counts of at least 1 and a width that is a multiple of heads")
        if self.board_rows < 0:
            raise ValueError(f"model.board_rows: expected 0 or more, got {self.board_rows}")
        if not 1 <= self.board_layer <= self.layers:
            raise ValueError(f"model.board_layer: expected 1 to {self.layers}, got {self.board_layer}")
        if not 0 < self.lr < math.inf or not 0 < self.muon_lr < math.inf:
            raise ValueError("model: expected learning rates above 0")
        if not 0 <= self.average < 1 or not 0 <= self.decay_fraction <= 1:
            raise ValueError("model: expected average from 0 to below 1 and decay_fraction from 0 to 1")
        heads = (self.moves_weight, self.legal_weight, self.attacks_weight, self.worth_weight, self.targets_weight)
        if min(*heads, self.value_weight, self.outcome_weight, self.copy_weight) < 0:
            raise ValueError("model: expected weights from 0 up")


Row = TypeVar("Row", SoftRow, BoardRow, EnvironmentRow)


class Pretraining:
    """The training's state: model, optimisers, step, running average. Saved whole, so that a stopped run goes on."""

    def __init__(
        self,
        config: PretrainConfig,
        *,
        seed: int,
        device: torch.device,
        init_from: Path | None = None,
    ) -> None:
        """`init_from`: the folder of an earlier run of the same shape; this run begins with its weights and momenta.

        Raises UserError if the folder has no saved state, or the state of a model of another shape.
        """
        torch.manual_seed(seed)
        self.config, self.seed, self.device, self.step = config, seed, device, 0
        self.tokenizer = build_tokenizer()
        self._soft, self._environment = SoftRows(self.tokenizer), EnvironmentRows(self.tokenizer)
        shape = Shape(config.layers, config.width, config.heads, config.board_layer)
        if config.compile:
            require_compiler("model.compile")
        features_VF = token_features(self.tokenizer)
        self.model = Student(shape, features_VF, compile_blocks=config.compile).to(device)
        self._square_ids = torch.stack([self._soft.second_ids, self._soft.first_ids]).to(device)
        self._others = self.model.other_parameters()
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (
            Muon(self.model.hidden_matrices(), lr=config.muon_lr, weight_decay=MUON_WEIGHT_DECAY),
            torch.optim.AdamW(self._others, lr=config.lr, betas=ADAM_BETAS, weight_decay=0.0, fused=True),
        )
        self._average = [parameter.detach().clone() for parameter in self.model.parameters()]
        self._begun_with = NEW
        if init_from is not None:
            self._begin_with(load_state(init_from, device, "init_from"), init_from)
            self._begun_with = checksum(self.model)

    def _begin_with(self, state: Mapping[str, Any], folder: Path) -> None:
        wanted = self.model.state_dict()
        try:
            grown = {name: _widened(value, wanted[name]) for name, value in state["model"].items()}
            self.model.load_state_dict(grown)
        except (RuntimeError, KeyError) as error:
            shape = self.model.shape
            raise UserError(f"init_from: expected a model of {shape} in {folder}, got another") from error
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
            for parameter, values in optimizer.state.items():
                zeros = torch.zeros_like(parameter)
                optimizer.state[parameter] = {name: _widened(value, zeros) for name, value in values.items()}
        now = self.model.parameters()
        self._average = [_widened(value, new.detach()) for value, new in zip(state["average"], now, strict=True)]

    def run(
        self, verdicts: Sequence[MoveEvals], transitions: Sequence[Example], folder: Path
    ) -> Iterator[dict[str, float]]:
        """Train to the last step, saving into `folder`; yields step, loss by part and lr every log_every steps.

        `verdicts` are of positions with a legal move, `transitions` labelled `A:` rows; at least one of each.
        """
        header, told = self._header(verdicts, transitions), dict[str, float]()
        pool = TransitionPool(transitions)
        while self.step < self.config.steps:
            for part, loss in self._train_step(verdicts, pool).items():
                told[part] = told.get(part, 0.0) + loss
            last = self.step == self.config.steps
            if self.step % self.config.log_every == 0 or last:
                steps = (self.step - 1) % self.config.log_every + 1
                yield {"step": self.step, **{part: loss / steps for part, loss in told.items()}, "lr": self._share()}
                told.clear()
            if self.step % self.config.save_every == 0 or last:
                self._save(folder, header)

    def resume(self, folder: Path, verdicts: Sequence[MoveEvals], transitions: Sequence[Example]) -> bool:
        """Load the state saved in `folder`; False if there is none. Raises UserError for that of another run."""
        state = read_state(folder, self._header(verdicts, transitions), self.device)
        if state is None:
            return False
        self._begin_with(state, folder)
        self.step = state["step"]
        return True

    def _share(self) -> float:
        """What the learning rates are multiplied by at this step."""
        config, done = self.config, self.step / self.config.steps
        left = min(1.0, (1 - done) / config.decay_fraction) if config.decay_fraction else 1.0
        return min(1.0, (self.step + 1) / config.warmup_steps) * left

    def _train_step(self, verdicts: Sequence[MoveEvals], transitions: TransitionPool) -> dict[str, float]:
        """The losses by part. What is drawn depends on seed, step and the model begun with."""
        rng = random.Random(f"{self.seed}:{self._begun_with}:{self.step}")
        for optimizer, lr in zip(self._optimizers, (self.config.muon_lr, self.config.lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * self._share()
        policy, environment = self._draw_policy(rng, verdicts), self._draw_environment(rng, transitions)
        boards = [self._soft.board(self._draw_verdict(rng, verdicts)) for _ in range(self.config.board_rows)]
        asked = len(policy) + len(boards)
        parts: list[Callable[[], dict[str, Tensor]]] = [
            *(partial(self._policy_losses, rows, len(policy), asked) for rows in _by_length(policy)),
            *(partial(self._environment_losses, rows, len(environment)) for rows in _by_length(environment)),
            *(partial(self._bare_board_losses, rows, asked) for rows in _by_length(boards)),
        ]
        told = defaultdict[str, float](float)
        for losses, gradients in map_on_cores(self._gradients, parts, self.device):
            for name, loss in losses.items():
                told[name] += loss
            add_gradients(list(self.model.parameters()), gradients)
        torch.nn.utils.clip_grad_norm_(self._others, 1.0)
        for optimizer in self._optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self._follow()
        return told

    def _gradients(
        self, losses_of: Callable[[], dict[str, Tensor]]
    ) -> tuple[dict[str, float], tuple[Tensor | None, ...]]:
        losses = losses_of()
        total = torch.stack(list(losses.values())).sum()
        gradients = torch.autograd.grad(total, list(self.model.parameters()), allow_unused=True)
        return {name: float(loss.detach()) for name, loss in losses.items()}, gradients

    @torch.no_grad()
    def _follow(self) -> None:
        """A new model's average forgets faster at first, so that the first weights do not stay in it."""
        young = self.step / (self.step + 20) if self._begun_with == NEW else 1.0
        kept = min(self.config.average, young)
        for average, parameter in zip(self._average, self.model.parameters(), strict=True):
            average.lerp_(parameter, 1 - kept)

    @staticmethod
    def _draw_verdict(rng: random.Random, verdicts: Sequence[MoveEvals]) -> MoveEvals:
        verdict = rng.choice(verdicts)
        return mirrored(verdict) if rng.random() < MIRRORED else verdict

    def _draw_policy(self, rng: random.Random, verdicts: Sequence[MoveEvals]) -> list[SoftRow]:
        rows: list[SoftRow] = []
        while len(rows) < self.config.policy_rows:
            row = self._soft.row(self._draw_verdict(rng, verdicts), rng)
            if len(row.tokens) <= POSITIONS:
                rows.append(row)
        return rows

    def _draw_environment(self, rng: random.Random, transitions: TransitionPool) -> list[EnvironmentRow]:
        """Rows that are longer than the model's positions are drawn anew."""
        rows: list[EnvironmentRow] = []
        while len(rows) < self.config.environment_rows:
            row = self._environment.row(transitions.draw(rng))
            if len(row.tokens) <= POSITIONS:
                rows.append(row)
        return rows

    def _policy_losses(self, rows: Sequence[SoftRow], count: int, boards: int) -> dict[str, Tensor]:
        """Weighted losses by part, each a sum over rows divided by `count`, or by `boards` for a head on the board."""
        batch = collate(rows, self.tokenizer.pad_token_id).to(self.device)
        embeddings = self.model.embeddings()
        middle, hidden = self.model(batch.tokens_BT, embeddings)
        value = self.model.value(hidden[torch.arange(len(rows)), batch.value_at_B])[:, 0]
        wrong = F.binary_cross_entropy_with_logits(value, batch.values_B.clamp(0, 1), reduction="sum")
        return {
            "tokens": self._token_loss(batch, hidden, embeddings) / count,
            **self._board_losses(batch.board, middle, boards),
            "value": self.config.value_weight * wrong / count,
        }

    def _bare_board_losses(self, rows: Sequence[BoardRow], boards: int) -> dict[str, Tensor]:
        """What the heads on the board lose on prompts without a completion."""
        tokens_BT = tokens_of([row.tokens for row in rows], self.tokenizer.pad_token_id).to(self.device)
        middle = self.model.middle(tokens_BT, self.model.embeddings())
        return self._board_losses(collate_boards(rows).to(self.device), middle, boards)

    def _board_losses(self, board: BoardBatch, middle_BTH: Tensor, boards: int) -> dict[str, Tensor]:
        """By head, weighted, each a sum over rows, over `boards`."""
        config, again, mover = self.config, board.again_BM.unsqueeze(2), board.mover_BM.unsqueeze(2)
        heads = self.model.board(middle_BTH[:, BOARD_AT : BOARD_AT + board.mover_BM.shape[1]])
        asked = heads[:, MOVES].masked_fill(~mover, NOT_THERE).flatten(1).log_softmax(1)
        binary = partial(F.binary_cross_entropy_with_logits, reduction="sum")
        shape = board.legal_BMS.shape
        legal = binary(heads[:, LEGAL], board.legal_BMS, weight=mover.float().expand(shape))
        attacks = binary(heads[:, ATTACKS], board.attacks_BMS, weight=again.float().expand(shape))
        worth = binary(heads[:, WORTH], board.worth_BMS, weight=board.legal_BMS)
        return {
            "moves": config.moves_weight * -(board.moves_BMS.flatten(1) * asked).sum() / boards,
            "legal": config.legal_weight * legal / boards,
            "attacks": config.attacks_weight * attacks / boards,
            "worth": config.worth_weight * worth / boards,
        }

    def _token_loss(self, batch: SoftBatch, hidden_BTH: Tensor, embeddings_VH: Tensor) -> Tensor:
        """Sum over tokens: KL(target‖model) of a move's squares, weighted cross-entropy of the others."""
        logprobs_NV = (hidden_BTH[batch.soft_at] @ embeddings_VH.T).log_softmax(-1)
        asked_NS = logprobs_NV.gather(1, self._square_ids[batch.soft_first_N.long()])
        entropy = torch.special.entr(batch.soft_NS).sum()
        soft = -(asked_NS * batch.soft_NS).sum() - entropy
        logits_NV = hidden_BTH[batch.hard_at] @ embeddings_VH.T
        hard_N = F.cross_entropy(logits_NV, batch.hard_ids_N, reduction="none")
        loss: Tensor = soft + (hard_N * batch.hard_weights_N).sum()
        return loss

    def _environment_losses(self, rows: Sequence[EnvironmentRow], count: int) -> dict[str, Tensor]:
        """Weighted losses of answer tokens, outcomes and legal targets, each a sum over rows divided by `count`."""
        tokens_BT = tokens_of([row.tokens for row in rows], self.tokenizer.pad_token_id)
        at = [(number, place) for number, row in enumerate(rows) for place in range(row.prompt_length, len(row.tokens))]
        where_N, place_N = torch.tensor(at).T
        weights_N = torch.tensor([self.config.copy_weight if same else 1.0 for row in rows for same in row.copied])
        embeddings_VH = self.model.embeddings()
        middle_BTH, hidden_BTH = self.model(tokens_BT.to(self.device), embeddings_VH)
        logits_NV = hidden_BTH[where_N, place_N - 1] @ embeddings_VH.T
        losses_N = F.cross_entropy(logits_NV, tokens_BT[where_N, place_N].to(self.device), reduction="none")
        tokens = (losses_N * weights_N.to(self.device)).sum()
        last = torch.tensor([row.prompt_length - 1 for row in rows])
        outcomes = self.model.outcome(hidden_BTH[torch.arange(len(rows)), last])
        wanted = torch.tensor([row.outcome for row in rows]).to(self.device)
        outcome = F.cross_entropy(outcomes, wanted, reduction="sum")
        origins = torch.tensor([row.origin_at for row in rows])
        heads = self.model.board(middle_BTH[torch.arange(len(rows)), origins].unsqueeze(1))
        targets_BS = torch.from_numpy(np.stack([row.targets for row in rows])).to(self.device)
        targets = F.binary_cross_entropy_with_logits(heads[:, LEGAL, 0], targets_BS, reduction="sum")
        return {
            "environment": tokens / count,
            "outcome": self.config.outcome_weight * outcome / count,
            "targets": self.config.targets_weight * targets / count,
        }

    def exported(self) -> Any:
        """The averaged weights as a stock Qwen3, float32."""
        now = [parameter.detach().clone() for parameter in self.model.parameters()]
        self._set(self._average)
        try:
            return export(self.model, self.tokenizer)
        finally:
            self._set(now)

    @torch.no_grad()
    def _set(self, weights: Sequence[Tensor]) -> None:
        for parameter, weight in zip(self.model.parameters(), weights, strict=True):
            parameter.copy_(weight)

    def _header(self, verdicts: Sequence[MoveEvals], transitions: Sequence[Example]) -> Header:
        """Everything that decides the learned weights, except for the kind of machine."""
        config = {f"model.{name}": value for name, value in asdict(self.config).items() if name not in FREE}
        rows = [*(render_move_evals(verdict) for verdict in verdicts), *(row.prompt for row in transitions)]
        return {
            "seed": self.seed,
            "init_from": self._begun_with,
            **config,
            "verdicts, transitions, exclude": digest(rows),
        }

    def _save(self, folder: Path, header: Header) -> None:
        """Write the model as a Hugging Face folder (bf16, half the size) and the state to go on from."""
        self.exported().to(torch.bfloat16).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        # Last: where it says that all is done, the model is there.
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "step": self.step,
            "average": self._average,
        }
        save_state(folder, header, state)


def _widened(saved: Tensor, new: Tensor) -> Tensor:
    """A saved tensor; behind it the last rows of `new`, where there are more tokens, features or heads than then."""
    if saved.ndim == 0 or saved.shape[1:] != new.shape[1:] or len(saved) >= len(new):
        return saved
    return torch.cat([saved, new[len(saved) :].to(saved)])


def _by_length(rows: Sequence[Row]) -> list[list[Row]]:
    """PARTS lists of about equal size, shorter rows first."""
    ordered = sorted(rows, key=lambda row: len(row.tokens))
    cuts = [len(rows) * number // PARTS for number in range(PARTS + 1)]
    return [ordered[begin:end] for begin, end in pairwise(cuts) if begin < end]

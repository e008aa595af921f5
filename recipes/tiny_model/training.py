"""Training of a small model from scratch on both tasks; resumable.

Each step learns from `P:` and `A:` examples. Muon updates the matrices within the blocks, AdamW everything else. The
learning rates are constant until the last part of the run, in which they fall to 0. The exported weights are a running
average.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model.device import Precision, add_gradients, autocast, map_on_cores
from rookworld_rlvr.training.saved_state import (
    Header,
    NotFiniteError,
    gave_up,
    read_state,
    require_finite,
    save_state,
)

from .config import TrainingConfig
from .drawing import Examples
from .features import token_features
from .losses import Losses
from .model import ModelWithHeads, Shape, export, load_exported
from .policy_examples import square_ids
from .tokenizer import build_tokenizer

# Options that may change when a training resumes; those of its length only until the decay begins.
CHANGEABLE_ON_RESUME = ("save_every", "log_every", "steps", "decay_fraction")
# In the first steps the running average's decay is only step / (step + this), so that it forgets the first weights.
AVERAGE_WARMUP = 20
ADAM_BETAS = (0.9, 0.98)
MUON_WEIGHT_DECAY = 0.01
MODEL_FOLDER = "model"


LossesOf = Callable[[Tensor], dict[str, Tensor]]
"""Function from the token embeddings (V, H) to the losses by name."""


class Training:
    """State of a training: model, optimisers, step, running average. All of it is saved."""

    def __init__(self, config: TrainingConfig, *, seed: int, device: torch.device) -> None:
        torch.manual_seed(seed)
        self.config, self.seed, self.device, self.step = config, seed, device, 0
        self.tokenizer = build_tokenizer()
        shape = Shape(config.layers, config.width, config.heads, config.board_layer)
        self.model = ModelWithHeads(shape, token_features(self.tokenizer)).to(device)
        if config.start:
            load_exported(self.model, config.start, self.tokenizer)
        self.losses = Losses(self.model, config.weights, square_ids(self.tokenizer).to(device))
        self._others = self.model.other_parameters()
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(self.model.hidden_matrices(), lr=config.muon_lr, weight_decay=MUON_WEIGHT_DECAY),
            torch.optim.AdamW(self._others, lr=config.lr, betas=ADAM_BETAS, weight_decay=0.0, fused=True),
        )
        self.average = [parameter.detach().clone() for parameter in self.model.parameters()]

    def run(self, examples: Examples, folder: Path) -> Iterator[dict[str, float]]:
        """Train to the last step, saving into `folder`; yield step, mean losses and lr every log_every steps."""
        header, sums, summed = self._header(examples), defaultdict[str, float](float), 0
        try:
            while self.step < self.config.steps:
                for name, loss in self.train_step(examples).items():
                    sums[name] += loss
                summed += 1
                last = self.step == self.config.steps
                if self.step % self.config.log_every == 0 or last:
                    means = {name: loss / summed for name, loss in sums.items()}
                    yield {"step": self.step, **means, "lr": self._schedule()}
                    sums.clear()
                    summed = 0
                if self.step % self.config.save_every == 0 or last:
                    self._save(folder, header)
        except NotFiniteError as error:
            raise gave_up(error, folder, self.step, "try smaller training.lr and training.muon_lr") from error

    def resume(self, folder: Path, examples: Examples) -> bool:
        """Load the state in `folder`; return False if there is none. Raises UserError if it is of another training."""
        state = read_state(folder, self._header(examples), self.device)
        if state is None:
            return False
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.average, self.step = state["average"], state["step"]
        self._check_schedule(*state["schedule"])
        return True

    def _check_schedule(self, steps: int, decay_fraction: float) -> None:
        """Raise UserError if the schedule has changed after its decay had begun."""
        saved = replace(self.config, steps=steps, decay_fraction=decay_fraction)
        if saved != self.config and self.step > min(saved.decay_at, self.config.decay_at):
            schedule = f"training.steps={steps} training.decay_fraction={decay_fraction:g}"
            raise UserError(f"expected {schedule}, as the saved training is at step {self.step}, in its decay")

    def exported(self) -> Any:
        """Return the averaged weights as a stock Qwen3 model in float32."""
        current = [parameter.detach().clone() for parameter in self.model.parameters()]
        self._set(self.average)
        try:
            return export(self.model, self.tokenizer)
        finally:
            self._set(current)

    def train_step(self, examples: Examples) -> dict[str, float]:
        """Update the model once and return the losses by name."""
        config = self.config
        for optimizer, lr in zip(self._optimizers, (config.muon_lr, config.lr), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * self._schedule()
        losses = defaultdict[str, float](float)
        # The embeddings are computed once per step; as a leaf tensor they collect the gradients of all parts.
        summed_VH = self.model.embeddings()
        embeddings_VH = summed_VH.detach().requires_grad_()
        learned = [*self.model.parameters(), embeddings_VH]
        for part, gradients in map_on_cores(partial(self._gradients, learned), self._parts(examples), self.device):
            for name, loss in part.items():
                losses[name] += loss
            add_gradients(learned, gradients)
        summed_VH.backward(embeddings_VH.grad)
        if self._heads_alone:
            # An optimiser skips parameters without a gradient.
            heads = set(map(id, self.model.head_parameters()))
            for parameter in self.model.parameters():
                parameter.grad = parameter.grad if id(parameter) in heads else None
        torch.nn.utils.clip_grad_norm_(self._others, 1.0)
        with self._muon_arithmetic():
            for optimizer in self._optimizers:
                optimizer.step()
                optimizer.zero_grad()
        self.step += 1
        if bad := [name for name, loss in losses.items() if not math.isfinite(loss)]:
            raise NotFiniteError(f"expected finite losses, got {losses[bad[0]]} as {bad[0]}")
        self._update_average()
        return losses

    def _muon_arithmetic(self) -> AbstractContextManager[object]:
        """Return a context in which Muon's iterations are in float32 if `bf16` is off.

        torch computes them in bfloat16, which takes forty times as long (4 s per step) on a CPU without bfloat16 units.
        """
        return nullcontext() if self.config.bf16 else patch.object(Tensor, "bfloat16", Tensor.clone)

    @property
    def _heads_alone(self) -> bool:
        return bool(self.config.start) and self.step < self.config.warmup_steps

    def _schedule(self) -> float:
        """Return the factor of the learning rates at this step."""
        config, done = self.config, self.step / self.config.steps
        if self._heads_alone:
            return 1.0
        left = min(1.0, (1 - done) / config.decay_fraction) if config.decay_fraction else 1.0
        warmed = self.step + 1 - (config.warmup_steps if config.start else 0)
        return min(1.0, warmed / config.warmup_steps) * left

    def _parts(self, examples: Examples) -> list[LossesOf]:
        """Return functions that compute the losses of a step, in parts that can be computed at the same time."""
        config = self.config
        policy, environment = examples.batches(self.step)
        return [
            *(partial(self.losses.policy, batch, config.policy_examples) for batch in policy),
            *(partial(self.losses.environment, batch, config.environment_examples) for batch in environment),
        ]

    def _gradients(
        self, learned: Sequence[Tensor], losses_of: LossesOf
    ) -> tuple[dict[str, float], tuple[Tensor | None, ...]]:
        """Return losses of a part and gradients of `learned`, whose last tensor is the token embeddings (V, H)."""
        precision = Precision.bf16 if self.config.bf16 else Precision.fp32
        with autocast(self.device, precision, keep_casts=False):
            losses = losses_of(learned[-1])
        total = torch.stack(list(losses.values())).sum()
        gradients = torch.autograd.grad(total, list(learned), allow_unused=True)
        return {name: float(loss.detach()) for name, loss in losses.items()}, gradients

    @torch.no_grad()
    def _update_average(self) -> None:
        kept = min(self.config.average, self.step / (self.step + AVERAGE_WARMUP))
        for average, parameter in zip(self.average, self.model.parameters(), strict=True):
            average.lerp_(parameter, 1 - kept)

    @torch.no_grad()
    def _set(self, weights: Sequence[Tensor]) -> None:
        for parameter, weight in zip(self.model.parameters(), weights, strict=True):
            parameter.copy_(weight)

    def _header(self, examples: Examples) -> Header:
        """Return everything that decides the trained weights, except the kind of machine."""
        options = asdict(self.config)
        weights = {f"training.weights.{name}": value for name, value in options.pop("weights").items()}
        shown = {f"training.{name}": value for name, value in options.items() if name not in CHANGEABLE_ON_RESUME}
        return {"seed": self.seed, **shown, **weights, "data": examples.source}

    def _save(self, folder: Path, header: Header) -> None:
        """Write the model as a Hugging Face folder (bf16, half the size) and then the state to resume from."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "step": self.step,
            "average": self.average,
            "schedule": (self.config.steps, self.config.decay_fraction),
        }
        # Before anything is replaced.
        require_finite(state, "state")
        self.exported().to(torch.bfloat16).save_pretrained(folder / MODEL_FOLDER)
        self.tokenizer.save_pretrained(folder / MODEL_FOLDER)
        # The state is written last, so that the model is complete if the state is that of the last step.
        save_state(folder, header, state)

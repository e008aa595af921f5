"""AdamW, and its learning rate over the run."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from ..model.device import is_accelerator
from ..model.weights import is_small

# Decays of AdamW's moments. A second moment of 100 steps, in place of AdamW's 1,000, because a run has only hundreds.
BETAS = (0.9, 0.99)


@dataclass(slots=True)
class OptimConfig:
    """Options of the optimiser, AdamW."""

    lr: float = 2e-4
    """Peak learning rate. The default suits the tiny model; `experiment=rookworld_124m` has a lower, untested one."""
    warmup_steps: int = 10
    """Number of steps of linear warm-up to lr."""
    min_lr_fraction: float = 0.1
    """Learning rate at the end of the cosine, as a fraction of lr. 1 keeps lr constant after the warm-up."""
    weight_decay: float = 0.0
    """Decoupled weight decay of AdamW."""
    max_grad_norm: float = 1.0
    """Largest norm of the gradient. A larger gradient is scaled down to it."""
    micro_batch_size: int = 0
    """Maximum number of completions per forward and backward pass, ideally a multiple of objective.group_size. Memory
    grows with it; results do not change. On a CPU a pass has fewer, but at least 16, if a core would otherwise idle.
    0: automatic, 256 for a model of less than 32 million parameters on an accelerator, otherwise 64."""

    def __post_init__(self) -> None:
        if not 0 <= self.lr < math.inf or not 0 <= self.min_lr_fraction <= 1:
            raise ValueError(f"optim: expected lr from 0 up and min_lr_fraction in [0, 1], got {self}")
        if min(self.micro_batch_size, self.warmup_steps) < 0 or not self.max_grad_norm > 0:
            raise ValueError("optim: expected micro_batch_size and warmup_steps from 0, max_grad_norm above 0")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"optim.weight_decay: expected a finite number from 0 up, got {self.weight_decay}")


def micro_batch_size(config: OptimConfig, model: nn.Module, device: torch.device) -> int:
    """Return the configured maximum number of completions per pass, or the automatic one.

    That depends on the model alone, because all ranks must divide a batch alike. A small model leaves an accelerator
    idle with fewer; memory that runs out all the same halves it.
    """
    small = is_accelerator(device) and is_small(model)
    return config.micro_batch_size or (256 if small else 64)


def make_optimizer(
    parameters: Iterable[nn.Parameter], config: OptimConfig, betas: tuple[float, float] = BETAS
) -> torch.optim.AdamW:
    """Return a fused AdamW over the parameters that are trained (arXiv 1711.05101)."""
    return torch.optim.AdamW(
        [parameter for parameter in parameters if parameter.requires_grad],
        lr=config.lr,
        betas=betas,
        weight_decay=config.weight_decay,
        fused=True,
    )


def learning_rate(config: OptimConfig, step: int, total_steps: int) -> float:
    """Return the learning rate of `step`, counted from 0: a linear warm-up, then a cosine.

    The cosine would reach min_lr_fraction × lr one step after the last.

    >>> learning_rate(OptimConfig(lr=1.0, warmup_steps=0, min_lr_fraction=0.5), 50, 100)
    0.75
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return config.lr * (config.min_lr_fraction + (1 - config.min_lr_fraction) * cosine)

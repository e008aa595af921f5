"""Options of the objective: the size of a step's batch, its loss, and its updates. Those of the KL are in `kl`."""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from .advantages import AdvantageConfig
from .losses import LossKind
from .policy_loss import ClipConfig


class ZeroVariance(StrEnum):
    """Treatment of a zero-variance group, whose rewards are all equal."""

    keep = "keep"
    """Keep it, by default with advantage 0. Its KL and entropy terms are trained, and its tokens count in the
    normalisation."""
    drop = "drop"
    """Do not train on its completions."""
    refill = "refill"
    """Sample other prompts to replace it, in up to 3 rounds (dynamic sampling, arXiv 2503.14476). Groups that still
    have zero variance after these are dropped."""


class Truncated(StrEnum):
    """Treatment of a completion that was truncated at generator.max_new_tokens."""

    score = "score"
    """Score it as it is and train on it."""
    mask = "mask"
    """Count its reward in the group's mean, but do not train on it (overlong filtering, arXiv 2503.14476)."""


@dataclass(slots=True)
class CollectionConfig:
    """Choice of the sampled completions that a step trains on."""

    zero_variance: ZeroVariance = ZeroVariance.keep
    truncated: Truncated = Truncated.score


@dataclass(slots=True)
class ObjectiveConfig:
    """Size of a step's batch, and the objective of its updates. Raises ValueError for an option out of its range."""

    loss: LossKind = LossKind.dapo
    """Surrogate loss and its normalisation."""
    prompts_per_step: int = 16
    """Number of prompts per step (P)."""
    group_size: int = 8
    """Number of completions per prompt (G)."""
    epochs: int = 1
    """Number of passes over the step's batch."""
    minibatches: int = 1
    """Number of updates per pass. The batch is divided into this many minibatches, at random if there are several."""
    collection: CollectionConfig = field(default_factory=CollectionConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    clip: ClipConfig = field(default_factory=ClipConfig)
    mismatch_cap: float = 2.0
    """Largest weight of a token that corrects for a sampler which rounds differently from the trainer, above 1
    (`objective.mismatch`). 0 turns the correction off."""
    entropy_coef: float = 0.0
    """Coefficient of the entropy bonus. The coefficient times the entropy at each trained token of a completion is
    subtracted from the loss. 0 turns the bonus off."""
    all_moves_coef: float = 0.3
    """Coefficient of the expected value of a move, or of the first candidate, over all legal moves. Its gradient needs
    no samples. Only positions with move evaluations contribute. 0 turns the term off."""
    all_moves_temperature: float = 0.0
    """Weight of the entropy over the legal moves, in nat, that is added to that expected value. The optimum is then a
    softmax of the values at this temperature, in place of the best move alone. It falls linearly to 0 over the run."""

    def __post_init__(self) -> None:
        if self.prompts_per_step < 1 or self.group_size < 2:
            raise ValueError(
                "objective: expected prompts_per_step from 1 and group_size from 2, got "
                f"{self.prompts_per_step} and {self.group_size}"
            )
        if self.epochs < 1 or self.minibatches < 1:
            raise ValueError(
                f"objective: expected epochs and minibatches from 1, got {self.epochs} and {self.minibatches}"
            )
        if self.mismatch_cap and not self.mismatch_cap > 1:
            raise ValueError(f"objective.mismatch_cap: expected above 1, or 0 for off, got {self.mismatch_cap}")
        if self.mismatch_cap and self.loss is LossKind.gspo:
            raise ValueError(
                "objective.loss=gspo: expected objective.mismatch_cap=0, since it has one ratio per completion and the "
                f"correction has one per token, got {self.mismatch_cap} (objective=gspo sets all)"
            )
        for name in ("entropy_coef", "all_moves_coef", "all_moves_temperature"):
            if not 0 <= (coef := getattr(self, name)) < math.inf:
                raise ValueError(f"objective.{name}: expected a finite number from 0 up, got {coef}")

    def moves_temperature(self, step: int, steps: int) -> float:
        """Return the temperature that is in force in a step, numbered from 0, of a run of `steps` steps.

        >>> [ObjectiveConfig(all_moves_temperature=0.1).moves_temperature(step, 200) for step in (0, 100, 200, 300)]
        [0.1, 0.05, 0.0, 0.0]
        """
        return self.all_moves_temperature * max(0.0, 1 - step / steps)

    @property
    def updates(self) -> int:
        """Number of updates per step."""
        return self.epochs * self.minibatches

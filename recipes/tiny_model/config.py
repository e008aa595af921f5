"""Options of the training."""

import math
from dataclasses import dataclass, field

from .losses import LossWeights


@dataclass(slots=True)
class TrainingConfig:
    """Shape of the model, length of the training, and weights of the losses."""

    layers: int = 6
    width: int = 192
    """Hidden size; a multiple of heads."""
    heads: int = 6
    board_layer: int = 5
    """Number of layers before the heads on the board; at most `layers`."""
    start: str = ""
    """Folder of an exported model whose weights the training starts from; empty: random weights. An export has no
    heads, so for `warmup_steps` only the heads are trained; the warm-up comes after that."""
    steps: int = 16000
    policy_examples: int = 40
    """`P:` examples per step."""
    environment_examples: int = 32
    """`A:` examples per step."""
    check_share: float = 0.2
    """Share of the `P:` examples that are sampled from the positions in check."""
    mate_share: float = 0.1
    """Share of the `P:` examples that are sampled from the positions with exactly one mate in one."""
    ending_share: float = 0.1
    """Share of the `P:` examples that are sampled from endings (`Source.ending`)."""
    bare_king_share: float = 0.0
    """Share of the `P:` examples that are new positions of queen or rook against king, with values from the distance to
    mate."""
    bf16: bool = True
    """Compute matrix products in bfloat16. Slower on a CPU without bfloat16 units."""
    muon_lr: float = 0.02
    """Learning rate of Muon, for the matrices within the blocks."""
    lr: float = 2e-3
    """Learning rate of AdamW, for embeddings, norms and heads."""
    warmup_steps: int = 100
    decay_fraction: float = 0.3
    """Fraction of the run, at its end, in which the learning rates fall to 0."""
    average: float = 0.998
    """Decay per step of the running average of the weights, which is exported; 0 exports the weights themselves."""
    save_every: int = 200
    """Steps between saves; an interrupted training resumes from the last one."""
    log_every: int = 50
    weights: LossWeights = field(default_factory=LossWeights)

    def __post_init__(self) -> None:
        counts = (self.layers, self.heads, self.steps, self.policy_examples, self.environment_examples)
        if min(*counts, self.warmup_steps, self.save_every, self.log_every) < 1:
            raise ValueError("training: expected counts of at least 1")
        if self.width < 1 or self.width % self.heads:
            raise ValueError("training: expected a width that is a multiple of heads")
        shares = (self.check_share, self.mate_share, self.ending_share, self.bare_king_share)
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError("training: expected shares of at least 0 that add up to at most 1")
        if not 1 <= self.board_layer <= self.layers:
            raise ValueError(f"training.board_layer: expected 1 to {self.layers}, got {self.board_layer}")
        if not 0 < self.lr < math.inf or not 0 < self.muon_lr < math.inf:
            raise ValueError("training: expected learning rates above 0")
        if not 0 <= self.average < 1 or not 0 <= self.decay_fraction <= 1:
            raise ValueError("training: expected average from 0 to below 1 and decay_fraction from 0 to 1")

    @property
    def decay_at(self) -> float:
        """Step at which the decay begins."""
        return self.steps * (1 - self.decay_fraction)

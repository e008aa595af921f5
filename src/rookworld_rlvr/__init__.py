"""Reinforcement learning with verifiable rewards (RLVR) for chess language models.

from rookworld_rlvr import load
from rookworld_rlvr.rewards import score

load("tiny").play(fen).move         # the move of the model that ships, with its completion beside it
score(prompt, completion).total     # the reward of a completion, the same as in training
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .play.choice import MoveChooser

__version__ = "0.1.0"


def load(model: str = "tiny", *, seed: int = 0) -> "MoveChooser":
    """A model that plays chess: a checkpoint's folder, a name on the hub, or `tiny`, the model that ships.

    `play(fen)` of what it returns gives a move with the model's completion; `seed` decides what is sampled. Imports
    torch and takes some seconds. Raises `errors.UserError` for a model that cannot be loaded.
    """
    from .app.play import load_chooser

    return load_chooser(model, seed)

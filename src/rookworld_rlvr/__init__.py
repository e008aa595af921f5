"""Reinforcement learning with verifiable rewards (RLVR) for chess language models.

from rookworld_rlvr import load
from rookworld_rlvr.rewards import score

load("tiny").play(fen).move         # the legal move that the shipped model finds likeliest; .text is its completion
score(prompt, completion).total     # the reward of a completion, computed as in training
"""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .play.choice import MoveChooser

__version__ = "0.1.0"


def load(model: str = "tiny", *, seed: int = 0, decoding: Literal["legal", "text"] = "legal") -> "MoveChooser":
    """Load a model that plays chess: a checkpoint's folder, a name on the hub, or `tiny`, the model that ships.

    The `play(fen)` method of the result chooses a move and returns it with the model's completion. The move is the
    likeliest legal one; with `decoding="text"` it is the one that the model writes. `seed` is the seed of sampled
    moves. Imports torch, which takes some seconds. Raises `errors.UserError` if the model cannot be loaded.
    """
    from .app.play import load_chooser

    return load_chooser(model, seed, decoding=decoding)

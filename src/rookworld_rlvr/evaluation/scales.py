"""What the values of each key mean: right or wrong, or graded on a scale. One place for all suites.

A key that is not here, nor any key that it refines (`policy/valid/white` refines `policy/valid`), is right or wrong:
its values are 1.0 and 0.0 and its interval is Wilson's. A graded key has the interval of its mean, cut to its scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from ..board.transition import REWARD_ILLEGAL, REWARD_WIN

# The greatest error that two rewards of the environment can have: a win taken for an illegal move.
REWARD_WIDTH = REWARD_WIN - REWARD_ILLEGAL


@dataclass(frozen=True, slots=True)
class Scale:
    """Where graded values lie."""

    lowest: float
    """May be minus infinity."""
    highest: float
    """May be infinity."""

    @property
    def width(self) -> float:
        return self.highest - self.lowest


SHARE = Scale(0.0, 1.0)
COUNT = Scale(0.0, inf)
NAT = Scale(0.0, inf)
BASELINE, CHANGE = "baseline", "change"
"""Refine keys: another model's values, and the differences from it."""
SAMPLED, SPREAD = "sampled", "spread"
BEST, DISTINCT = f"{SPREAD}/best", f"{SPREAD}/distinct"
"""Begin keys of sampled answers: the mean over a row's samples; the best of them; the share of them that differ."""
# Of all other keys higher is better; refined keys like the keys they refine.
LOWER_IS_BETTER = ("win_probability_loss", "reward_mae", "eval_error", "illegal", "replaced", "loss", "loss_per_token")

GRADED: Mapping[str, Scale] = {
    "policy/legal_candidates": SHARE,
    "policy/top5_overlap": SHARE,
    "policy/win_probability_loss": SHARE,
    "policy/eval_error": SHARE,
    "environment/next_state_nls": SHARE,
    "environment/reward_mae": Scale(0.0, REWARD_WIDTH),
    "balanced/next_state_nls": SHARE,
    "balanced/reward_mae": Scale(0.0, REWARD_WIDTH),
    "selfplay/legal_halfmoves": COUNT,
    "closed_world/halfmoves": COUNT,
    "engine_match/score": SHARE,
    "engine_match/won": SHARE,
    "engine_match/drawn": SHARE,
    "engine_match/lost": SHARE,
    "engine_match/cut": SHARE,
    "engine_match/material_score": SHARE,
    "engine_match/illegal": SHARE,
    "engine_match/elo": Scale(-inf, inf),
    "match/score": SHARE,
    "match/won": SHARE,
    "match/drawn": SHARE,
    "match/lost": SHARE,
    "match/cut": SHARE,
    "match/material_score": SHARE,
    "match/illegal": SHARE,
    "match/replaced": SHARE,
    "match/opponent_illegal": SHARE,
    "match/opponent_replaced": SHARE,
    "match/elo": Scale(-inf, inf),
    "retention/policy_legal_candidates": SHARE,
    "retention/policy_top5_overlap": SHARE,
    "retention/policy_loss": NAT,
    "retention/policy_loss_per_token": NAT,
    "retention/environment_next_state_nls": SHARE,
    "retention/environment_reward_mae": Scale(0.0, REWARD_WIDTH),
    "retention/environment_loss": NAT,
    "retention/environment_loss_per_token": NAT,
}


def scale_of(key: str) -> Scale | None:
    """The scale of a graded key or of the key that it refines; None for right or wrong.

    A difference, whose key has `/change`, is graded whatever it is of.

    >>> scale_of("policy/legal_candidates/black"), scale_of("policy/valid/black")
    (Scale(lowest=0.0, highest=1.0), None)
    >>> scale_of("retention/policy_valid/change/white")
    Scale(lowest=-1.0, highest=1.0)
    """
    for means in (SAMPLED, BEST, DISTINCT):
        if key.startswith(f"{means}/"):
            return scale_of(key.removeprefix(f"{means}/")) or SHARE
    parts = key.split("/")
    names = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    scale = next((GRADED[name] for name in names if name in GRADED), None)
    if CHANGE in parts:
        width = scale.width if scale else 1.0
        return Scale(-width, width)
    return scale


def lower_is_better(key: str) -> bool:
    """Whether a key is a loss, an error or a rate of illegal moves.

    >>> lower_is_better("sampled/policy/win_probability_loss/white"), lower_is_better("policy/valid")
    (True, False)
    """
    return any(part in LOWER_IS_BETTER for part in key.split("/"))

"""Evaluation keys: the scale and the direction of each one, and the slices that refine them.

A key inherits from the longest declared key that it refines: `policy/valid/white` inherits from `policy/valid`. A key
without a scale is right or wrong: its values are 1.0 and 0.0, and its interval is Wilson's. A graded key has a scale,
and the normal interval of its mean, clipped to the scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf

import chess

from ..board.phase import Phase, phase_of
from ..board.transition import REWARD_ILLEGAL, REWARD_WIN

# The largest difference of two rewards of the environment: that of a win and an illegal move.
REWARD_WIDTH = REWARD_WIN - REWARD_ILLEGAL
SAMPLED, SPREAD = "sampled", "spread"
BEST, DISTINCT = f"{SPREAD}/best", f"{SPREAD}/distinct"
"""Prefixes of sampled keys: the mean over a row's samples, the best of them, and the share of distinct ones."""
SLICES = (*chess.COLOR_NAMES[::-1], *(phase.value for phase in Phase))
"""Suffixes of keys: the colour to move and the phase of the game."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The range of graded values."""

    lowest: float
    """Lowest value. It may be minus infinity."""
    highest: float
    """Highest value. It may be infinity."""

    @property
    def width(self) -> float:
        return self.highest - self.lowest


class Direction(Enum):
    """The direction in which a key improves."""

    higher = "higher"
    lower = "lower"
    neutral = "neutral"
    """Neither direction is better: the key is a property of games or of the opponent."""


@dataclass(frozen=True, slots=True)
class Key:
    """The meaning of a key's values."""

    direction: Direction
    scale: Scale | None = None
    """Range of the values. None if they are right or wrong."""


UNIT, COUNT, REAL = Scale(0.0, 1.0), Scale(0.0, inf), Scale(-inf, inf)
RIGHT, WRONG, EVENT = Key(Direction.higher), Key(Direction.lower), Key(Direction.neutral)
GAIN, LOSS, SHARE = Key(Direction.higher, UNIT), Key(Direction.lower, UNIT), Key(Direction.neutral, UNIT)
LENGTH, NATS = Key(Direction.higher, COUNT), Key(Direction.lower, COUNT)

_POLICY = {
    "valid": RIGHT,
    "legal_best_move": RIGHT,
    "legal_candidates": GAIN,
    "best_move_accuracy": RIGHT,
    "top5_accuracy": RIGHT,
    "top5_overlap": GAIN,
    "mate_in_one": RIGHT,
}
_ENVIRONMENT = {
    "valid": RIGHT,
    "next_state_accuracy": RIGHT,
    "next_state_nls": GAIN,
    "reward_accuracy": RIGHT,
    "reward_mae": Key(Direction.lower, Scale(0.0, REWARD_WIDTH)),
    "terminated_accuracy": RIGHT,
    "truncated_accuracy": RIGHT,
    "recall_legal": RIGHT,
    "recall_illegal": RIGHT,
    "recall_win": RIGHT,
    "recall_draw": RIGHT,
    "recall_terminated": RIGHT,
    "recall_truncated": RIGHT,
}
_NEXT_FEN = {
    "fen_strict": RIGHT,
    "fen_lenient": RIGHT,
    "fen_error_placement": WRONG,
    "fen_error_turn": WRONG,
    "fen_error_castling": WRONG,
    "fen_error_en_passant": WRONG,
    "fen_error_halfmove_clock": WRONG,
    "fen_error_fullmove_number": WRONG,
}
_GAMES = {
    "score": GAIN,
    "won": GAIN,
    "drawn": SHARE,
    "lost": LOSS,
    "rules_score": GAIN,
    "ended": SHARE,
    "illegal": LOSS,
    "elo": Key(Direction.higher, REAL),
    "normalised_elo": Key(Direction.higher, REAL),
    "likelihood_of_superiority": GAIN,
    "pentanomial": Key(Direction.neutral, COUNT),
}


def _of(prefix: str, keys: Mapping[str, Key]) -> dict[str, Key]:
    return {f"{prefix}{name}": key for name, key in keys.items()}


KEYS: Mapping[str, Key] = {
    **_of("policy/", _POLICY | {"win_probability_loss": LOSS, "eval_error": LOSS, "best_move_probability": GAIN}),
    "policy/best_move_rank": Key(Direction.lower, COUNT),
    **_of("environment/", _ENVIRONMENT | _NEXT_FEN),
    **_of("mate_in_one/", {"accuracy": RIGHT, "exact": RIGHT, "legal": RIGHT}),
    **_of("selfplay/", {"legal_halfmoves": LENGTH, "illegal_rate": WRONG, "ended": EVENT, "ended/illegal_move": WRONG}),
    **_of("engine_match/", _GAMES),
    **_of("match/", _GAMES | {"replaced": LOSS, "opponent_illegal": SHARE, "opponent_replaced": SHARE}),
    **_of("label_loss/policy", {"": NATS, "_per_token": NATS}),
    **_of("label_loss/environment", {"": NATS, "_per_token": NATS}),
    **_of("conversion/", {"won": RIGHT, "ended": EVENT}),
}
"""Declared keys by full name, without SAMPLED, BEST and DISTINCT."""


def key_of(name: str) -> Key:
    """Return the declaration of a key or of the key that it refines; EVENT (right or wrong, neutral) without one.

    >>> key_of("policy/legal_candidates/black").scale, key_of("policy/valid/black").scale
    (Scale(lowest=0.0, highest=1.0), None)
    """
    if name.startswith(f"{DISTINCT}/"):
        return SHARE
    for prefix in (SAMPLED, BEST):
        if name.startswith(f"{prefix}/"):
            key = key_of(name.removeprefix(f"{prefix}/"))
            return Key(key.direction, key.scale or UNIT)
    words = name.split("/")
    refined_names = ("/".join(words[:length]) for length in range(len(words), 0, -1))
    return next((KEYS[refined] for refined in refined_names if refined in KEYS), EVENT)


def scale_of(name: str) -> Scale | None:
    """Return the scale of a graded key; None for a key that is right or wrong."""
    return key_of(name).scale


def lower_is_better(name: str) -> bool:
    """Return whether a lower value is better: True for losses, errors and rates of illegal moves.

    >>> lower_is_better("sampled/policy/win_probability_loss/white"), lower_is_better("policy/valid")
    (True, False)
    """
    return key_of(name).direction is Direction.lower


def is_worse(name: str, change: float) -> bool:
    """Return whether this change makes a key worse. No change makes a neutral key worse or better.

    >>> is_worse("environment/fen_error_turn", 0.1), is_worse("match/ended/stalemate", 0.1)
    (True, False)
    """
    return key_of(name).direction is not Direction.neutral and (change > 0 if lower_is_better(name) else change < 0)


def is_better(name: str, change: float) -> bool:
    """Return whether this change makes a key better."""
    return is_worse(name, -change)


def is_tested(name: str) -> bool:
    """Return whether a key is tested for changes: it must be declared itself and have a direction.

    >>> is_tested("sampled/policy/valid"), is_tested("policy/valid/white"), is_tested("match/ended")
    (True, False, False)
    """
    declared = name.removeprefix(f"{SAMPLED}/").removeprefix(f"{BEST}/") in KEYS
    return declared and key_of(name).direction is not Direction.neutral


def slices_of(board: chess.Board) -> tuple[str, str]:
    """Return the two `SLICES` of a position.

    >>> slices_of(chess.Board())
    ('white', 'opening')
    """
    return chess.COLOR_NAMES[board.turn], phase_of(board).value


def with_slices(values: Mapping[str, float], board: chess.Board) -> dict[str, float]:
    """Return the values, and each of them again by the slices of the position.

    >>> with_slices({"policy/valid": 1.0}, chess.Board())
    {'policy/valid': 1.0, 'policy/valid/white': 1.0, 'policy/valid/opening': 1.0}
    """
    return {**values, **{f"{key}/{name}": value for name in slices_of(board) for key, value in values.items()}}

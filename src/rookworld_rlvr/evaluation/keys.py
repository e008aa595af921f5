"""Evaluation keys: the scale, the direction and the meaning of each one, and the slices that refine them.

A key inherits from the longest declared key that it refines: `policy/valid/white` inherits from `policy/valid`. A key
without a scale is right or wrong: its values are 1.0 and 0.0, and its interval is Wilson's. A graded key has a scale,
and the normal interval of its mean, clipped to the scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """The meaning of a key's values. A key without a text is not in the generated documentation."""

    direction: Direction
    scale: Scale | None = None
    """Range of the values. None if they are right or wrong."""
    unit: str = ""
    meaning: str = ""
    healthy: str = ""
    """Value or trend to expect of a model that plays well."""


FRACTION, COUNT, REAL = Scale(0.0, 1.0), Scale(0.0, inf), Scale(-inf, inf)
EVENT, SHARE = Key(Direction.neutral), Key(Direction.neutral, FRACTION)


def _higher(meaning: str, healthy: str = "rises", scale: Scale | None = None, unit: str = "fraction") -> Key:
    return Key(Direction.higher, scale, unit, meaning, healthy)


def _lower(meaning: str, healthy: str = "falls", scale: Scale | None = None, unit: str = "fraction") -> Key:
    return Key(Direction.lower, scale, unit, meaning, healthy)


def _neutral(meaning: str, healthy: str = "–", scale: Scale | None = None) -> Key:
    return Key(Direction.neutral, scale, "fraction", meaning, healthy)


def _recall(value: str, examples: str, healthy: str = "rises; a constant guess has 0") -> Key:
    return _higher(f"`{value}` on examples whose {examples}", healthy)


def _label_loss(task: str) -> dict[str, Key]:
    whole = "cross-entropy of the label and its end of text; a rise is forgetting"
    per_token = "mean over examples of the same per token of the model's own tokenizer"
    return {
        f"label_loss/{task}": _lower(whole, scale=COUNT, unit="nats per example"),
        f"label_loss/{task}_per_token": _lower(per_token, scale=COUNT, unit="nats per token"),
    }


KEYS: Mapping[str, Key] = {
    "policy/valid": _higher("the strict parser reads the completion", "above 0.95"),
    "policy/legal_best_move": _higher("the `B:` move is legal"),
    "policy/legal_candidates": _higher(
        "distinct legal candidates, divided by five or by the number of legal moves if that is less", scale=FRACTION),
    "policy/best_move_accuracy": _higher("the `B:` move is a candidate with the label's highest eval; all ties count"),
    "policy/top5_accuracy": _higher("the `B:` move is one of the label's candidates"),
    "policy/top5_overlap": _higher("share of the label's candidates among the completion's", scale=FRACTION),
    "policy/mate_in_one": _higher("the `B:` move mates; only for positions in which a move mates"),
    "policy/win_probability_loss": _lower(
        "win-probability loss of the `B:` move by the engine's evaluations; an illegal move loses the whole win "
        "probability of the best move. Only for evaluated positions", scale=FRACTION),
    "policy/eval_error": _lower(
        "mean distance over five candidates between the win probability of `E:` and the engine's; an illegal, repeated "
        "or missing candidate counts 1", scale=FRACTION),
    "environment/valid": _higher("the strict parser reads the completion", "above 0.95"),
    "environment/next_state_accuracy": _higher("the next FEN is the true one, character by character"),
    "environment/next_state_nls": _higher(
        "normalised Levenshtein similarity of the two FENs; a copy of the old state also scores high", "above 0.95",
        FRACTION),
    "environment/reward_accuracy": _higher("the reward is the true one"),
    "environment/terminated_accuracy": _higher("the terminated flag is the true one", "near 1"),
    "environment/truncated_accuracy": _higher("the truncated flag is the true one", "near 1"),
    "environment/fen_strict": _higher(
        "the first field is the true FEN, character by character, whatever follows it", "near `next_state_accuracy`"),
    "environment/fen_lenient": _higher(
        "the first field parses and is the true position, counters aside", "at or above `fen_strict`"),
    "environment/fen_error_placement": _lower("the piece placement differs as text or is missing", "near 0"),
    "environment/fen_error_turn": _lower("the side to move differs or is missing", "near 0"),
    "environment/fen_error_castling": _lower("the castling rights differ or are missing", "near 0"),
    "environment/fen_error_en_passant": _lower("the en-passant square differs or is missing", "near 0"),
    "environment/fen_error_halfmove_clock": _lower("the halfmove clock differs or is missing", "near 0"),
    "environment/fen_error_fullmove_number": _lower("the full-move number differs or is missing", "near 0"),
    "environment/reward_mae": _lower(
        "absolute error of the reward, at most 2", "near 0", Scale(0.0, REWARD_WIDTH), unit="reward"),
    "environment/recall_legal": _recall("reward_accuracy", "true reward is 0.001: a legal move", "near 1"),
    "environment/recall_win": _recall("reward_accuracy", "true reward is 1.0: the move wins the game"),
    "environment/recall_draw": _recall("reward_accuracy", "true reward is 0.5: the move draws the game"),
    "environment/recall_illegal": _recall("reward_accuracy", "true reward is -1.0: an illegal move"),
    "environment/recall_terminated": _recall("terminated_accuracy", "move ends the game"),
    "environment/recall_truncated": _recall("truncated_accuracy", "move is illegal"),
    "mate_in_one/accuracy": _higher("the move mates"),
    "mate_in_one/exact": _higher("the move is the file's", "at or below `mate_in_one/accuracy`"),
    "mate_in_one/legal": _higher("the move is legal", "near 1"),
    "selfplay/legal_plies": _higher(
        "legal plies of a game before an illegal one or the end; also by colour and phase", scale=COUNT, unit="plies"),
    "selfplay/illegal_rate": _lower("illegal plies over all plies tried; `n` counts plies; also by colour and phase"),
    "selfplay/ended": _neutral(
        "games by their end: `…/checkmate`, `…/illegal_move` and so on, `…/ply_limit` at the ply limit; "
        "`…/illegal_move/<slice>` by colour and phase", "fewer end by an illegal move"),
    "selfplay/ended/illegal_move": Key(Direction.lower),
    "match/score": _higher(
        "mean of a pair's two games, 1 for a win and ½ for a draw; games at the ply limit are adjudicated; also "
        "`…/white` and `…/black`, by the model's colour", scale=FRACTION, unit="points"),
    "match/elo": _higher(
        "difference to the opponent that follows from the score; infinite if all games were won or lost",
        scale=REAL, unit="Elo"),
    "match/normalised_elo": _higher(
        "the lead over the standard deviation of a game, so that draws do not change its error",
        scale=REAL, unit="Elo"),
    "match/rules_score": _higher(
        "`match/score` with all games at the ply limit drawn", scale=FRACTION, unit="points"),
    "match/won": _higher("games won", scale=FRACTION),
    "match/drawn": _neutral("games drawn, by rule or by adjudication", scale=FRACTION),
    "match/lost": _lower("games lost", scale=FRACTION),
    "match/ended": _neutral(
        "games by their end: `…/checkmate`, `…/stalemate` and so on, `…/adjudicated_engine` and "
        "`…/adjudicated_material` at the ply limit", "more end by mate", FRACTION),
    "match/likelihood_of_superiority": Key(Direction.higher, FRACTION),
    "match/pentanomial": Key(Direction.neutral, COUNT),
    "match/illegal": _lower(
        "moves of the model whose first completion was illegal; with `match.illegal=loses`, games lost by one",
        "near 0", FRACTION),
    "match/replaced": _lower(
        "moves of the model that stayed illegal and were replaced by a random one", "near 0", FRACTION),
    "match/opponent_illegal": _neutral("`match/illegal` of the opponent", scale=FRACTION),
    "match/opponent_replaced": _neutral("`match/replaced` of the opponent", scale=FRACTION),
    **_label_loss("policy"),
    **_label_loss("environment"),
    "conversion/won": _higher(
        "won positions in which the player mates within 50 moves; also `…/<advantage>_<defender>`"),
    "conversion/ended": _neutral(
        "games by their end: `…/checkmate`, `…/stalemate` and so on, `…/ply_limit` after 50 moves"),
}  # fmt: skip
"""Declared keys by full name, without SAMPLED, BEST and DISTINCT, in the order of the generated documentation."""


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
            return replace(key, scale=key.scale or FRACTION)
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

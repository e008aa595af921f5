"""Evaluation keys: the scale, the direction and the meaning of each one, and the slices that refine them.

A key inherits from the longest declared key that it refines: `policy/valid/white` inherits from `policy/valid`. A key
without a scale is right or wrong: its values are 1.0 and 0.0, and its interval is Wilson's. A graded key has a scale,
and the normal interval of its mean, clipped to the scale.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import chess

from ..board.phase import Phase, phase_of
from ..tasks import Task, all_tasks
from ..tasks.keys import COUNT, FRACTION, REAL, Direction, Key, Scale, higher, lower, neutral

SAMPLED, SPREAD = "sampled", "spread"
BEST, DISTINCT = f"{SPREAD}/best", f"{SPREAD}/distinct"
"""Prefixes of sampled keys: the mean over a row's samples, the best of them, and the share of distinct ones."""
SLICES = (*chess.COLOR_NAMES[::-1], *(phase.value for phase in Phase))
"""Suffixes of keys: the colour to move and the phase of the game."""


# If 2 in 100 rows are large losses, the 95 % interval of 100 rows covers their mean in 91 of 100 samples.
FEW_ROWS = 100
# The most per ply of a game: three illegal attempts at Black's first move, after one move of White.
MOST_MISTAKES = 1.5
CENTIPAWN_LOSS = Scale(0.0, 2000.0)
EVENT, SHARE = Key(Direction.neutral), Key(Direction.neutral, FRACTION)


def _label_loss(task: str) -> dict[str, Key]:
    whole = "cross-entropy of the label and its end of text; a rise is forgetting"
    per_token = "mean over examples of the same per token of the model's own tokenizer"
    return {
        f"label_loss/{task}": lower(whole, scale=COUNT, unit="nats per example"),
        f"label_loss/{task}_per_token": lower(per_token, scale=COUNT, unit="nats per token"),
    }


OF_SUITES: Mapping[str, Key] = {
    "mate_in_one/accuracy": higher("the move mates"),
    "mate_in_one/exact": higher("the move is the file's", "at or below `mate_in_one/accuracy`"),
    "mate_in_one/legal": higher("the move is legal", "near 1"),
    "selfplay/legal_plies": higher(
        "legal plies of a game before an illegal one or the end; also by colour and phase", scale=COUNT, unit="plies"),
    "selfplay/illegal_rate": lower("illegal plies over all plies tried; `n` counts plies; also by colour and phase"),
    "selfplay/ended": neutral(
        "games by their end: `…/checkmate`, `…/illegal_move` and so on, `…/ply_limit` at the ply limit; "
        "`…/illegal_move/<slice>` by colour and phase", "fewer end by an illegal move"),
    "selfplay/ended/illegal_move": Key(Direction.lower),
    "match/score": higher(
        "mean of a pair's two games, 1 for a win and ½ for a draw; games at the ply limit are adjudicated; also "
        "`…/white` and `…/black`, by the model's colour", scale=FRACTION, unit="points"),
    "match/elo": higher(
        "difference to the opponent that follows from the score; infinite if all games were won or lost",
        scale=REAL, unit="Elo"),
    "match/normalised_elo": higher(
        "the lead over the standard deviation of a game, which draws do not change",
        scale=REAL, unit="Elo"),
    "match/rules_score": higher(
        "`match/score` with all games at the ply limit drawn", scale=FRACTION, unit="points"),
    "match/won": higher("games won", scale=FRACTION),
    "match/drawn": neutral("games drawn, by rule or by adjudication", scale=FRACTION),
    "match/lost": lower("games lost", scale=FRACTION),
    "match/ended": neutral(
        "games by their end: `…/checkmate`, `…/stalemate` and so on, `…/adjudicated_engine` and "
        "`…/adjudicated_material` at the ply limit", "more end by mate", FRACTION),
    "match/likelihood_of_superiority": Key(Direction.higher, FRACTION),
    "match/pentanomial": Key(Direction.neutral, COUNT),
    "match/illegal": lower(
        "moves of the model whose first completion was illegal; with `match.illegal=loses`, games lost by one",
        "near 0", FRACTION),
    "match/replaced": lower(
        "moves of the model that stayed illegal and were replaced by a random one", "near 0", FRACTION),
    "match/opponent_illegal": neutral("`match/illegal` of the opponent", scale=FRACTION),
    "match/opponent_replaced": neutral("`match/replaced` of the opponent", scale=FRACTION),
    "conversion/won": higher(
        "won positions in which the player mates within 50 moves; also `…/<advantage>_<defender>`"),
    "conversion/ended": neutral(
        "games by their end: `…/checkmate`, `…/stalemate` and so on, `…/ply_limit` after 50 moves"),
    "puzzles/first_move": higher(
        "the solver's first move is the solution's or mates; also by rating: `…/below_1000`, `…/1000_1500`, "
        "`…/1500_2000`, `…/2000_up`"),
    "puzzles/solved": higher(
        "so is every move of the solver; also by rating", "at or below `puzzles/first_move`"),
    "puzzles/legal": higher("the first move is legal; also by rating", "near 1"),
    "llm_chess/won": higher("games won against a random player"),
    "llm_chess/drawn": neutral("games drawn by rule or at 200 plies"),
    "llm_chess/lost": lower("games lost by mate or by three illegal attempts at one move", "near 0"),
    "llm_chess/illegal": lower(
        "illegal attempts over the plies of both sides; the leaderboard reports them per 1,000 moves",
        "near 0", Scale(0.0, MOST_MISTAKES), "attempts per ply"),
    "llm_chess/material": higher(
        "the model's pieces minus the opponent's at the end", scale=REAL, unit="pawns"),
    "llm_chess/plies": Key(Direction.neutral, COUNT, "plies", "plies of a game", "–"),
    "llm_chess/ended": neutral(
        "games by their end: `…/checkmate`, `…/stalemate` and so on, `…/illegal_move` after three illegal attempts, "
        "`…/ply_limit` at 200 plies"),
    "llm_chess/ended/illegal_move": Key(Direction.lower),
    "acpl/mean": lower(
        "mean centipawn loss of the model's legal moves in a game, of evaluations clipped to ±1,000; only for games "
        "with such a move", scale=CENTIPAWN_LOSS, unit="centipawns"),
    "acpl/depth_1": lower(
        "the same in games against Stockfish at Skill Level 0 and depth 1", scale=CENTIPAWN_LOSS, unit="centipawns"),
    "acpl/depth_5": lower(
        "the same in games against Stockfish at Skill Level 0 and depth 5", scale=CENTIPAWN_LOSS, unit="centipawns"),
    "acpl/won": higher("games won"),
    "acpl/drawn": neutral("games drawn by rule or at 200 plies"),
    "acpl/lost": lower("games lost by mate or by three illegal attempts at one move"),
    "acpl/illegal": lower("moves of the model whose first attempt was illegal", "near 0", FRACTION),
    "acpl/ended": neutral("games by their end, as for `llm_chess/ended`"),
    "acpl/ended/illegal_move": Key(Direction.lower),
}  # fmt: skip
"""Keys of the suites that belong to no task."""


def declared() -> Mapping[str, Key]:
    """Return all declared keys by full name, without SAMPLED, BEST and DISTINCT, in the order of the documentation."""
    return _declared(all_tasks())


@cache
def _declared(tasks: tuple[Task, ...]) -> dict[str, Key]:
    of_tasks = {name: key for task in tasks for name, key in task.keys.items()}
    losses = {name: key for task in tasks for name, key in _label_loss(task.name).items()}
    return {**of_tasks, **OF_SUITES, **losses}


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
    words, known = name.split("/"), declared()
    refined_names = ("/".join(words[:length]) for length in range(len(words), 0, -1))
    return next((known[refined] for refined in refined_names if refined in known), EVENT)


def scale_of(name: str) -> Scale | None:
    """Return the scale of a graded key; None for a key that is right or wrong."""
    return key_of(name).scale


def has_few_rows(name: str, n: int) -> bool:
    """Return whether a graded key has so few rows that the normal interval of skewed values is too narrow.

    The interval of a single row is the whole scale, so it is not.

    >>> has_few_rows("policy/win_probability_loss", 100), has_few_rows("policy/valid", 100)
    (True, False)
    """
    return scale_of(name) is not None and 1 < n <= FEW_ROWS


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
    own = name.removeprefix(f"{SAMPLED}/").removeprefix(f"{BEST}/") in declared()
    return own and key_of(name).direction is not Direction.neutral


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

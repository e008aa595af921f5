"""Values of an environment completion `A:` under the published names, and their keys.

The names come from RookWorld, `dev/eval/arbiter_accuracy.py` (https://github.com/jorahn/RookWorld). If a published
definition would hide an error, ours differs, and the docstring says how.
"""

from collections.abc import Iterator, Mapping

import chess
from rapidfuzz.distance import Levenshtein

from ...board.fen import FEN_FIELDS, parse_fen, position_key
from ...board.transition import REWARD_DRAW, REWARD_ILLEGAL, REWARD_LEGAL, REWARD_WIN, Transition
from ..keys import FRACTION, Key, Scale, higher, lower
from ..move_classes import illegal_kind
from ..types import Example, ParseFailure
from .text import environment_fields, environment_truth, parse_environment, parse_environment_prompt

# The largest difference of two rewards of the environment: that of a win and an illegal move.
REWARD_WIDTH = REWARD_WIN - REWARD_ILLEGAL
REWARD_CLASSES = {REWARD_LEGAL: "legal", REWARD_WIN: "win", REWARD_DRAW: "draw", REWARD_ILLEGAL: "illegal"}
_NOTHING_RIGHT = {
    "valid": 0.0,
    "next_state_accuracy": 0.0,
    "next_state_nls": 0.0,
    "reward_accuracy": 0.0,
    "reward_mae": REWARD_WIDTH,
    "terminated_accuracy": 0.0,
    "truncated_accuracy": 0.0,
}


def _recall(value: str, examples: str, healthy: str = "rises; a constant guess has 0") -> Key:
    return higher(f"`{value}` on examples whose {examples}", healthy)


KEYS: Mapping[str, Key] = {
    "environment/valid": higher("the strict parser reads the completion", "above 0.95"),
    "environment/next_state_accuracy": higher("the next FEN is the true one, character by character"),
    "environment/next_state_nls": higher(
        "normalised Levenshtein similarity of the two FENs; a copy of the old state also scores high", "above 0.95",
        FRACTION),
    "environment/reward_accuracy": higher("the reward is the true one"),
    "environment/terminated_accuracy": higher("the terminated flag is the true one", "near 1"),
    "environment/truncated_accuracy": higher("the truncated flag is the true one", "near 1"),
    "environment/fen_strict": higher(
        "the first field is the true FEN, character by character, whatever follows it", "near `next_state_accuracy`"),
    "environment/fen_lenient": higher(
        "the first field parses and is the true position, counters aside", "at or above `fen_strict`"),
    "environment/fen_error_placement": lower("the piece placement differs as text or is missing", "near 0"),
    "environment/fen_error_turn": lower("the side to move differs or is missing", "near 0"),
    "environment/fen_error_castling": lower("the castling rights differ or are missing", "near 0"),
    "environment/fen_error_en_passant": lower("the en-passant square differs or is missing", "near 0"),
    "environment/fen_error_halfmove_clock": lower("the halfmove clock differs or is missing", "near 0"),
    "environment/fen_error_fullmove_number": lower("the full-move number differs or is missing", "near 0"),
    "environment/reward_mae": lower(
        "absolute error of the reward, at most 2", "near 0", Scale(0.0, REWARD_WIDTH), unit="reward"),
    "environment/recall_legal": _recall("reward_accuracy", "true reward is 0.001: a legal move", "near 1"),
    "environment/recall_win": _recall("reward_accuracy", "true reward is 1.0: the move wins the game"),
    "environment/recall_draw": _recall("reward_accuracy", "true reward is 0.5: the move draws the game"),
    "environment/recall_illegal": _recall("reward_accuracy", "true reward is -1.0: an illegal move"),
    "environment/recall_terminated": _recall("terminated_accuracy", "move ends the game"),
    "environment/recall_truncated": _recall("truncated_accuracy", "move is illegal"),
}  # fmt: skip


def score_environment_row(example: Example, completion: str) -> dict[str, float]:
    """Return the row's values in [0, 1], and `reward_mae` in [0, 2]. The truth comes from python-chess, not the label.

    - `valid`: the strict parser accepts the completion. If not, all other values are 0 and `reward_mae` is 2.0.
    - `next_state_accuracy`: the FEN equals the true one, character by character.
    - `next_state_nls`: normalised Levenshtein similarity of the two FENs, 1 − edits / longer length (rapidfuzz). A copy
      of the state before a legal move scores about 0.9, so read it together with the accuracy.
    - `reward_accuracy`, `terminated_accuracy`, `truncated_accuracy`: the field equals the truth.
    - `reward_mae`: absolute error in the environment's reward, clipped to 2.0, the largest distance of two rewards. So
      a readable number is never worse than an unreadable one (published: unreadable rows are left out).
    - `recall_legal`, `recall_win`, `recall_draw`, `recall_illegal`: `reward_accuracy`, only on rows whose true reward
      is of that class. `recall_terminated`, `recall_truncated`: the flag's accuracy, only on rows whose true flag is 1.
      Nearly all rows are plain legal moves, so a constant guess comes near the published scores; the recalls expose it.

    The set of values depends only on the prompt. Raises PromptError for a malformed prompt.
    """
    truth = environment_truth(parse_environment_prompt(example.prompt))
    answer = parse_environment(completion)
    values = dict(_NOTHING_RIGHT) if isinstance(answer, ParseFailure) else _compare(answer, truth)
    return values | {f"recall_{name}": values[key] for name, key in _classes(truth)}


def _compare(answer: Transition, truth: Transition) -> dict[str, float]:
    return {
        "valid": 1.0,
        "next_state_accuracy": float(answer.next_fen == truth.next_fen),
        "next_state_nls": Levenshtein.normalized_similarity(answer.next_fen, truth.next_fen),
        "reward_accuracy": float(answer.reward == truth.reward),
        "reward_mae": min(REWARD_WIDTH, abs(answer.reward - truth.reward)),
        "terminated_accuracy": float(answer.terminated == truth.terminated),
        "truncated_accuracy": float(answer.truncated == truth.truncated),
    }


def _classes(truth: Transition) -> Iterator[tuple[str, str]]:
    """Yield each class that a row belongs to, with the name of the value that is its recall."""
    yield REWARD_CLASSES[truth.reward], "reward_accuracy"
    if truth.terminated:
        yield "terminated", "terminated_accuracy"
    if truth.truncated:
        yield "truncated", "truncated_accuracy"


def score_next_fen(example: Example, completion: str) -> dict[str, float]:
    """Return the values, 1.0 or 0.0, of the completion's first field: the next position, whatever follows it.

    - `fen_strict`: it equals python-chess's FEN, character by character.
    - `fen_lenient`: it parses and is the true position by the same criterion as in splits and exclusions: placement,
      turn, castling rights and legal en-passant square are right, as python-chess reads them. Counters do not matter.
    - `fen_error_<field>`: the FEN field of that name differs as text, or is missing. Here 1.0 is an error.

    A completion without a first field has all six errors. Every row has all values. Raises PromptError for a malformed
    prompt.
    """
    truth = environment_truth(parse_environment_prompt(example.prompt)).next_fen
    written = environment_fields(completion)[0]
    words, true_words = written.split(" "), truth.split(" ")
    errors = {name: place >= len(words) or words[place] != true_words[place] for place, name in enumerate(FEN_FIELDS)}
    return {
        "fen_strict": float(written == truth),
        "fen_lenient": float(_same_position(written, truth)),
        **{f"fen_error_{name}": float(wrong) for name, wrong in errors.items()},
    }


def _same_position(fen: str, other: str) -> bool:
    try:
        return position_key(parse_fen(fen)) == position_key(parse_fen(other))
    except ValueError:
        return False


def illegal_kind_of(prompt: str) -> str:
    """Return the reason why the move of an `A:` prompt is illegal; `no_move` if its text is no move at all."""
    query = parse_environment_prompt(prompt)
    try:
        return illegal_kind(parse_fen(query.fen), query.uci)
    except chess.InvalidMoveError:
        return "no_move"

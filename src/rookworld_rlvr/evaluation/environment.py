"""One environment completion `A:` under the published names, and recall for each class of transition.

Names from RookWorld, `dev/eval/arbiter_accuracy.py` (https://github.com/jorahn/RookWorld). Nearly all
rows are plain legal moves, so that a constant guess comes near the published scores; the
recalls tell it apart.
"""

from collections.abc import Iterator

from rapidfuzz.distance import Levenshtein

from ..board.transition import REWARD_DRAW, REWARD_ILLEGAL, REWARD_LEGAL, REWARD_WIN
from ..tasks.environment import environment_truth, parse_environment, parse_environment_prompt
from ..tasks.types import EnvironmentCompletion, Example, ParseFailure
from .scales import REWARD_WIDTH

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


def score_environment_row(example: Example, completion: str) -> dict[str, float]:
    """The row's values in [0, 1], `reward_mae` in [0, 2]; the truth is python-chess's, never the label's.

    - `valid`: the strict parser reads it. If not, all else is 0 and `reward_mae` is 2.0.
    - `next_state_accuracy`: the FEN is the true one, character by character.
    - `next_state_nls`: normalised Levenshtein similarity of the two FENs, 1 − edits / longer length
      (rapidfuzz). The state before scores 0.9 after a legal move: read it beside the accuracy.
    - `reward_accuracy`, `terminated_accuracy`, `truncated_accuracy`: equal to the truth.
    - `reward_mae`: absolute error, in the environment's reward, cut to 2.0, the widest that two of its
      rewards lie apart, so that no readable number is worse than none (published: unreadable rows are
      left out of it).
    - `recall_legal`, `recall_win`, `recall_draw`, `recall_illegal`: `reward_accuracy`, only on rows whose
      true reward is of that class; `recall_terminated`, `recall_truncated`: the flag's accuracy, only
      where it is truly 1.

    Which values a row has depends on the prompt alone. Raises PromptError for a malformed prompt.
    """
    truth = environment_truth(parse_environment_prompt(example.prompt))
    answer = parse_environment(completion)
    values = dict(_NOTHING_RIGHT) if isinstance(answer, ParseFailure) else _compare(answer, truth)
    return values | {f"recall_{name}": values[key] for name, key in _classes(truth)}


def _compare(answer: EnvironmentCompletion, truth: EnvironmentCompletion) -> dict[str, float]:
    return {
        "valid": 1.0,
        "next_state_accuracy": float(answer.next_fen == truth.next_fen),
        "next_state_nls": Levenshtein.normalized_similarity(answer.next_fen, truth.next_fen),
        "reward_accuracy": float(answer.reward == truth.reward),
        "reward_mae": min(REWARD_WIDTH, abs(answer.reward - truth.reward)),
        "terminated_accuracy": float(answer.terminated == truth.terminated),
        "truncated_accuracy": float(answer.truncated == truth.truncated),
    }


def _classes(truth: EnvironmentCompletion) -> Iterator[tuple[str, str]]:
    """The classes a row belongs to, each with the value that is its recall."""
    yield REWARD_CLASSES[truth.reward], "reward_accuracy"
    if truth.terminated:
        yield "terminated", "terminated_accuracy"
    if truth.truncated:
        yield "truncated", "truncated_accuracy"

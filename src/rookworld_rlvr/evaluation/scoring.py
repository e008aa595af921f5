"""Values of one completion under the published names: a policy completion `P:` or an environment completion `A:`.

The names come from RookWorld, `dev/eval/rook_accuracy.py` and `dev/eval/arbiter_accuracy.py`
(https://github.com/jorahn/RookWorld). If a published definition would hide an error, ours differs, and the docstring
says how.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache

from chess.engine import Mate
from rapidfuzz.distance import Levenshtein

from ..board.evals import to_pawns, win_probability
from ..board.fen import FEN_FIELDS, parse_fen, position_key
from ..board.moves import is_mate
from ..board.transition import REWARD_DRAW, REWARD_ILLEGAL, REWARD_LEGAL, REWARD_WIN, Transition
from ..rewards.move_values import move_values
from ..rewards.policy_rewards import PolicyLabel, policy_label
from ..stockfish.analysis import Analysis
from ..tasks.environment import environment_fields, environment_truth, parse_environment, parse_environment_prompt
from ..tasks.policy import MAX_CANDIDATES, parse_policy, parse_policy_prompt
from ..tasks.types import Example, ParseFailure, PolicyCompletion
from .keys import REWARD_WIDTH

REWARD_CLASSES = {REWARD_LEGAL: "legal", REWARD_WIN: "win", REWARD_DRAW: "draw", REWARD_ILLEGAL: "illegal"}
MATE_IN_ONE = to_pawns(Mate(1))
_NOTHING_RIGHT = {
    "valid": 0.0,
    "next_state_accuracy": 0.0,
    "next_state_nls": 0.0,
    "reward_accuracy": 0.0,
    "reward_mae": REWARD_WIDTH,
    "terminated_accuracy": 0.0,
    "truncated_accuracy": 0.0,
}


def score_policy_row(example: Example, completion: str) -> dict[str, float]:
    """Return the row's values in [0, 1]. A completion that the strict parser refuses scores 0 on all of them.

    - `valid`: the strict parser accepts it (published: the markers are there and the moves are UCI).
    - `legal_best_move`: `B:` is a legal move (published: castling as e1h1 also counts).
    - `legal_candidates`: number of distinct legal candidates, divided by five or by the number of legal moves if that
      is smaller (published as "top 5 move legal": repeated candidates count, and the divisor is always five).

    If the label has a legal candidate:
    - `best_move_accuracy`: `B:` is a candidate with the label's highest eval (all ties count), or it is the label's own
      best move and that is not a candidate (published: `B:` equals the label's `B:`, which is the worst candidate in
      most published rows of Black).
    - `top5_accuracy`: `B:` is one of the label's candidates.
    - `top5_overlap`: share of the label's candidates that are also candidates of the completion. The published figures
      call this "top 5 move accuracy", and there the divisor is always five.

    If a legal move mates:
    - `mate_in_one`: `B:` mates.

    The set of values depends only on the example. In mate and stalemate it is only `valid`. Raises PromptError for a
    malformed prompt and LabelError (a ValueError) for a malformed label.
    """
    board = parse_fen(parse_policy_prompt(example.prompt).fen)
    legal = frozenset(move.uci() for move in board.legal_moves)
    label = None if example.completion is None else policy_label(example.completion, legal)
    answer = _parsed_policy(completion)
    values = {"valid": float(answer is not None)}
    if legal:
        values |= _legality(answer, legal)
    if label and label.evals_pawns:
        values |= _accuracy(answer, label)
    if mates := _mating_moves(board.fen()):
        values["mate_in_one"] = float(answer is not None and answer.best in mates)
    return values


@lru_cache(maxsize=8192)
def _mating_moves(fen: str) -> frozenset[str]:
    board = parse_fen(fen)
    return frozenset(move.uci() for move in board.legal_moves if is_mate(board, move.uci()))


def _parsed_policy(completion: str) -> PolicyCompletion | None:
    parsed = parse_policy(completion)
    return None if isinstance(parsed, ParseFailure) else parsed


def _legality(answer: PolicyCompletion | None, legal: frozenset[str]) -> dict[str, float]:
    distinct = legal.intersection(answer.moves if answer else ())
    return {
        "legal_best_move": float(answer is not None and answer.best in legal),
        "legal_candidates": len(distinct) / min(MAX_CANDIDATES, len(legal)),
    }


def _accuracy(answer: PolicyCompletion | None, label: PolicyLabel) -> dict[str, float]:
    common = label.evals_pawns.keys() & set(answer.moves if answer else ())
    return {
        "best_move_accuracy": float(answer is not None and answer.best in label.best_moves()),
        "top5_accuracy": float(answer is not None and answer.best in label.evals_pawns),
        "top5_overlap": len(common) / len(label.evals_pawns),
    }


def score_engine_loss(completion: str, analysis: Analysis) -> dict[str, float]:
    """Return `win_probability_loss` and `eval_error` in [0, 1]; empty in mate and stalemate.

    The loss is the expected result of the best move less that of the completion's `B:`. A completion that the strict
    parser refuses, or whose `B:` is illegal, loses the whole expected result of the best move, which is close to 0 in a
    lost position.

    The error is the mean over five candidates (or over the number of legal moves if that is smaller) of the distance
    between the win probability of a candidate's `E:` and that of its move evaluation. A candidate that is illegal,
    repeated or missing counts 1.
    """
    if not analysis.lines:
        return {}
    answer = _parsed_policy(completion)
    loss = move_values(analysis).loss(answer.best if answer else "")
    return {"win_probability_loss": loss, "eval_error": _eval_error(answer, dict(analysis.lines))}


def _eval_error(answer: PolicyCompletion | None, pawns_by_move: Mapping[str, float]) -> float:
    # If a candidate is repeated, its first eval counts.
    written = dict(reversed(list(zip(answer.moves, answer.evals_pawns, strict=True)))) if answer else {}
    expected = min(MAX_CANDIDATES, len(pawns_by_move))
    legal = [move for move in written if move in pawns_by_move]
    # An eval beyond that of mate in one counts as mate in one.
    wins = {move: win_probability(min(max(written[move], -MATE_IN_ONE), MATE_IN_ONE)) for move in legal}
    distance = sum(abs(wins[move] - win_probability(pawns_by_move[move])) for move in legal)
    return (distance + expected - len(legal)) / expected


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

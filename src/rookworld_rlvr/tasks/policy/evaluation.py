"""Values of a policy completion `P:` under the published names, and their keys.

The names come from RookWorld, `dev/eval/rook_accuracy.py` (https://github.com/jorahn/RookWorld). If a published
definition would hide an error, ours differs, and the docstring says how.
"""

from collections.abc import Mapping

from ...board.evals import win_probability
from ...board.fen import parse_fen
from ...board.moves import mating_moves
from ...stockfish.analysis import Analysis
from ...stockfish.move_values import MATE_IN_ONE, move_values
from ..keys import FRACTION, Key, higher, lower
from ..types import Example, ParseFailure, PolicyCompletion
from .reward import PolicyLabel, policy_label
from .text import MAX_CANDIDATES, parse_policy, parse_policy_prompt

KEYS: Mapping[str, Key] = {
    "policy/valid": higher("the strict parser reads the completion", "above 0.95"),
    "policy/legal_best_move": higher("the `B:` move is legal"),
    "policy/legal_candidates": higher(
        "distinct legal candidates, divided by five or by the number of legal moves if that is less", scale=FRACTION),
    "policy/best_move_accuracy": higher("the `B:` move is a candidate with the label's highest eval; all ties count"),
    "policy/top5_accuracy": higher("the `B:` move is one of the label's candidates"),
    "policy/top5_overlap": higher("share of the label's candidates among the completion's", scale=FRACTION),
    "policy/mate_in_one": higher("the `B:` move mates; only for positions in which a move mates"),
    "policy/win_probability_loss": lower(
        "win-probability loss of the `B:` move by the engine's evaluations; an illegal move loses the whole win "
        "probability of the best move. Only for evaluated positions", scale=FRACTION),
    "policy/legal_choice_loss": lower(
        "win-probability loss of the likeliest legal move at the first candidate. Only for evaluated positions",
        scale=FRACTION),
    "policy/legal_choice_best": higher(
        "the likeliest legal move at the first candidate has the engine's highest evaluation"),
    "policy/eval_error": lower(
        "mean distance over five candidates between the win probability of `E:` and the engine's; an illegal, repeated "
        "or missing candidate counts 1", scale=FRACTION),
}  # fmt: skip


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
    if mates := mating_moves(board.fen()):
        values["mate_in_one"] = float(answer is not None and answer.best in mates)
    return values


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

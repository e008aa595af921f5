"""One policy completion `P:` under the published names.

Names from RookWorld, `dev/eval/rook_accuracy.py` (https://github.com/jorahn/RookWorld). Where its
definitions would hide an error, ours differ, and each docstring below says how.
"""

from dataclasses import dataclass

from ..board.fen import parse_fen
from ..tasks.policy import MAX_CANDIDATES, parse_policy, parse_policy_prompt
from ..tasks.types import Example, ParseFailure, PolicyCompletion, require_parsed


@dataclass(frozen=True, slots=True)
class _Label:
    """What the reference completion says, its illegal moves left out."""

    candidates: frozenset[str]
    """At least one, UCI."""
    best: frozenset[str]
    """Every candidate of the highest eval, and the label's own best move where it is no candidate."""


def score_policy_row(example: Example, completion: str) -> dict[str, float]:
    """The row's values in [0, 1]; a completion that the strict parser refuses scores 0 on all of them.

    - `valid`: the strict parser reads it (published: the markers are there and the moves are UCI).
    - `legal_best_move`: `B:` is a legal move's spelling (published: castling as e1h1 counts, too).
    - `legal_candidates`: distinct legal candidates over five, or over the legal moves if those are fewer
      (published as "top 5 move legal": repeats count, always over five).

    With a label that has a legal candidate:
    - `best_move_accuracy`: `B:` is a candidate of the label's highest eval, ties all count, or the label's
      own best move where no eval speaks against it (published: equals the label's `B:`, which is the
      worst candidate in most of Black's published rows).
    - `top5_accuracy`: `B:` is one of the label's candidates.
    - `top5_overlap`: the share of the label's candidates found among the answer's. This is what the
      published figures call "top 5 move accuracy" (there always over five); compare those with it.

    Which values a row has depends on the example alone; in mate and stalemate it is only `valid`. Raises
    PromptError for a malformed prompt, LabelError (a ValueError) for a malformed label.
    """
    board = parse_fen(parse_policy_prompt(example.prompt).fen)
    legal = frozenset(move.uci() for move in board.legal_moves)
    label = None if example.completion is None else _label(example.completion, legal)
    parsed = parse_policy(completion)
    answer = None if isinstance(parsed, ParseFailure) else parsed
    values = {"valid": float(answer is not None)}
    if legal:
        values |= _legality(answer, legal)
    if label:
        values |= _accuracy(answer, label)
    return values


def _label(completion: str, legal: frozenset[str]) -> _Label | None:
    """None where no candidate is legal: nothing can be asked for."""
    answer = require_parsed(completion, parse_policy(completion))
    pairs = zip(answer.moves, answer.evals_pawns, strict=True)
    scored = [(move, pawns) for move, pawns in pairs if move in legal]
    if not scored:
        return None
    highest = max(pawns for _, pawns in scored)
    candidates = frozenset(move for move, _ in scored)
    best = {move for move, pawns in scored if pawns == highest} | ({answer.best} & legal - candidates)
    return _Label(candidates, frozenset(best))


def _legality(answer: PolicyCompletion | None, legal: frozenset[str]) -> dict[str, float]:
    distinct = legal.intersection(answer.moves if answer else ())
    return {
        "legal_best_move": float(answer is not None and answer.best in legal),
        "legal_candidates": len(distinct) / min(MAX_CANDIDATES, len(legal)),
    }


def _accuracy(answer: PolicyCompletion | None, label: _Label) -> dict[str, float]:
    found = label.candidates.intersection(answer.moves if answer else ())
    return {
        "best_move_accuracy": float(answer is not None and answer.best in label.best),
        "top5_accuracy": float(answer is not None and answer.best in label.candidates),
        "top5_overlap": len(found) / len(label.candidates),
    }

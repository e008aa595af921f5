"""Audit of labelled `P:` rows: what is wrong in them, by colour, and the same rows corrected.

The most important defect: if Black moves, published data take `B:` from the wrong end of the evals, so that a model
learns to play Black's worst candidate.
"""

from collections import Counter
from collections.abc import Iterator

import chess

from ...board.fen import parse_fen
from ...board.moves import is_legal_uci, is_mate
from ..task import TaskAudit
from ..types import Example, FailureReason, ParseFailure, PolicyCompletion, PolicyPrompt
from .text import legal_candidates, render_policy, split_policy

# `B:` counts as inverted only if it has the lowest eval in more than this share of the rows whose evals differ.
INVERTED_FRACTION = 0.5
# `B:` counts as inverted only if it has the lowest eval in at least this many rows.
INVERTED_ROWS = 3
DEFECTS = (
    "illegal_candidate",
    "repeated_candidate",
    "illegal_best",
    "best_not_candidate",
    "below_best",
    "mate_misjudged",
)


class PolicyAudit(TaskAudit):
    """Counts of the findings of `policy_findings` in labelled rows, by the colour that moves."""

    def __init__(self) -> None:
        self.white, self.black = Counter[str](), Counter[str]()

    def add(self, query: PolicyPrompt, label: PolicyCompletion) -> None:
        """Add a row; see `TaskAudit.add`."""
        board = parse_fen(query.fen)
        (self.white if board.turn else self.black).update(policy_findings(board, label))

    @property
    def defects(self) -> int:
        """Number of findings of all kinds. One row may have several."""
        return sum(side[name] for side in (self.white, self.black) for name in DEFECTS)

    def lines(self) -> Iterator[str]:
        """Yield the findings as sentences, White's first."""
        yield from _lines("White", self.white)
        yield from _lines("Black", self.black)

    def card(self) -> dict[str, object]:
        """Return the numbers of checked labels, and of mates in one, each of which is the best move of its row."""
        sides = {"white": self.white, "black": self.black}
        return {
            "labels_checked": {color: side["rows"] for color, side in sides.items()},
            "mates_in_one_best": {color: side["mates"] for color, side in sides.items()},
        }


def is_inverted(findings: Counter[str]) -> bool:
    """Return True if `B:` is systematically taken from the wrong end: see `INVERTED_FRACTION` and `INVERTED_ROWS`."""
    lowest = findings["lowest"]
    return lowest >= INVERTED_ROWS and lowest > INVERTED_FRACTION * findings["decided"]


def _lines(color: str, found: Counter[str]) -> Iterator[str]:
    """Yield the findings about `color`'s rows as sentences; nothing if there are no rows."""
    rows = found["rows"]
    if rows:
        yield (
            f"{color}: {rows} P: rows; {found['illegal_candidate']} have an illegal candidate, "
            f"{found['repeated_candidate']} a repeated one, {found['illegal_best']} an illegal B:, "
            f"{found['best_not_candidate']} a B: that is no candidate"
        )
        below = f"{found['below_best']} of {rows} {color} rows have a B: below their best eval"
        prefix = f"{color}'s B: is inverted: " if is_inverted(found) else ""
        yield f"{prefix}{below} ({found['lowest']} at their lowest)"
    if found["mates"]:
        mates = f"{found['mate_misjudged']} of {found['mates']} {color} rows with a mate in one"
        yield f"{mates} hold another candidate as good"


def policy_findings(board: chess.Board, label: PolicyCompletion) -> Iterator[str]:
    """Yield the name of each count to which a row belongs.

    - `rows`: every row. `decided`: its evals differ, so that `B:` could be below the best.
    - `illegal_candidate`, `repeated_candidate`, `illegal_best`: as they say.
    - `best_not_candidate`: `B:` is not among the candidates, so that its eval is unknown.
    - `below_best`: another candidate's eval is higher than that of `B:`; `lowest`: and no candidate's eval is lower.
    - `mates`: a candidate mates. `mate_misjudged`: and one that does not mate has as high an eval, so the evals are
      from the other side's view, or are no evals at all.
    """
    yield "rows"
    if not all(is_legal_uci(board, uci) for uci in label.moves):
        yield "illegal_candidate"
    if len(set(label.moves)) < len(label.moves):
        yield "repeated_candidate"
    if not is_legal_uci(board, label.best):
        yield "illegal_best"
    yield from _mate_findings(board, label)
    lowest, highest = min(label.evals_pawns), max(label.evals_pawns)
    if lowest < highest:
        yield "decided"
    if label.best not in label.moves:
        yield "best_not_candidate"
        return
    best_pawns = label.evals_pawns[label.moves.index(label.best)]
    if best_pawns < highest:
        yield "below_best"
        if best_pawns == lowest:
            yield "lowest"


def _mate_findings(board: chess.Board, label: PolicyCompletion) -> Iterator[str]:
    """Yield the findings about mates in one, which need only the board: no other move may have as high an eval."""
    evals = list(zip(label.moves, label.evals_pawns, strict=True))
    mates = [pawns for uci, pawns in evals if is_mate(board, uci)]
    if mates:
        yield "mates"
        if any(pawns >= min(mates) and not is_mate(board, uci) for uci, pawns in evals):
            yield "mate_misjudged"


def corrected_policy(example: Example, fen: str, label: PolicyCompletion) -> Example | ParseFailure:
    """Return a row without illegal and repeated candidates whose `B:` is the candidate with the highest eval.

    The first one if several are equal. Dropped are rows without a legal candidate, and rows in which a mate in one has
    no higher eval than another candidate.
    """
    board = parse_fen(fen)
    kept = legal_candidates(board, label)
    if "mate_misjudged" in _mate_findings(board, label):
        return ParseFailure(FailureReason.bad_eval, f"a mate in one is not the best of {' '.join(label.moves)}")
    if not kept:
        return ParseFailure(FailureReason.bad_move, f"no legal candidate among {' '.join(label.moves)}")
    best = max(kept, key=kept.__getitem__)
    if tuple(kept) == label.moves and kept.get(label.best) == kept[best]:
        return example
    corrected = PolicyCompletion(tuple(kept), tuple(kept.values()), best)
    _, completion = split_policy(example.prompt + render_policy(corrected, fen))
    return Example(example.task, example.prompt, completion, example.source)

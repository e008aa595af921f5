"""Share of a move's changes that a next FEN predicts right. A copy of the state before the move earns nothing."""

import re
from collections.abc import Iterable, Sequence

_BLANKS = str.maketrans({str(width): "." * width for width in range(1, 9)} | {"/": ""})
# A promoted piece may be marked with a tilde; python-chess reads the mark but never prints it.
_SQUARE = re.compile(r".~?")


# Weight of the 64 squares in the similarity; the five other FEN fields have the rest. Above one half, because turn and
# counters change in the same way after every move.
BOARD_SHARE = 0.7
# Penalty for a square or field that should have stayed: n of them divide the share by 1 + n × this, so one alteration
# costs more than it could gain.
ALTERED_PENALTY = 1.0


def changed_similarity(before: str, after: str, predicted: str) -> float:
    """Return the similarity in [0, 1] of a predicted next FEN to the true one, on the squares and fields that change.

    The similarity of the squares is the share of changed squares predicted right, divided by 1 + penalty × the number
    of altered squares that should not change. The same formula applies to turn, castling, en passant and the two
    counters. The result is the weighted mean of the two: 1 exactly if `predicted` equals `after`, 0 if it copies
    `before` after a legal move. If nothing changes (an illegal move), the share is 1 and only alterations lower it.
    All three must be FENs that parse. Fields are compared as text.
    """
    (squares, *fields), (new_squares, *new_fields), (guessed_squares, *guessed_fields) = (
        fen.split(" ") for fen in (before, after, predicted)
    )
    placements = (expand_placement(text) for text in (squares, new_squares, guessed_squares))
    board = _share_of_changes(zip(*placements, strict=True))
    rest = _share_of_changes(zip(fields, new_fields, guessed_fields, strict=True))
    return BOARD_SHARE * board + (1 - BOARD_SHARE) * rest


def expand_placement(placement: str) -> Sequence[str]:
    """Return the squares of a placement from a8 to h1, `.` for an empty one; 64 if the placement is well-formed."""
    squares = placement.translate(_BLANKS)
    return _SQUARE.findall(squares) if "~" in squares else squares


def _share_of_changes(triples: Iterable[tuple[str, str, str]]) -> float:
    """Return the share of changes predicted right, lowered by alterations. A triple holds old, new and guessed text."""
    changed = right = altered = 0
    for old, new, guess in triples:
        if old != new:
            changed += 1
            right += guess == new
        else:
            altered += guess != new
    return (right / changed if changed else 1.0) / (1 + ALTERED_PENALTY * altered)

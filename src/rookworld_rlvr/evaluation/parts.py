"""What a position belongs to: the colour to move and the phase of the game. Suites tell their values by these too."""

from collections.abc import Mapping

import chess

from ..board.phase import Phase, phase_of

PARTS = (*chess.COLOR_NAMES[::-1], *(phase.value for phase in Phase))


def parts_of(board: chess.Board) -> tuple[str, str]:
    """One of each kind, both among `PARTS`.

    >>> parts_of(chess.Board())
    ('white', 'opening')
    """
    return chess.COLOR_NAMES[board.turn], phase_of(board).value


def refined(values: Mapping[str, float], board: chess.Board) -> dict[str, float]:
    """The values, each also by the parts of the position.

    >>> refined({"policy/valid": 1.0}, chess.Board())
    {'policy/valid': 1.0, 'policy/valid/white': 1.0, 'policy/valid/opening': 1.0}
    """
    return {**values, **{f"{key}/{part}": value for part in parts_of(board) for key, value in values.items()}}

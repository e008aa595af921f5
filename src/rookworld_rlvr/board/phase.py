"""The phase of a game that a position belongs to, by the board alone."""

from enum import StrEnum

import chess

# Pieces of both sides that are neither kings nor pawns.
MOST_IN_ENDGAME, MOST_IN_MIDDLEGAME = 6, 10
# With fewer pieces and pawns of a side on its first rank, the side is developed.
UNDEVELOPED = 4


class Phase(StrEnum):
    """Opening, middlegame, endgame."""

    opening = "opening"
    middlegame = "middlegame"
    endgame = "endgame"


def phase_of(board: chess.Board) -> Phase:
    """The phase by what is left and by development.

    An endgame has at most 6 pieces beside kings and pawns. A middlegame has at most 10, or a side with fewer than
    four pieces on its first rank. All else is opening. The rules and their numbers are those of Lichess's divider
    (https://github.com/lichess-org/scalachess, Divider.scala) but for two: its third sign of a middlegame, how mixed
    the two sides' pieces stand, is left out, and a game may go back to an earlier phase, as only the board counts.

    >>> phase_of(chess.Board())
    <Phase.opening: 'opening'>
    >>> phase_of(chess.Board("r4rk1/ppp2ppp/2np1n2/4p3/4P3/2NP1N2/PPP2PPP/R4RK1 w - - 0 10"))
    <Phase.middlegame: 'middlegame'>
    >>> phase_of(chess.Board("8/8/8/8/8/8/8/K1k5 w - - 0 1"))
    <Phase.endgame: 'endgame'>
    """
    pieces = chess.popcount(board.occupied & ~board.kings & ~board.pawns)
    if pieces <= MOST_IN_ENDGAME:
        return Phase.endgame
    if pieces <= MOST_IN_MIDDLEGAME or _developed(board):
        return Phase.middlegame
    return Phase.opening


def _developed(board: chess.Board) -> bool:
    ranks = {chess.WHITE: chess.BB_RANK_1, chess.BLACK: chess.BB_RANK_8}
    return any(chess.popcount(board.occupied_co[color] & rank) < UNDEVELOPED for color, rank in ranks.items())

"""Phase of the game to which a position belongs, determined from the board alone."""

from enum import StrEnum

import chess

# Maximum numbers of pieces of both sides that are neither kings nor pawns.
MOST_IN_ENDGAME, MOST_IN_MIDDLEGAME = 6, 10
# A side is developed if it has fewer pieces and pawns than this on its first rank.
UNDEVELOPED = 4


class Phase(StrEnum):
    """Phase of a game."""

    opening = "opening"
    middlegame = "middlegame"
    endgame = "endgame"


def phase_of(board: chess.Board) -> Phase:
    """Return the phase, determined by the number of pieces and by development.

    An endgame has at most 6 pieces besides kings and pawns. A middlegame has at most 10, or a side with fewer than
    four pieces and pawns on its first rank. Everything else is opening. The rules and their numbers are those of
    Lichess's divider (https://github.com/lichess-org/scalachess, Divider.scala) with two differences. Its third
    criterion for a middlegame, how mixed the two sides' pieces are, is left out. A game may return to an earlier phase.

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

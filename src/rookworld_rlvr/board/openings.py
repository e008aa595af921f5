"""Common openings, chosen for this project, so that generated games start from positions that occur in play."""

import random
from dataclasses import dataclass

import chess

from .evals import PIECE_PAWNS

# Number of random plies that are added to a line to make it a different opening.
DRAWN_PLIES = 2


@dataclass(frozen=True, slots=True)
class Opening:
    """Named opening line."""

    name: str
    moves: str
    """UCI moves from the standard starting position, separated by blanks."""


OPENINGS = (
    Opening("Ruy Lopez", "e2e4 e7e5 g1f3 b8c6 f1b5"),
    Opening("Ruy Lopez, Morphy Defence", "e2e4 e7e5 g1f3 b8c6 f1b5 a7a6 b5a4 g8f6 e1g1"),
    Opening("Ruy Lopez, Exchange", "e2e4 e7e5 g1f3 b8c6 f1b5 a7a6 b5c6 d7c6"),
    Opening("Ruy Lopez, Berlin Defence", "e2e4 e7e5 g1f3 b8c6 f1b5 g8f6 e1g1 f6e4"),
    Opening("Ruy Lopez, Closed", "e2e4 e7e5 g1f3 b8c6 f1b5 a7a6 b5a4 g8f6 e1g1 f8e7 f1e1 b7b5 a4b3 d7d6"),
    Opening("Italian Game", "e2e4 e7e5 g1f3 b8c6 f1c4"),
    Opening("Giuoco Piano", "e2e4 e7e5 g1f3 b8c6 f1c4 f8c5 c2c3 g8f6 d2d3"),
    Opening("Evans Gambit", "e2e4 e7e5 g1f3 b8c6 f1c4 f8c5 b2b4 c5b4 c2c3"),
    Opening("Two Knights Defence", "e2e4 e7e5 g1f3 b8c6 f1c4 g8f6"),
    Opening("Two Knights, Fried Liver Attack", "e2e4 e7e5 g1f3 b8c6 f1c4 g8f6 f3g5 d7d5 e4d5 f6d5 g5f7"),
    Opening("Scotch Game", "e2e4 e7e5 g1f3 b8c6 d2d4 e5d4 f3d4"),
    Opening("Four Knights Game", "e2e4 e7e5 g1f3 b8c6 b1c3 g8f6"),
    Opening("Petrov Defence", "e2e4 e7e5 g1f3 g8f6 f3e5 d7d6 e5f3 f6e4"),
    Opening("Philidor Defence", "e2e4 e7e5 g1f3 d7d6 d2d4"),
    Opening("Vienna Game", "e2e4 e7e5 b1c3 g8f6"),
    Opening("King's Gambit Accepted", "e2e4 e7e5 f2f4 e5f4 g1f3"),
    Opening("Bishop's Opening", "e2e4 e7e5 f1c4"),
    Opening("Center Game", "e2e4 e7e5 d2d4 e5d4 d1d4"),
    Opening("Danish Gambit", "e2e4 e7e5 d2d4 e5d4 c2c3 d4c3 f1c4"),
    Opening("Sicilian Defence", "e2e4 c7c5"),
    Opening("Sicilian, Open", "e2e4 c7c5 g1f3 d7d6 d2d4 c5d4 f3d4 g8f6 b1c3"),
    Opening("Sicilian, Najdorf", "e2e4 c7c5 g1f3 d7d6 d2d4 c5d4 f3d4 g8f6 b1c3 a7a6"),
    Opening("Sicilian, Dragon", "e2e4 c7c5 g1f3 d7d6 d2d4 c5d4 f3d4 g8f6 b1c3 g7g6"),
    Opening("Sicilian, Scheveningen", "e2e4 c7c5 g1f3 d7d6 d2d4 c5d4 f3d4 g8f6 b1c3 e7e6"),
    Opening("Sicilian, Sveshnikov", "e2e4 c7c5 g1f3 b8c6 d2d4 c5d4 f3d4 g8f6 b1c3 e7e5 d4b5 d7d6"),
    Opening("Sicilian, Taimanov", "e2e4 c7c5 g1f3 e7e6 d2d4 c5d4 f3d4 b8c6"),
    Opening("Sicilian, Alapin", "e2e4 c7c5 c2c3 d7d5 e4d5 d8d5 d2d4"),
    Opening("Sicilian, Closed", "e2e4 c7c5 b1c3 b8c6 g2g3 g7g6"),
    Opening("Sicilian, Smith-Morra Gambit", "e2e4 c7c5 d2d4 c5d4 c2c3 d4c3 b1c3"),
    Opening("French Defence", "e2e4 e7e6 d2d4 d7d5"),
    Opening("French, Advance", "e2e4 e7e6 d2d4 d7d5 e4e5 c7c5 c2c3 b8c6 g1f3"),
    Opening("French, Winawer", "e2e4 e7e6 d2d4 d7d5 b1c3 f8b4 e4e5 c7c5"),
    Opening("French, Tarrasch", "e2e4 e7e6 d2d4 d7d5 b1d2 g8f6"),
    Opening("French, Exchange", "e2e4 e7e6 d2d4 d7d5 e4d5 e6d5"),
    Opening("Caro-Kann Defence", "e2e4 c7c6 d2d4 d7d5"),
    Opening("Caro-Kann, Classical", "e2e4 c7c6 d2d4 d7d5 b1c3 d5e4 c3e4 c8f5"),
    Opening("Caro-Kann, Advance", "e2e4 c7c6 d2d4 d7d5 e4e5 c8f5"),
    Opening("Scandinavian Defence", "e2e4 d7d5 e4d5 d8d5 b1c3 d5a5"),
    Opening("Pirc Defence", "e2e4 d7d6 d2d4 g8f6 b1c3 g7g6"),
    Opening("Modern Defence", "e2e4 g7g6 d2d4 f8g7"),
    Opening("Alekhine Defence", "e2e4 g8f6 e4e5 f6d5 d2d4 d7d6"),
    Opening("Queen's Gambit Declined", "d2d4 d7d5 c2c4 e7e6 b1c3 g8f6 c1g5 f8e7"),
    Opening("Queen's Gambit Declined, Exchange", "d2d4 d7d5 c2c4 e7e6 b1c3 g8f6 c4d5 e6d5"),
    Opening("Queen's Gambit Accepted", "d2d4 d7d5 c2c4 d5c4 g1f3 g8f6 e2e3 e7e6 f1c4"),
    Opening("Tarrasch Defence", "d2d4 d7d5 c2c4 e7e6 b1c3 c7c5"),
    Opening("Slav Defence", "d2d4 d7d5 c2c4 c7c6 g1f3 g8f6 b1c3 d5c4"),
    Opening("Semi-Slav Defence", "d2d4 d7d5 c2c4 c7c6 g1f3 g8f6 b1c3 e7e6"),
    Opening("Catalan Opening", "d2d4 g8f6 c2c4 e7e6 g2g3 d7d5 f1g2"),
    Opening("London System", "d2d4 d7d5 c1f4 g8f6 e2e3 c7c5 c2c3"),
    Opening("Colle System", "d2d4 d7d5 g1f3 g8f6 e2e3 e7e6 f1d3"),
    Opening("Nimzo-Indian Defence", "d2d4 g8f6 c2c4 e7e6 b1c3 f8b4"),
    Opening("Queen's Indian Defence", "d2d4 g8f6 c2c4 e7e6 g1f3 b7b6"),
    Opening("Bogo-Indian Defence", "d2d4 g8f6 c2c4 e7e6 g1f3 f8b4"),
    Opening("King's Indian Defence", "d2d4 g8f6 c2c4 g7g6 b1c3 f8g7 e2e4 d7d6 g1f3 e8g8"),
    Opening("Grünfeld Defence", "d2d4 g8f6 c2c4 g7g6 b1c3 d7d5 c4d5 f6d5 e2e4 d5c3 b2c3"),
    Opening("Modern Benoni", "d2d4 g8f6 c2c4 c7c5 d4d5 e7e6 b1c3 e6d5 c4d5 d7d6"),
    Opening("Benko Gambit", "d2d4 g8f6 c2c4 c7c5 d4d5 b7b5"),
    Opening("Budapest Gambit", "d2d4 g8f6 c2c4 e7e5 d4e5 f6g4"),
    Opening("Trompowsky Attack", "d2d4 g8f6 c1g5"),
    Opening("Dutch Defence", "d2d4 f7f5 g2g3 g8f6 f1g2"),
    Opening("English Opening, Reversed Sicilian", "c2c4 e7e5 b1c3 g8f6"),
    Opening("English Opening, Symmetrical", "c2c4 c7c5 g1f3 g8f6"),
    Opening("Réti Opening", "g1f3 d7d5 c2c4"),
    Opening("King's Indian Attack", "g1f3 d7d5 g2g3 g8f6 f1g2 e7e6 e1g1"),
    Opening("Bird's Opening", "f2f4 d7d5 g1f3 g8f6"),
    Opening("Nimzo-Larsen Attack", "b2b3 e7e5 c1b2 b8c6"),
)


def opening_board(opening: Opening) -> chess.Board:
    """Return the board at the end of a line, with the moves on its stack. Raises ValueError for an illegal move.

    >>> opening_board(OPENINGS[0]).fen()
    'r1bqkbnr/pppp1ppp/2n5/1B2p3/4P3/5N2/PPPP1PPP/RNBQK2R b KQkq - 3 3'
    """
    board = chess.Board()
    for uci in opening.moves.split():
        board.push_uci(uci)
    return board


def drawn_opening(number: int, seed: int) -> chess.Board:
    """Return an opening of a match, with the moves on the stack: a line and two legal plies, drawn by seed and number.

    The seed also determines the order of the lines. Each line is used once before any is used again. Plies that leave
    a piece to be captured at a gain are drawn only if there are no others, so that most openings are balanced. Two
    openings may be equal, which is rare as long as there are no more than a few hundred.
    """
    order = random.Random(f"openings:{seed}").sample(OPENINGS, len(OPENINGS))
    board, rng = opening_board(order[number % len(order)]), random.Random(f"drawn:{seed}:{number}")
    for _ in range(DRAWN_PLIES):
        moves = sorted(board.legal_moves, key=chess.Move.uci)
        board.push(rng.choice([move for move in moves if _is_safe(board, move)] or moves))
    return board


def _is_safe(board: chess.Board, move: chess.Move) -> bool:
    """Return True if no reply captures an undefended piece, or one that is worth more than the capturing piece."""
    after = board.copy(stack=False)
    after.push(move)
    values = {square: PIECE_PAWNS[piece.piece_type] for square, piece in after.piece_map().items()}
    return not any(
        values.get(reply.to_square, 1) > values[reply.from_square]
        or not after.is_attacked_by(board.turn, reply.to_square)
        for reply in after.generate_legal_captures()
    )

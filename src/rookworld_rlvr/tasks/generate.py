"""Generation of rows of both tasks from positions, and of the positions from which games start."""

import random
from collections.abc import Sequence

import chess

from ..board.openings import OPENINGS, opening_board
from ..board.transition import step
from .environment import render_environment, render_environment_prompt
from .move_evals import MoveEvals
from .policy import MAX_CANDIDATES, render_policy, render_policy_prompt
from .types import PolicyCompletion

# Half of the games start after a named opening, the other half after up to this many random plies.
OPENING_FRACTION = 0.5
RANDOM_START_PLIES = 6
# Minimum and maximum number of pieces in an ending, in addition to the two kings.
ENDING_PIECES = (1, 5)


def start_board(rng: random.Random) -> chess.Board:
    """Return the board on which a game starts, its moves on the stack: a named opening, or up to six random plies.

    Occasionally the random moves have already ended the game.
    """
    if rng.random() < OPENING_FRACTION:
        return opening_board(rng.choice(OPENINGS))
    board = chess.Board()
    for _ in range(rng.randint(0, RANDOM_START_PLIES)):
        if moves := list(board.legal_moves):
            board.push(rng.choice(moves))
    return board


def random_ending(rng: random.Random) -> chess.Board:
    """Return a random valid position of two kings and a few other pieces in which the game is not over."""
    while True:
        squares = rng.sample(chess.SQUARES, 2 + rng.randint(*ENDING_PIECES))
        board = chess.Board(None)
        for color, square in zip(chess.COLORS, squares, strict=False):
            board.set_piece_at(square, chess.Piece(chess.KING, color))
        for square in squares[2:]:
            kind = rng.choice((chess.PAWN, chess.PAWN, chess.KNIGHT, chess.BISHOP, chess.ROOK, chess.QUEEN))
            board.set_piece_at(square, chess.Piece(kind, rng.choice(chess.COLORS)))
        board.turn = rng.choice(chess.COLORS)
        board.halfmove_clock, board.fullmove_number = rng.randint(0, 20), rng.randint(40, 90)
        if board.is_valid() and board.outcome(claim_draw=False) is None:
            return board


def policy_line(position: MoveEvals) -> str:
    """Return a line in the published `P:` format with the best five moves, best first, or with all if there are fewer.

    >>> position = MoveEvals("8/8/8/8/8/8/8/K1k5 w - - 0 1", "ending", {"a1a2": 0.5, "a1b1": -1.0})
    >>> policy_line(position).split("M: ")[1].split()
    ['a1a2', 'a1b1', 'E:', '0.5', '-1.0', 'B:', 'a1a2']
    """
    ranked = sorted(position.evals_pawns.items(), key=lambda item: -item[1])[:MAX_CANDIDATES]
    moves, evals = zip(*ranked, strict=True)
    return render_policy_prompt(position.fen) + render_policy(PolicyCompletion(moves, evals, moves[0]), position.fen)


def environment_line(fen: str, uci: str, history: Sequence[str]) -> str:
    """Return a line in the published `A:` format with python-chess's completion. `history` ends with `uci`."""
    prompt = render_environment_prompt(fen, uci, history)
    return prompt + render_environment(step(fen, uci))

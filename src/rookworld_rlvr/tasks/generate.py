"""Rows of both tasks from positions, and where games begin."""

import random
from collections.abc import Sequence

import chess

from ..board.openings import OPENINGS, opening_board
from ..board.transition import step
from .environment import HISTORY_MOVES, render_environment, render_environment_prompt
from .move_evals import MoveEvals
from .policy import MAX_CANDIDATES, render_policy, render_policy_prompt
from .types import PolicyCompletion

# Half of the games begin behind a named opening, half after up to this many random plies.
OPENING_FRACTION = 0.5
RANDOM_START_PLIES = 6
# Pieces beside the two kings of an ending.
ENDING_PIECES = (1, 5)


def start_board(rng: random.Random) -> chess.Board:
    """A board where a game begins, its moves on the stack: an opening's end, or up to six random plies.

    Now and then the random moves already end the game.
    """
    if rng.random() < OPENING_FRACTION:
        return opening_board(rng.choice(OPENINGS))
    board = chess.Board()
    for _ in range(rng.randint(0, RANDOM_START_PLIES)):
        if moves := list(board.legal_moves):
            board.push(rng.choice(moves))
    return board


def few_pieces(rng: random.Random) -> chess.Board:
    """A valid position of two kings and a few other pieces in which the game goes on."""
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
    """A published `P:` line: the best five moves, the best first, or all if there are fewer.

    >>> position = MoveEvals("8/8/8/8/8/8/8/K1k5 w - - 0 1", "ending", {"a1a2": 0.5, "a1b1": -1.0})
    >>> policy_line(position).split("M: ")[1].split()
    ['a1a2', 'a1b1', 'E:', '0.5', '-1.0', 'B:', 'a1a2']
    """
    ranked = sorted(position.evals_pawns.items(), key=lambda item: -item[1])[:MAX_CANDIDATES]
    moves, evals = zip(*ranked, strict=True)
    return render_policy_prompt(position.fen) + render_policy(PolicyCompletion(moves, evals, moves[0]), position.fen)


def environment_line(fen: str, uci: str, history: Sequence[str]) -> str:
    """A published `A:` line; `history` ends with `uci`. python-chess writes the completion."""
    prompt = render_environment_prompt(fen, uci, history)
    return prompt + render_environment(step(fen, uci, list(history)[-HISTORY_MOVES:]))

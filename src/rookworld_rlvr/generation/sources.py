"""Sources of positions to learn from, boards from which games start, and games that need an engine's evaluations."""

import math
import random
from collections.abc import Iterator, Mapping
from enum import StrEnum

import chess

from ..board.evals import captured_pawns, win_probability
from ..board.moves import is_mate
from ..board.openings import OPENINGS, opening_board
from ..stockfish.move_evals import Analyse, MoveEvals

# Half of the games start after a named opening, the other half after up to this many random plies.
OPENING_FRACTION = 0.5
RANDOM_START_PLIES = 6
# Minimum and maximum number of pieces in an ending, in addition to the two kings.
ENDING_PIECES = (1, 5)
# Pieces of the stronger and of the weaker side, besides the kings, of a third of the games from an ending: won
# positions that a player has to know how to finish.
WON = ("Q", ""), ("R", ""), ("P", ""), ("Q", "P"), ("R", "P"), ("BNPPP", "PPP"), ("RPPPPP", "R")
# Another third: what is left when one side captures all it can and the other moves at random. One side then has a king
# and at most this many pawns; up to this many plies are played in the same way after that.
LONE_PAWNS, LONE_PLIES = 3, 15
MAX_PLIES = 200
# An engine game draws moves by a softmax of win probabilities at one of these temperatures, and this share at random.
TEMPERATURES = (0.01, 0.03, 0.06, 0.12)
RANDOM_FRACTIONS = (0.0, 0.05, 0.15)
# A game is decided if the best eval is beyond DECIDED_PAWNS. It then ends with probability LEAVE_DECIDED at each ply,
# because otherwise won endings would outnumber the middlegames.
DECIDED_PAWNS, LEAVE_DECIDED = 8.0, 0.12
# Share of a random game's positions that is kept. Positions with a mate in one are always kept.
RANDOM_KEPT = 0.08
ENDING_PLIES = 10


class Source(StrEnum):
    """Source of a position or of a move."""

    opening = "opening"
    """The first moves of a game, from a named line or random. Only for the environment task."""
    engine = "engine"
    """A game of the engine against itself, with moves drawn at a temperature, from an opening or a few random moves."""
    random = "random"
    """A game of random legal moves. Some of the environment task's start with few pieces."""
    ending = "ending"
    """Few pieces on random squares, or what a side that captures has left a random mover, and up to ten plies of the
    engine from there. Most are won for one side."""
    mate = "mate"
    """A position of a random game in which the side to move has a mate in one."""
    given = "given"
    """A game given by the user, or played by a model."""


# Probability of each source of a game. Endings are short, so they are about a sixth of the rows; the data card counts
# the rows of each source.
GAME_WEIGHTS = {Source.engine: 0.2, Source.random: 0.2, Source.ending: 0.6}


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
        if _is_started(board, rng):
            return board


def won_ending(rng: random.Random) -> chess.Board:
    """Return a random valid position with the pieces of one entry of WON, in which the game is not over."""
    return _placed(rng, *rng.choice(WON))


def bare_king_ending(rng: random.Random) -> chess.Board:
    """Return a random valid position of a king and a queen or rook, whose turn it is, against a king."""
    while True:
        board = _placed(rng, rng.choice("QR"), "")
        if board.occupied_co[board.turn].bit_count() == 2:
            return board


def overwhelming_ending(rng: random.Random) -> chess.Board:
    """Return a position of a game in which one side has at most a few pawns left, and the game is not over.

    That side, drawn, moved at random. The other one captured the most valuable piece, or moved at random too, so that
    it has an army with which it must mate and not stalemate.
    """
    weak = rng.choice(chess.COLORS)
    while True:
        board, left = chess.Board(), rng.randint(0, LONE_PLIES)
        while board.outcome(claim_draw=False) is None:
            if _is_lone(board, weak):
                if not left:
                    return board
                left -= 1
            board.push(_random_move(rng, board) if board.turn is weak else _capture(rng, board))


def _is_lone(board: chess.Board, color: chess.Color) -> bool:
    """Return True if a side has a king and at most LONE_PAWNS pawns."""
    own = board.occupied_co[color]
    return not own & ~(board.pawns | board.kings) and own.bit_count() <= 1 + LONE_PAWNS


def _random_move(rng: random.Random, board: chess.Board) -> chess.Move:
    return rng.choice(list(board.legal_moves))


def _capture(rng: random.Random, board: chess.Board) -> chess.Move:
    """Return a capture of the most valuable piece, drawn if there are several; any move if there is no capture."""
    moves = list(board.legal_moves)
    values = [captured_pawns(board, move) for move in moves]
    most = max(values)
    return rng.choice([move for move, value in zip(moves, values, strict=True) if value == most])


def _placed(rng: random.Random, ahead: str, behind: str) -> chess.Board:
    """Return a random valid position in which one side, drawn, has the pieces `ahead`; the game is not over."""
    color = rng.choice(chess.COLORS)
    letters = [*("K" + ahead), *("K" + behind)]
    colors = [color] * (1 + len(ahead)) + [not color] * (1 + len(behind))
    while True:
        board = chess.Board(None)
        for square, letter, owner in zip(rng.sample(chess.SQUARES, len(letters)), letters, colors, strict=True):
            board.set_piece_at(square, chess.Piece(chess.Piece.from_symbol(letter).piece_type, owner))
        if _is_started(board, rng):
            return board


def _is_started(board: chess.Board, rng: random.Random) -> bool:
    """Draw the side to move and the counters; return True if the position is valid and the game not over."""
    board.turn = rng.choice(chess.COLORS)
    board.halfmove_clock, board.fullmove_number = rng.randint(0, 20), rng.randint(40, 90)
    return board.is_valid() and board.outcome(claim_draw=False) is None


def sourced_game(rng: random.Random, analyse: Analyse) -> Iterator[MoveEvals]:
    """Yield the evaluations of the positions of one game, whose source is drawn by GAME_WEIGHTS."""
    source = rng.choices(list(GAME_WEIGHTS), list(GAME_WEIGHTS.values()))[0]
    match source:
        case Source.engine:
            yield from engine_game(rng, start_board(rng), analyse, source=source, plies=MAX_PLIES)
        case Source.ending:
            start = rng.choice((random_ending, won_ending, overwhelming_ending))(rng)
            yield from engine_game(rng, start, analyse, source=source, plies=ENDING_PLIES)
        case _:
            yield from random_game(rng, start_board(rng), analyse)


def engine_game(
    rng: random.Random, start: chess.Board, analyse: Analyse, *, source: Source, plies: int
) -> Iterator[MoveEvals]:
    """Play an engine game of up to `plies` plies from `start`, and yield the evaluations of each of its positions."""
    game, temperature, random_fraction = start.copy(), rng.choice(TEMPERATURES), rng.choice(RANDOM_FRACTIONS)
    for _ in range(plies):
        if game.outcome(claim_draw=False) is not None:
            return
        evals = analyse(game)
        yield MoveEvals(game.fen(), source, evals)
        best = max(evals.values())
        if abs(best) > DECIDED_PAWNS and rng.random() < LEAVE_DECIDED:
            return
        blunder = rng.random() < random_fraction
        game.push_uci(rng.choice(list(evals)) if blunder else softmax_move(rng, evals, temperature))


def softmax_move(rng: random.Random, evals_pawns: Mapping[str, float], temperature: float) -> str:
    """Draw a move with a probability proportional to exp(win probability / temperature)."""
    wins = {move: win_probability(pawns) for move, pawns in evals_pawns.items()}
    best = max(wins.values())
    return rng.choices(list(wins), [math.exp((win - best) / temperature) for win in wins.values()])[0]


def random_game(rng: random.Random, start: chess.Board, analyse: Analyse) -> Iterator[MoveEvals]:
    """Play random legal moves to the game's end, and yield a few of its positions and all that have a mate in one."""
    game = start.copy()
    while game.outcome(claim_draw=False) is None:
        mate = has_mate_in_one(game)
        if mate or rng.random() < RANDOM_KEPT:
            yield MoveEvals(game.fen(), Source.mate if mate else Source.random, analyse(game))
        game.push(_random_move(rng, game))


def has_mate_in_one(board: chess.Board) -> bool:
    """Return True if a legal move mates.

    >>> has_mate_in_one(chess.Board("6k1/5ppp/8/8/8/8/8/R6K w - - 0 1")), has_mate_in_one(chess.Board())
    (True, False)
    """
    return any(is_mate(board, move.uci()) for move in board.legal_moves if board.gives_check(move))

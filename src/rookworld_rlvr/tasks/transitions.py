"""Rows of the environment task from games: moves balanced by class, illegal ones by kind."""

import random
from collections.abc import Iterator
from enum import StrEnum

import chess

from ..board.moves import is_legal_uci
from .classes import TransitionClass, transition_class
from .generate import environment_line, start_board
from .sources import few_men

MAX_HALFMOVES = 400
# Of the moves of a game, by class, the share that is asked for; rare classes always.
KEPT = {TransitionClass.quiet: 0.06, TransitionClass.capture: 0.08, TransitionClass.castling: 1.0}
# A random game goes on with a move of a rare class where there is one, this often.
EAGER = 0.4
ILLEGAL_ASKED = 0.05
FEW_MEN_FRACTION = 0.35
LATE_CLOCK_FRACTION = 0.1


class IllegalKind(StrEnum):
    """Why a move is illegal: the first of these that holds."""

    no_piece = "no_piece"
    other_side = "other_side"
    castling = "castling"
    """A king's castling move without the right to it, or through a man or an attack."""
    promotion = "promotion"
    """A pawn that reaches the last rank without a promotion, or another man's move that names one."""
    geometry = "geometry"
    """A man to a square that it could not reach on an empty board."""
    blocked = "blocked"
    """A man to a square that another man keeps it from, its own one on that square among them."""
    check = "check"
    """A pseudo-legal move that leaves the king attacked."""


def illegal_kind(board: chess.Board, uci: str) -> IllegalKind:
    """The kind of an illegal move of two different squares.

    >>> [str(illegal_kind(chess.Board(), uci)) for uci in ("e4e5", "e7e5", "e1g1", "e2e5", "a1a3")]
    ['no_piece', 'other_side', 'castling', 'geometry', 'blocked']
    """
    move = chess.Move.from_uci(uci)
    piece = board.piece_at(move.from_square)
    if piece is None:
        return IllegalKind.no_piece
    if piece.color != board.turn:
        return IllegalKind.other_side
    if board.is_pseudo_legal(move):
        return IllegalKind.check if not board.is_castling(move) else IllegalKind.castling
    home = chess.E1 if board.turn else chess.E8
    castled = (chess.square_mirror(chess.G1), chess.square_mirror(chess.C1)) if not board.turn else (chess.G1, chess.C1)
    if piece.piece_type == chess.KING and move.from_square == home and move.to_square in castled:
        return IllegalKind.castling
    last = chess.square_rank(move.to_square) == (7 if board.turn else 0)
    if (move.promotion is not None) != (piece.piece_type == chess.PAWN and last):
        return IllegalKind.promotion
    return IllegalKind.blocked if _reaches(piece, move) else IllegalKind.geometry


def _ends(move: chess.Move) -> tuple[int, int]:
    return move.from_square, move.to_square


def _reaches(piece: chess.Piece, move: chess.Move) -> bool:
    """Whether on an empty board, a pawn's captures included."""
    empty = chess.Board(None)
    empty.set_piece_at(move.from_square, piece)
    if move.to_square in empty.attacks(move.from_square):
        return True
    if piece.piece_type != chess.PAWN:
        return False
    empty.turn = piece.color
    return chess.Move(*_ends(move), move.promotion) in empty.pseudo_legal_moves


def illegal_moves(board: chess.Board, rng: random.Random) -> str:
    """An illegal move of a kind drawn evenly among those found: most are near misses of a man of the side to move."""
    wanted = rng.choice(list(IllegalKind))
    found = [uci for uci in _candidates(board, rng, wanted) if not is_legal_uci(board, uci)]
    of_kind = [uci for uci in found if illegal_kind(board, uci) is wanted]
    return rng.choice(of_kind or found)


def _candidates(board: chess.Board, rng: random.Random, wanted: IllegalKind) -> list[str]:
    home = "e1" if board.turn else "e8"
    match wanted:
        case IllegalKind.castling:
            moves = [home + side + home[1] for side in "gc"]
        case IllegalKind.check:
            moves = [move.uci() for move in board.pseudo_legal_moves]
        case IllegalKind.promotion:
            moves = [move.uci()[:4] + rng.choice(["", "q", "n"]) for move in board.pseudo_legal_moves]
        case _:
            own = [chess.square_name(square) for square in chess.SquareSet(board.occupied_co[board.turn])]
            starts = own if wanted in (IllegalKind.geometry, IllegalKind.blocked) else chess.SQUARE_NAMES
            moves = [a + b for a in rng.choices(starts, k=40) for b in rng.sample(chess.SQUARE_NAMES, 1) if a != b]
            if wanted is IllegalKind.blocked:
                moves += _rays(board)
    found = [uci for uci in moves if not is_legal_uci(board, uci)]
    while not found:
        a, b = rng.sample(chess.SQUARE_NAMES, 2)
        if not is_legal_uci(board, a + b):
            found = [a + b]
    return found


def _rays(board: chess.Board) -> list[str]:
    """Moves of the side's men to squares that they would reach on an empty board."""
    moves = []
    for square in chess.SquareSet(board.occupied_co[board.turn]):
        piece = board.piece_at(square)
        assert piece is not None
        empty = chess.Board(None)
        empty.set_piece_at(square, piece)
        moves += [chess.square_name(square) + chess.square_name(target) for target in empty.attacks(square)]
    return moves


def transition_game(rng: random.Random, start: chess.Board | None = None) -> Iterator[tuple[str, str]]:
    """Class (or `illegal` with its kind) and line of moves of one random game, played to its end."""
    few = rng.random() < FEW_MEN_FRACTION
    game = start or (few_men(rng) if few else start_board(rng))
    if few and rng.random() < LATE_CLOCK_FRACTION:
        game.halfmove_clock = rng.randint(130, 148)
        game.fullmove_number = rng.randint(80, 160)
    while game.outcome(claim_draw=False) is None and len(game.move_stack) < MAX_HALFMOVES:
        yield from transitions_of(game, rng)
        moves = list(game.legal_moves)
        rare = [move for move in moves if _may_be_rare(game, move)] if rng.random() < EAGER else []
        move = rng.choice(rare or moves)
        yield from _asked(game, move, rng)
        game.push(move)


def transitions_of(game: chess.Board, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Now and then an illegal move from where the game is."""
    if rng.random() < ILLEGAL_ASKED:
        uci = illegal_moves(game, rng)
        kind = illegal_kind(game, uci)
        yield f"illegal {kind}", _line(game, uci)


def _asked(game: chess.Board, move: chess.Move, rng: random.Random) -> Iterator[tuple[str, str]]:
    kind = transition_class(game, move.uci())
    if rng.random() < KEPT.get(kind, 1.0):
        yield kind.value, _line(game, move.uci())


def _may_be_rare(board: chess.Board, move: chess.Move) -> bool:
    """Ends of games and special moves; a cheap look."""
    if board.is_castling(move) or board.is_en_passant(move):
        return True
    board.push(move)
    over = not any(board.generate_legal_moves())
    board.pop()
    return over


def _line(game: chess.Board, uci: str) -> str:
    played = [move.uci() for move in game.move_stack]
    return environment_line(game.fen(), uci, [*played, uci])

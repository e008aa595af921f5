"""The classes of transitions that an arbiter must tell apart, and positions of each, made by seed."""

import random
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum

import chess

from ..board.fen import position_key
from ..board.moves import is_legal_uci
from .environment import HISTORY_MOVES, render_environment_prompt
from .generate import MAX_PLIES, few_pieces, start_board, wrong_move
from .types import Example, Task

SEVENTY_FIVE_PLIES = 150
# Pieces beside the kings where a game begins in which rare ends are looked for.
FEW_PIECES = (1, 4)
# A game is looked at from a random ply on, between 0 and this, so that common classes are met in all phases of
# the game.
LATEST_FIRST, LATEST_FIRST_OF_FEW = 80, 20
# Plies without capture or pawn move that are played before the last one; the earlier ones are only counted,
# because a prompt's history shows no more.
SHUFFLED_PLIES = HISTORY_MOVES - 1
# A game of full length with the clock at its end has at least this many moves.
LATEST_START = 80


class TransitionClass(StrEnum):
    """A move's class: the first of these that it belongs to."""

    illegal = "illegal"
    mate = "mate"
    stalemate = "stalemate"
    insufficient_material = "insufficient_material"
    seventy_five_moves = "seventy_five_moves"
    """The move with which the 75-move rule ends the game."""
    castling = "castling"
    en_passant = "en_passant"
    promotion = "promotion"
    """With or without a capture."""
    capture = "capture"
    quiet = "quiet"


# How often a class is looked for in a game of few pieces; in the others never.
_OF_FEW_PIECES = {
    TransitionClass.mate: 0.5,
    TransitionClass.promotion: 0.5,
    TransitionClass.stalemate: 1.0,
    TransitionClass.insufficient_material: 1.0,
    TransitionClass.seventy_five_moves: 0.5,
}


def transition_class(board: chess.Board, uci: str) -> TransitionClass:
    """The class of `uci` from `board`.

    >>> transition_class(chess.Board(), "e2e4"), transition_class(chess.Board(), "e2e5")
    (<TransitionClass.quiet: 'quiet'>, <TransitionClass.illegal: 'illegal'>)
    """
    if not is_legal_uci(board, uci):
        return TransitionClass.illegal
    move, after = chess.Move.from_uci(uci), board.copy(stack=False)
    after.push(move)
    classes = (
        (TransitionClass.mate, after.is_checkmate()),
        (TransitionClass.stalemate, after.is_stalemate()),
        (TransitionClass.insufficient_material, after.is_insufficient_material()),
        (TransitionClass.seventy_five_moves, after.halfmove_clock >= SEVENTY_FIVE_PLIES),
        (TransitionClass.castling, board.is_castling(move)),
        (TransitionClass.en_passant, board.is_en_passant(move)),
        (TransitionClass.promotion, move.promotion is not None),
        (TransitionClass.capture, board.is_capture(move)),
    )
    return next((name for name, holds in classes if holds), TransitionClass.quiet)


def class_prompts(wanted: TransitionClass, rows: int, *, seed: int, excluded: Collection[str] = ()) -> list[Example]:
    """`A:` prompts of one class, without labels, each from a game of its own and another position.

    `excluded` are positions by identity that no prompt begins from. The same seed gives the same prompts, and more
    rows only go on behind fewer.
    """
    rng, taken, examples = random.Random(f"{seed}/{wanted}"), set(excluded), list[Example]()
    while len(examples) < rows:
        for board, uci in _moves_of_a_game(rng, wanted):
            if position_key(board) not in taken:
                taken.add(position_key(board))
                examples.append(Example(Task.environment, _prompt(board, uci), None))
                break
    return examples


def _prompt(board: chess.Board, uci: str) -> str:
    played = [move.uci() for move in board.move_stack]
    return render_environment_prompt(board.fen(), uci, [*played, uci])


def _moves_of_a_game(rng: random.Random, wanted: TransitionClass) -> Iterator[tuple[chess.Board, str]]:
    """Positions of a random game, from a random ply on, each with a move of the class."""
    if wanted is TransitionClass.seventy_five_moves:
        yield from _last_reversible_moves(rng)
        return
    few = rng.random() < _OF_FEW_PIECES.get(wanted, 0.0)
    game = few_pieces(rng, FEW_PIECES) if few else start_board(rng)
    first = rng.randint(0, LATEST_FIRST_OF_FEW if few else LATEST_FIRST)
    while game.outcome(claim_draw=False) is None and len(game.move_stack) < MAX_PLIES:
        if len(game.move_stack) >= first and (moves := _of_class(rng, game, wanted)):
            yield game, rng.choice(moves)
        game.push(rng.choice(list(game.legal_moves)))


def _of_class(rng: random.Random, board: chess.Board, wanted: TransitionClass) -> Sequence[str]:
    if wanted is TransitionClass.illegal:
        return [wrong_move(rng, board)]
    if wanted is TransitionClass.en_passant and board.ep_square is None:
        return []
    return [
        move.uci()
        for move in board.legal_moves
        if _may_be(board, move, wanted) and transition_class(board, move.uci()) is wanted
    ]


def _may_be(board: chess.Board, move: chess.Move, wanted: TransitionClass) -> bool:
    """A cheap check first: nearly all moves are of common classes."""
    match wanted:
        case TransitionClass.mate:
            return board.gives_check(move) and _leaves_no_move(board, move)
        case TransitionClass.stalemate:
            return not board.gives_check(move) and _leaves_no_move(board, move)
        case TransitionClass.insufficient_material:
            return board.is_capture(move) or move.promotion is not None
        case TransitionClass.castling:
            return board.is_castling(move)
        case TransitionClass.en_passant:
            return board.is_en_passant(move)
        case TransitionClass.promotion:
            return move.promotion is not None
    return True


def _leaves_no_move(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    none_left = not any(board.generate_legal_moves())
    board.pop()
    return none_left


def _last_reversible_moves(rng: random.Random) -> Iterator[tuple[chess.Board, str]]:
    """The end of the 75 moves: reversible moves from a random game's position whose clock is set near its end."""
    few = rng.random() < _OF_FEW_PIECES[TransitionClass.seventy_five_moves]
    board = few_pieces(rng, FEW_PIECES) if few else _middle_of_a_game(rng)
    board.halfmove_clock = SEVENTY_FIVE_PLIES - 1 - SHUFFLED_PLIES
    board.fullmove_number = rng.randint(LATEST_START, 2 * LATEST_START)
    for _ in range(SHUFFLED_PLIES):
        if not (moves := _reversible(board)):
            return
        board.push(rng.choice(moves))
    if moves := _reversible(board):
        uci = rng.choice(moves).uci()
        if transition_class(board, uci) is TransitionClass.seventy_five_moves:
            yield board, uci


def _middle_of_a_game(rng: random.Random) -> chess.Board:
    """A position of a random game, without the moves that led to it."""
    game = start_board(rng)
    for _ in range(rng.randint(20, MAX_PLIES)):
        if game.outcome(claim_draw=False) is not None:
            break
        game.push(rng.choice(list(game.legal_moves)))
    return game.copy(stack=False)


def _reversible(board: chess.Board) -> list[chess.Move]:
    return [move for move in board.legal_moves if not board.is_irreversible(move)]

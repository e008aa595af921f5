"""New data for both tasks: games that wander from the openings, labelled position by position."""

import random
from collections.abc import Callable, Iterator, Sequence

import chess

from ..board.moves import is_legal_uci
from ..board.openings import OPENINGS, opening_board
from ..board.transition import step
from .environment import HISTORY_MOVES, render_environment, render_environment_prompt
from .policy import render_policy, render_policy_prompt
from .types import PolicyAnswer

Labeller = Callable[[chess.Board], PolicyAnswer]

# A candidate of the label is played this often, any legal move else: games that stay near good play
# and still reach what a model's own mistakes reach.
GUIDED_FRACTION = 0.7
MAX_HALFMOVES = 160
# Half of the games begin behind a named opening, half after up to this many random half-moves.
OPENING_FRACTION = 0.5
RANDOM_START_HALFMOVES = 6
ILLEGAL_FRACTION = 0.08
# Rare in games and decisive for the arbiter: taken as often as they occur, while of the common moves
# of a playout only this share is kept.
COMMON_FRACTION = 0.15


def start_board(rng: random.Random) -> chess.Board:
    """Where a game begins, its moves on the stack: an opening's end, or up to six random half-moves.

    Now and then the random moves already end the game.
    """
    if rng.random() < OPENING_FRACTION:
        return opening_board(rng.choice(OPENINGS))
    board = chess.Board()
    for _ in range(rng.randint(0, RANDOM_START_HALFMOVES)):
        if moves := list(board.legal_moves):
            board.push(rng.choice(moves))
    return board


def guided_game(
    rng: random.Random, start: chess.Board, label: Labeller
) -> Iterator[tuple[chess.Board, PolicyAnswer]]:
    """A game from `start`: each position (the same board object, changed in place) with its label."""
    game = start.copy()
    while game.ply() < MAX_HALFMOVES and game.outcome(claim_draw=False) is None:
        answer = label(game)
        yield game, answer
        guided = rng.random() < GUIDED_FRACTION
        game.push_uci(rng.choice(answer.moves) if guided else rng.choice(list(game.legal_moves)).uci())


def policy_line(rng: random.Random, board: chess.Board, answer: PolicyAnswer) -> str:
    """A published `P:` line, the candidates in shuffled order."""
    order = rng.sample(range(len(answer.moves)), len(answer.moves))
    shuffled = PolicyAnswer(
        tuple(answer.moves[i] for i in order), tuple(answer.evals_pawns[i] for i in order), answer.best
    )
    return render_policy_prompt(board.fen()) + render_policy(shuffled, board.fen())


def environment_line(fen: str, uci: str, history: Sequence[str]) -> str:
    """A published `A:` line; `history` ends with `uci`. python-chess writes the answer."""
    prompt = render_environment_prompt(fen, uci, history)
    return prompt + render_environment(step(fen, uci, list(history)[-HISTORY_MOVES:]))


def environment_lines(rng: random.Random, start: chess.Board) -> Iterator[str]:
    """`A:` lines along one random game from `start` to its end: all rare moves, few common ones."""
    game = start.copy()
    while game.outcome(claim_draw=False) is None:
        uci = _eager_move(rng, game).uci()
        fen, played = game.fen(), [move.uci() for move in game.move_stack]
        if rng.random() < ILLEGAL_FRACTION * COMMON_FRACTION * 2:
            wrong = wrong_move(rng, game)
            yield environment_line(fen, wrong, [*played, wrong])
        rare = _is_rare(game, chess.Move.from_uci(uci))
        game.push_uci(uci)
        if rare or game.is_game_over(claim_draw=False) or rng.random() < COMMON_FRACTION:
            yield environment_line(fen, uci, [*played, uci])


def wrong_move(rng: random.Random, board: chess.Board) -> str:
    """An illegal UCI move: half a piece's move gone wrong, half any two squares."""
    pieces = list(chess.SquareSet(board.occupied_co[board.turn]))
    while True:
        origin = rng.choice(pieces) if rng.random() < 0.5 else rng.choice(chess.SQUARES)
        uci = chess.square_name(origin) + chess.square_name(rng.choice(chess.SQUARES))
        if uci[:2] != uci[2:] and not is_legal_uci(board, uci):
            return uci


def _eager_move(rng: random.Random, game: chess.Board) -> chess.Move:
    """A random move that takes a mate half the time it is there: random games else seldom end so."""
    moves = list(game.legal_moves)
    if rng.random() < 0.5:
        for move in moves:
            if game.gives_check(move) and _is_mate(game, move):
                return move
    return rng.choice(moves)


def _is_mate(game: chess.Board, move: chess.Move) -> bool:
    game.push(move)
    mate = game.is_checkmate()
    game.pop()
    return mate


def _is_rare(game: chess.Board, move: chess.Move) -> bool:
    return game.is_castling(move) or game.is_en_passant(move) or move.promotion is not None

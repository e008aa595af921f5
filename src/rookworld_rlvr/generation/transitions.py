"""Rows of the environment task from games: legal moves balanced by class, illegal ones by kind.

A row is a line with its source, its kind and the `A:` line in its published format, separated by tabs. The kind is the
class of the move, for an illegal move followed by its kind: `illegal blocked`.
"""

import random
from collections.abc import Iterator, Mapping, Sequence

import chess

from ..board.moves import is_legal_uci
from ..board.openings import OPENINGS
from ..board.transition import step
from ..tasks.environment.text import render_environment, render_environment_prompt
from ..tasks.move_classes import IllegalKind, TransitionClass, illegal_kind, transition_class
from .sources import Source, random_ending, start_board

MAX_PLIES = 400
# Share of a game's moves that become rows, by class. Moves of the other classes, which are rare, always do.
RANDOM_KEPT = {TransitionClass.quiet: 0.06, TransitionClass.capture: 0.08}
OPENING_KEPT = {TransitionClass.quiet: 0.6, TransitionClass.capture: 0.6}
ENGINE_KEPT = {TransitionClass.quiet: 0.12, TransitionClass.capture: 0.12}
# Probability of a row with an illegal move, per ply.
RANDOM_ILLEGAL, OPENING_ILLEGAL, ENGINE_ILLEGAL = 0.05, 0.12, 0.08
# Probability that a random game continues with a move of a rare class, if there is one.
RARE_MOVE_PROBABILITY = 0.4
# Games without an engine: share of openings, of few-piece games among the rest, and of late clocks among these.
OPENING_GAMES, FEW_PIECES_FRACTION, LATE_CLOCK_FRACTION = 0.45, 0.35, 0.1
# Maximum number of plies of an opening, and share of openings that follow a named line.
OPENING_PLIES, NAMED_FRACTION = 16, 0.6


def illegal_move(board: chess.Board, rng: random.Random) -> str:
    """Return an illegal move of a kind drawn evenly, or of another kind if none of it is found.

    Most are near misses of a piece of the side to move.
    """
    wanted = rng.choice(list(IllegalKind))
    illegal = _illegal_moves(board, rng, wanted)
    of_kind = [uci for uci in illegal if illegal_kind(board, uci) is wanted]
    return rng.choice(of_kind or illegal)


def _illegal_moves(board: chess.Board, rng: random.Random, wanted: IllegalKind) -> list[str]:
    """Return illegal moves, at least one. Many of them, or all, are of the wanted kind if there are moves of it."""
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
    illegal = [uci for uci in moves if not is_legal_uci(board, uci)]
    while not illegal:
        a, b = rng.sample(chess.SQUARE_NAMES, 2)
        if not is_legal_uci(board, a + b):
            illegal = [a + b]
    return illegal


def _rays(board: chess.Board) -> list[str]:
    """Return the moves of the side to move to all squares that its pieces would attack on an empty board."""
    moves = []
    for square in chess.SquareSet(board.occupied_co[board.turn]):
        piece = board.piece_at(square)
        assert piece is not None
        empty = chess.Board(None)
        empty.set_piece_at(square, piece)
        moves += [chess.square_name(square) + chess.square_name(target) for target in empty.attacks(square)]
    return moves


def transition_game(rng: random.Random) -> Iterator[str]:
    """Yield the rows of one game that needs no engine."""
    yield from _opening(rng) if rng.random() < OPENING_GAMES else _random_game(rng)


def rows_from_positions(fens: Sequence[str], rng: random.Random, source: Source = Source.engine) -> Iterator[str]:
    """Yield the rows of a game given by its consecutive positions, up to the first that no legal move leads to."""
    game = chess.Board(fens[0])
    for after in fens[1:]:
        move = next((move for move in game.legal_moves if _leads_to(game, move, after)), None)
        if move is None:
            return
        yield from _rows(rng, source, game, move, ENGINE_KEPT, ENGINE_ILLEGAL)
        game.push(move)


def _leads_to(board: chess.Board, move: chess.Move, fen: str) -> bool:
    board.push(move)
    same = board.fen() == fen
    board.pop()
    return same


def _opening(rng: random.Random) -> Iterator[str]:
    game, line = chess.Board(), list[str]()
    if rng.random() < NAMED_FRACTION:
        line = rng.choice(OPENINGS).moves.split()
    for place in range(rng.randint(2, OPENING_PLIES)):
        moves = list(game.legal_moves)
        if not moves:
            return
        move = chess.Move.from_uci(line[place]) if place < len(line) else rng.choice(moves)
        yield from _rows(rng, Source.opening, game, move, OPENING_KEPT, OPENING_ILLEGAL)
        game.push(move)


def _random_game(rng: random.Random) -> Iterator[str]:
    few = rng.random() < FEW_PIECES_FRACTION
    game = random_ending(rng) if few else start_board(rng)
    if few and rng.random() < LATE_CLOCK_FRACTION:
        # Close to the limit of the 75-move rule.
        game.halfmove_clock, game.fullmove_number = rng.randint(130, 148), rng.randint(80, 160)
    while game.outcome(claim_draw=False) is None and len(game.move_stack) < MAX_PLIES:
        moves = list(game.legal_moves)
        rare = [move for move in moves if _may_be_rare(game, move)] if rng.random() < RARE_MOVE_PROBABILITY else []
        move = rng.choice(rare or moves)
        yield from _rows(rng, Source.random, game, move, RANDOM_KEPT, RANDOM_ILLEGAL)
        game.push(move)


def _rows(
    rng: random.Random,
    source: Source,
    game: chess.Board,
    move: chess.Move,
    kept: Mapping[TransitionClass, float],
    illegal: float,
) -> Iterator[str]:
    """Yield a row with an illegal move with probability `illegal`, and one with `move` with its class's probability."""
    if rng.random() < illegal:
        uci = illegal_move(game, rng)
        yield _row(source, f"{TransitionClass.illegal} {illegal_kind(game, uci)}", game, uci)
    kind = transition_class(game, move.uci())
    if rng.random() < kept.get(kind, 1.0):
        yield _row(source, kind, game, move.uci())


def _may_be_rare(board: chess.Board, move: chess.Move) -> bool:
    """Return True if the move castles, captures en passant, mates or stalemates. This check is cheap."""
    if board.is_castling(move) or board.is_en_passant(move):
        return True
    board.push(move)
    over = not any(board.generate_legal_moves())
    board.pop()
    return over


def environment_line(fen: str, uci: str, history: Sequence[str]) -> str:
    """Return a line in the published `A:` format with python-chess's completion. `history` ends with `uci`."""
    prompt = render_environment_prompt(fen, uci, history)
    return prompt + render_environment(step(fen, uci))


def _row(source: Source, kind: str, game: chess.Board, uci: str) -> str:
    played = [move.uci() for move in game.move_stack]
    return f"{source}\t{kind}\t{environment_line(game.fen(), uci, [*played, uci])}"

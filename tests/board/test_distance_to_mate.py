"""Distances to mate: the longest known ones, play by them, and evals for either color."""

import random

import chess
import numpy as np
import pytest

from rookworld_rlvr.board.distance_to_mate import NEVER, distances_of, exact_evals


def endgame(rng: random.Random, kind: chess.PieceType, color: chess.Color) -> chess.Board:
    while True:
        board = chess.Board(None)
        pieces = (chess.Piece(chess.KING, color), chess.Piece(kind, color), chess.Piece(chess.KING, not color))
        for square, piece in zip(rng.sample(chess.SQUARES, 3), pieces, strict=True):
            board.set_piece_at(square, piece)
        board.turn = rng.choice(chess.COLORS)
        if board.is_valid() and any(board.legal_moves):
            return board


@pytest.mark.parametrize(("kind", "longest"), [(chess.QUEEN, 10), (chess.ROOK, 16)])
def test_longest_mates_are_the_known_ones(kind: chess.PieceType, longest: int) -> None:
    distances = distances_of(kind)
    assert distances.to_move[distances.to_move != NEVER].max() == longest
    # No position is won in which the other side is in check on our move, or in which two pieces share a square.
    assert not np.any(distances.to_move[np.arange(64), np.arange(64)] != NEVER)


@pytest.mark.parametrize("kind", [chess.QUEEN, chess.ROOK])
@pytest.mark.parametrize("color", chess.COLORS)
def test_best_moves_of_both_sides_mate_in_the_distance(kind: chess.PieceType, color: chess.Color) -> None:
    rng = random.Random(f"{kind} {color}")
    for _ in range(40):
        board, left = endgame(rng, kind, color), None
        while evals := exact_evals(board):
            best = max(evals, key=evals.__getitem__)
            if left is None and evals[best] == 0:
                break
            promised = round((1000 - abs(evals[best])) * 100)
            assert left in (None, promised)
            board.push_uci(best)
            left = promised - (board.turn != color)
        assert left is None or (left == 0 and board.is_checkmate())


@pytest.mark.parametrize("kind", [chess.QUEEN, chess.ROOK])
def test_evals_agree_with_the_rules_where_the_game_ends(kind: chess.PieceType) -> None:
    rng = random.Random(kind)
    ends = set()
    for _ in range(1500):
        board = endgame(rng, kind, chess.WHITE)
        evals = exact_evals(board)
        assert evals is not None and evals.keys() == {move.uci() for move in board.legal_moves}
        for uci, pawns in evals.items():
            after = board.copy()
            after.push_uci(uci)
            assert (pawns == 999.99) == after.is_checkmate()
            if after.is_stalemate() or after.is_insufficient_material():
                assert pawns == 0
                ends.add("stalemate" if after.is_stalemate() else "piece lost")
    assert ends == {"stalemate", "piece lost"}


@pytest.mark.parametrize(
    "fen",
    [
        chess.STARTING_FEN,
        "k7/2K5/8/8/8/8/8/1B6 w - - 0 1",
        "k7/2K5/8/8/8/8/p7/1R6 w - - 0 1",
        "4k3/8/8/8/8/8/8/4K2R w K - 0 1",
    ],
)
def test_other_boards_have_no_exact_evals(fen: str) -> None:
    assert exact_evals(chess.Board(fen)) is None

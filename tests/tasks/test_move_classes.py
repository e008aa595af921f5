"""Moves by class, and illegal moves by kind."""

import chess
import pytest

from rookworld_rlvr.board.moves import is_legal_uci
from rookworld_rlvr.tasks.move_classes import TransitionClass, illegal_kind, transition_class

PINNED = "4r1k1/8/8/8/8/8/4N3/4K2R w K - 0 1"
PAWNS = "8/P6k/8/8/8/8/7K/8 w - - 0 1"
THROUGH_CHECK = "5rk1/8/8/8/8/8/8/4K2R w K - 0 1"
T = TransitionClass
CLASSES = [
    ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "e2e5", T.illegal),
    ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "nonsense", T.illegal),
    ("6k1/5ppp/8/8/8/8/8/R3K2R w KQ - 0 1", "a1a8", T.mate),
    ("7k/8/5K2/6Q1/8/8/8/8 w - - 0 1", "g5g6", T.stalemate),
    ("8/8/8/8/8/1k6/8/K2n4 w - - 0 1", "a1b1", T.insufficient_material),
    ("4k3/8/8/8/8/8/8/R3K3 w - - 149 99", "a1a2", T.seventy_five_moves),
    ("4k3/8/8/8/8/8/8/R3K3 w - - 148 99", "a1a2", T.quiet),
    ("4k3/8/8/8/8/8/8/R3K3 w Q - 0 1", "e1c1", T.castling),
    ("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "e5d6", T.en_passant),
    ("3rk3/4P3/8/8/8/8/8/4K3 w - - 0 1", "e7d8q", T.promotion),
    ("4k3/8/8/3p4/4P3/8/8/4K2R w - - 0 1", "e4d5", T.capture),
    ("4k3/8/8/8/8/8/4P3/4K3 w - - 0 1", "e2e4", T.quiet),
]


@pytest.mark.parametrize(("fen", "uci", "name"), CLASSES)
def test_transition_class_is_the_first_that_applies(fen: str, uci: str, name: TransitionClass) -> None:
    assert transition_class(chess.Board(fen), uci) is name


@pytest.mark.parametrize(
    ("fen", "uci", "kind"),
    [
        (chess.STARTING_FEN, "e4e5", "no_piece"),
        (chess.STARTING_FEN, "e7e5", "other_side"),
        (chess.STARTING_FEN, "e1g1", "castling"),
        (THROUGH_CHECK, "e1g1", "castling"),
        (PAWNS, "a7a8", "promotion"),
        (PAWNS, "h2h3q", "promotion"),
        (chess.STARTING_FEN, "e2e5", "geometry"),
        (chess.STARTING_FEN, "a1b2", "geometry"),
        (chess.STARTING_FEN, "a1a3", "blocked"),
        (chess.STARTING_FEN, "d1d2", "blocked"),
        (chess.STARTING_FEN, "e2d3", "blocked"),
        (PINNED, "e2c3", "check"),
    ],
)
def test_illegal_move_has_expected_kind(fen: str, uci: str, kind: str) -> None:
    board = chess.Board(fen)
    assert not is_legal_uci(board, uci) and illegal_kind(board, uci) == kind

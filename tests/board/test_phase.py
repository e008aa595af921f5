"""The phase of positions whose pieces were counted by hand."""

import chess
import pytest

from rookworld_rlvr.board.phase import Phase, phase_of

# FEN, phase, reason.
CASES = [
    (chess.STARTING_FEN, Phase.opening, "14 pieces, eight men on each first rank"),
    ("r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3", Phase.opening, "seven men at home"),
    ("rnb5/pppppppp/8/8/8/8/PPPPPPPP/RNBQK3 w - - 0 1", Phase.middlegame, "Black has three men at home, 7 pieces"),
    ("4k3/8/8/3rqbnr/8/8/8/RNBQKBNR w - - 0 1", Phase.middlegame, "one man at home, 12 pieces"),
    ("rnbqk3/8/8/8/8/8/8/RNBQKBNR w - - 0 1", Phase.opening, "11 pieces, five men at home"),
    ("rnbk4/8/8/8/8/8/8/RNBQKBNR w - - 0 1", Phase.middlegame, "10 pieces, though four men are at home"),
    ("rnbqk3/8/8/8/8/8/8/RNB1K3 w - - 0 1", Phase.middlegame, "7 pieces"),
    ("rnbk4/8/8/8/8/8/8/RNBK4 w - - 0 1", Phase.endgame, "6 pieces, though four men are at home"),
    ("4k3/pppppppp/8/8/8/8/PPPPPPPP/4K3 w - - 0 1", Phase.endgame, "pawns do not count"),
]


@pytest.mark.parametrize(("fen", "phase", "why"), CASES, ids=[why for _, _, why in CASES])
def test_phase_depends_on_piece_count_and_first_ranks(fen: str, phase: Phase, why: str) -> None:
    assert phase_of(chess.Board(fen)) is phase, why


@pytest.mark.parametrize("fen", [fen for fen, _, _ in CASES])
def test_phase_is_independent_of_colours_and_side_to_move(fen: str) -> None:
    board = chess.Board(fen)
    other = board.copy()
    other.turn = not board.turn
    assert phase_of(board) is phase_of(board.mirror()) is phase_of(other)

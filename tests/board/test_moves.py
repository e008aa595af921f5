import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.board import Legality, MoveFault, is_legal_uci, is_uci, judge_move

ALL_UCI = [
    origin + target + promotion
    for origin in chess.SQUARE_NAMES
    for target in chess.SQUARE_NAMES
    for promotion in ("", "q", "r", "b", "n")
]
CASTLING = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"


@pytest.mark.parametrize(
    ("fen", "moves"),
    [
        (chess.STARTING_FEN, 20),
        ("r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1", 48),
        ("8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1", 14),
        ("r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1", 6),
        ("rnbq1k1r/pp1Pbppp/2p5/8/2B5/8/PPP1NnPP/RNBQK2R w KQ - 1 8", 44),
        ("r4rk1/1pp1qppp/p1np1n2/2b1p1B1/2B1P1b1/P1NP1N2/1PP1QPPP/R4RK1 w - - 0 10", 46),
    ],
)
def test_of_all_uci_strings_as_many_are_legal_as_the_published_perft_counts(fen: str, moves: int) -> None:
    """Depth 1 of the tables at chessprogramming.org/Perft_Results."""
    board = chess.Board(fen)
    legal = [uci for uci in ALL_UCI if is_legal_uci(board, uci)]
    assert len(legal) == moves
    assert set(legal) == {move.uci() for move in board.legal_moves}


@pytest.mark.parametrize(
    ("uci", "fault"),
    [
        ("0000", MoveFault.null_move),
        ("e1e1", MoveFault.same_square),
        ("", MoveFault.malformed),
        ("e1g1 ", MoveFault.malformed),
        (" e1g1", MoveFault.malformed),
        ("e1g1\n", MoveFault.malformed),
        ("E1G1", MoveFault.malformed),
        ("O-O", MoveFault.malformed),
        ("e1g9", MoveFault.malformed),
        ("e7e8k", MoveFault.malformed),
        ("e7e8Q", MoveFault.malformed),
        ("Q@e4", MoveFault.malformed),
    ],
)
def test_what_is_no_move_in_any_position_is_invalid_with_its_reason(uci: str, fault: MoveFault) -> None:
    verdict = judge_move(chess.Board(CASTLING), uci)
    assert (verdict.legality, verdict.fault) == (Legality.invalid, fault)
    assert not is_uci(uci)


@pytest.mark.parametrize(
    ("fen", "uci", "fault"),
    [
        (chess.STARTING_FEN, "e4e5", MoveFault.empty_origin),
        (chess.STARTING_FEN, "e7e5", MoveFault.opponents_piece),
        (chess.STARTING_FEN, "e2e5", MoveFault.piece_does_not_move_so),
        (CASTLING, "e1h1", MoveFault.castling_spelling),
        ("4k3/8/8/8/8/8/4r3/4K2R w K - 0 1", "e1g1", MoveFault.piece_does_not_move_so),
        ("4r1k1/8/8/8/8/8/4B3/4K3 w - - 0 1", "e2d3", MoveFault.leaves_king_in_check),
        ("8/P6k/8/8/8/8/8/K7 w - - 0 1", "a7a8", MoveFault.missing_promotion),
        ("8/P6k/8/8/8/8/8/K7 w - - 0 1", "a1a2q", MoveFault.piece_does_not_move_so),
    ],
)
def test_what_this_position_does_not_allow_is_illegal_with_its_reason(
    fen: str, uci: str, fault: MoveFault
) -> None:
    verdict = judge_move(chess.Board(fen), uci)
    assert (verdict.legality, verdict.fault) == (Legality.illegal, fault)
    assert is_uci(uci)


def test_castling_has_one_legal_spelling() -> None:
    board = chess.Board(CASTLING)
    assert chess.Move.from_uci("e1h1") in board.legal_moves
    assert [uci for uci in ("e1g1", "e1h1", "e1c1", "e1a1") if judge_move(board, uci).is_legal] == [
        "e1g1",
        "e1c1",
    ]


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=8), st.sampled_from(ALL_UCI)))
def test_any_string_is_judged_and_legal_exactly_if_a_legal_move_is_spelled_so(text: str) -> None:
    board = chess.Board(CASTLING)
    verdict = judge_move(board, text)
    assert verdict.is_legal == (text in {move.uci() for move in board.legal_moves})
    assert (verdict.fault is MoveFault.none) == verdict.is_legal
    assert (verdict.legality is Legality.invalid) == (not is_uci(text))

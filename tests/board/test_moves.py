import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.board.moves import is_legal_uci, is_uci, lenient_move

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
def test_count_of_legal_uci_strings_equals_published_perft(fen: str, moves: int) -> None:
    """The counts are depth 1 of the tables at chessprogramming.org/Perft_Results."""
    board = chess.Board(fen)
    legal = [uci for uci in ALL_UCI if is_legal_uci(board, uci)]
    assert len(legal) == moves
    assert set(legal) == {move.uci() for move in board.legal_moves}


@pytest.mark.parametrize(
    "uci",
    ["0000", "e1e1", "", "e1g1 ", " e1g1", "e1g1\n", "E1G1", "O-O", "e1g9", "e7e8k", "e7e8Q", "Q@e4"],
)
def test_malformed_uci_is_never_legal(uci: str) -> None:
    assert not is_uci(uci) and not is_legal_uci(chess.Board(CASTLING), uci)


@pytest.mark.parametrize(
    ("fen", "uci"),
    [
        (chess.STARTING_FEN, "e4e5"),
        (chess.STARTING_FEN, "e7e5"),
        (chess.STARTING_FEN, "e2e5"),
        (CASTLING, "e1h1"),
        ("4k3/8/8/8/8/8/4r3/4K2R w K - 0 1", "e1g1"),
        ("4r1k1/8/8/8/8/8/4B3/4K3 w - - 0 1", "e2d3"),
        ("8/P6k/8/8/8/8/8/K7 w - - 0 1", "a7a8"),
        ("8/P6k/8/8/8/8/8/K7 w - - 0 1", "a1a2q"),
    ],
)
def test_a_move_may_be_well_formed_and_illegal(fen: str, uci: str) -> None:
    assert is_uci(uci) and not is_legal_uci(chess.Board(fen), uci)


def test_castling_has_one_legal_spelling() -> None:
    board = chess.Board(CASTLING)
    assert chess.Move.from_uci("e1h1") in board.legal_moves
    assert [uci for uci in ("e1g1", "e1h1", "e1c1", "e1a1") if is_legal_uci(board, uci)] == ["e1g1", "e1c1"]


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=8), st.sampled_from(ALL_UCI)))
def test_string_is_legal_if_and_only_if_it_spells_a_legal_move(text: str) -> None:
    board = chess.Board(CASTLING)
    assert is_legal_uci(board, text) == (text in {move.uci() for move in board.legal_moves})


PROMOTION = "8/4P1k1/8/8/8/8/6K1/8 w - - 0 1"


@pytest.mark.parametrize(("fen", "text", "uci"), [
    (PROMOTION, "e7e8Q", "e7e8q"), (PROMOTION, "E7E8=n", "e7e8n"), (chess.STARTING_FEN, "E2E4", "e2e4"),
    (CASTLING, "e1h1", "e1g1"), (CASTLING, "e1a1", "e1c1"), (CASTLING.replace(" w ", " b "), "e8h8", "e8g8"),
    (CASTLING, "e1g1", "e1g1"), ("4k3/8/8/8/8/8/8/4K2R w - - 0 1", "h1e1", ""), (CASTLING, "h1h8", "h1h8"),
    (PROMOTION, "e7e8", ""), (PROMOTION, "e7e8k", ""), (chess.STARTING_FEN, "0000", ""), (CASTLING, "Q@e4", ""),
    (chess.STARTING_FEN, "--", ""), (chess.STARTING_FEN, "e4", ""), (chess.STARTING_FEN, "", ""),
    ("4k3/8/8/8/8/8/8/4K2R w - - 0 1", "e1h1", ""), (chess.STARTING_FEN, "e1h1", ""),
])  # fmt: skip
def test_lenient_move_is_the_legal_move_that_is_meant(fen: str, text: str, uci: str) -> None:
    board = chess.Board(fen)
    if uci:
        assert lenient_move(board, text).uci() == uci and is_legal_uci(board, uci)
    else:
        with pytest.raises(ValueError, match="expected a legal move in"):
            lenient_move(board, text)

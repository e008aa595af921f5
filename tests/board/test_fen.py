import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.board.fen import is_valid_fen, lenient_fen, parse_fen, position_key, read_fen

AFTER_E4 = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
CASTLING = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"
FIELDS = st.tuples(
    st.sampled_from(["8/8/8/8/8/8/8/K1k5", "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR", "8/8", "k7/9/8/8/8/8/8/8"]),
    st.sampled_from(["w", "b", "", "x"]),
    st.sampled_from(["-", "KQkq", "HAha", "KK", "", "\t"]),
    st.sampled_from(["-", "e3", "e6", "a1", "h8", "z9"]),
    st.sampled_from(["0", "149", "999999", "9" * 5000, "-1", "²", "1.0", ""]),
    st.sampled_from(["1", "0", "999999", "9" * 5000, "+1", "x"]),
).map(" ".join)


@pytest.mark.parametrize(
    "fen",
    [
        "",
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -",
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1 ",
        "rnbqkbnr/ppppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1",
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP w KQkq - 0 1",
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR W KQkq - 0 1",
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq e9 0 1",
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - -1 1",
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1000000",
        "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - ٣ 1",
    ],
)
def test_text_without_six_valid_fen_fields_raises_value_error(fen: str) -> None:
    with pytest.raises(ValueError):
        parse_fen(fen)
    assert not is_valid_fen(fen)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=80), FIELDS))
def test_any_text_parses_to_playable_board_or_raises_value_error(text: str) -> None:
    try:
        board = parse_fen(text)
    except ValueError:
        return
    board.push(chess.Move.null())
    assert len(board.fen().split(" ")) == 6


def test_a_parsable_fen_need_not_be_a_valid_position() -> None:
    assert parse_fen("8/8/8/8/8/8/8/8 w - - 0 1").occupied == 0
    assert not is_valid_fen("8/8/8/8/8/8/8/8 w - - 0 1")
    assert is_valid_fen(chess.STARTING_FEN)


def test_en_passant_square_is_kept_only_if_capture_is_legal() -> None:
    assert parse_fen(AFTER_E4.replace(" - ", " e3 ")).fen() == AFTER_E4
    capturable = "rnbqkbnr/ppp1pppp/8/8/3pP3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 3"
    assert parse_fen(capturable).fen() == capturable
    # The capture d4xe3 would open the fourth rank between the rook and the king.
    pinned = "8/8/8/8/R2pP2k/8/8/4K3 b - e3 0 1"
    assert parse_fen(pinned).fen() == pinned.replace(" e3 ", " - ")


def test_position_key_depends_on_turn_and_castling_but_not_counters() -> None:
    key = position_key(parse_fen(AFTER_E4))
    assert key == "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq -"
    assert position_key(parse_fen(AFTER_E4.replace(" - 0 1", " e3 7 40"))) == key
    assert position_key(parse_fen(AFTER_E4.replace(" b ", " w "))) != key
    assert position_key(parse_fen(AFTER_E4.replace("KQkq", "KQk"))) != key


def test_changing_a_parsed_board_leaves_later_boards_unchanged() -> None:
    board = parse_fen(chess.STARTING_FEN)
    board.push_uci("e2e4")
    assert parse_fen(chess.STARTING_FEN) == chess.Board() and not parse_fen(chess.STARTING_FEN).move_stack


@pytest.mark.parametrize(("text", "fen"), [
    ("6k1/5ppp/8/8/8/8/5PPP/3R2K1 w - -", "6k1/5ppp/8/8/8/8/5PPP/3R2K1 w - - 0 1"),
    ("6k1/5ppp/8/8/8/8/5PPP/3R2K1 w - - 7", "6k1/5ppp/8/8/8/8/5PPP/3R2K1 w - - 7 1"),
    ("6k1/5ppp/8/8/8/8/5PPP/3R2K1 B - - - -", "6k1/5ppp/8/8/8/8/5PPP/3R2K1 b - - 0 1"),
    (" 6k1/5ppp/8/8/8/8/5PPP/3R2K1\tw  - - 3 0 \n", "6k1/5ppp/8/8/8/8/5PPP/3R2K1 w - - 3 1"),
    ("r3k2r/8/8/8/8/8/8/R3K2R w kqKQ - 0 1", CASTLING), ("r3k2r/8/8/8/8/8/8/R3K2R w HAha - 0 1", CASTLING),
    ("r3k2r/8/8/8/8/8/8/R3K2R w HQKkqq - 0 1", CASTLING),
    # A king or a rook that is not at home.
    ("4k2r/8/8/8/8/8/8/R2K4 w KQkq - 0 1", "4k2r/8/8/8/8/8/8/R2K4 w k - 0 1"),
    ("bbrknnrq/8/8/8/8/8/8/BBRKNNRQ w GCgc - 0 1", "bbrknnrq/8/8/8/8/8/8/BBRKNNRQ w - - 0 1"),
    # No pawn has just made two steps; the second square would also make the check impossible.
    ("4k3/8/8/8/4P3/8/8/4K3 w - e3 0 1", "4k3/8/8/8/4P3/8/8/4K3 w - - 0 1"),
    ("4k3/8/8/8/4r3/8/3P4/4K3 w - d6 0 1", "4k3/8/8/8/4r3/8/3P4/4K3 w - - 0 1"),
    ("rnbqkbnr/ppp1pppp/8/8/3pP3/8/PPPP1PPP/RNBQKBNR b KQkq E3 0 3",
     "rnbqkbnr/ppp1pppp/8/8/3pP3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 3"),
])  # fmt: skip
def test_lenient_reader_takes_what_is_unambiguous(text: str, fen: str) -> None:
    assert lenient_fen(text).fen() == fen and is_valid_fen(fen)
    assert text == fen or not is_valid_fen(text) or chess.Board(text).fen() == fen


@pytest.mark.parametrize(("text", "message"), [
    ("", "four to six fields"), ("8/8/8/8/8/8/8/K1k5 w", "four to six fields"),
    ("8/8/8/8/8/8/8/K1k5 w - - 0 1 2", "four to six fields"), ("8/8/8/8/8/8/8/K1k5 w KQkq 0 1", "en-passant square"),
    ("8/8/8/8/8/8/8/K1k5 w x - 0 1", "castling"), ("8/8/8/8/8/8/8/K1k5 w - e9 0 1", "en-passant square"),
    ("8/8/8/8/8/8/8/K1k5 x - - 0 1", "expected 'w' or 'b'"), ("8/8/8/8/8/8/8/K1k5 w - - 0 -1", "counters"),
    ("8/8/8/8/8/8/8/Kk6 w - - 0 1", "impossible position: opposite check"),
])  # fmt: skip
def test_lenient_reader_names_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lenient_fen(text)


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=80), FIELDS))
def test_lenient_reader_gives_a_strict_fen_or_raises_value_error(text: str) -> None:
    try:
        board = lenient_fen(text)
    except ValueError:
        assert not is_valid_fen(text)
        return
    assert is_valid_fen(board.fen()) and (not is_valid_fen(text) or board == parse_fen(text))


@pytest.mark.parametrize("counters", ["", " 0", " 0 1", " - -", "  0  1  "])
def test_reader_of_data_adds_missing_counters(counters: str) -> None:
    assert read_fen(f" 8/8/8/8/8/8/8/K1k5\tw -  -{counters}").fen() == "8/8/8/8/8/8/8/K1k5 w - - 0 1"
    assert read_fen("8/8/8/8/8/8/8/K1k5 w - - 12 34").fen() == "8/8/8/8/8/8/8/K1k5 w - - 12 34"


@pytest.mark.parametrize("text", ["", "8/8/8/8/8/8/8/K1k5 w -", "8/8/8/8/8/8/8/K1k5 w - - x", f"{AFTER_E4} 1"])
def test_reader_of_data_refuses_what_is_ambiguous(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        read_fen(text)

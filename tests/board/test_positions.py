from collections.abc import Callable
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.board.openings import OPENINGS, opening_board
from rookworld_rlvr.board.positions import (
    positions_from_file,
    positions_from_pgn,
)

ENDGAME = "8/8/8/4k3/8/8/4P3/4K3 w - - 3 60"
PGN = """[Event "One"]

1. e4 e5 {a comment} 2. Nf3 (2. Bc4 Nc6) 2... Nc6 1-0

[Event "Two"]
[SetUp "1"]
[FEN "8/8/8/4k3/8/8/4P3/4K3 w - - 3 60"]

60. e3 Ke4 *
"""
FOOLS_MATE = "1. f3 e5 2. g4 Qh4# 0-1\n"
Writer = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_openings_are_legal_and_distinct() -> None:
    assert len(OPENINGS) >= 60
    boards = [chess.Board() for _ in OPENINGS]
    for board, opening in zip(boards, OPENINGS, strict=True):
        for uci in opening.moves.split():
            assert uci in {move.uci() for move in board.legal_moves}, opening
            board.push_uci(uci)
    assert len({board.epd() for board in boards}) == len({opening.name for opening in OPENINGS}) == len(OPENINGS)
    assert [opening_board(opening).fen() for opening in OPENINGS] == [board.fen() for board in boards]


def test_opening_boards_are_independent_and_keep_their_moves() -> None:
    board = opening_board(OPENINGS[0])
    assert [move.uci() for move in board.move_stack] == ["e2e4", "e7e5", "g1f3", "b8c6", "f1b5"]
    board.push_uci("a7a6")
    assert opening_board(OPENINGS[0]).fen() != board.fen()


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("Two Knights, Fried Liver Attack", "r1bqkb1r/ppp2Npp/2n5/3np3/2B5/8/PPPP1PPP/RNBQK2R"),
        ("Sicilian, Najdorf", "rnbqkb1r/1p2pppp/p2p1n2/8/3NP3/2N5/PPP2PPP/R1BQKB1R"),
        ("Grünfeld Defence", "rnbqkb1r/ppp1pp1p/6p1/8/3PP3/2P5/P4PPP/R1BQKBNR"),
    ],
)
def test_named_openings_reach_their_known_positions(name: str, placement: str) -> None:
    assert opening_board(next(o for o in OPENINGS if o.name == name)).board_fen() == placement


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.fen", f"{chess.STARTING_FEN}\n\n  {ENDGAME}\n"),
        ("a.txt", f"\ufeff{chess.STARTING_FEN}\r\n{ENDGAME}"),
        (
            "a.epd",
            "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq -\n"
            '8/8/8/4k3/8/8/4P3/4K3 w - - hmvc 3; fmvn 60; bm e3; id "x";\n',
        ),
        ("a.jsonl", f'{{"fen": "{chess.STARTING_FEN}", "rating": 1}}\n{{"fen": "{ENDGAME}"}}\n'),
    ],
)
def test_each_file_type_yields_its_positions_in_order(write: Writer, name: str, text: str) -> None:
    assert list(positions_from_file(write(name, text))) == [
        chess.STARTING_FEN,
        ENDGAME,
    ]


def test_positions_are_printed_as_python_chess_prints_them(write: Writer) -> None:
    phantom = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1"
    assert next(positions_from_file(write("a.fen", phantom))) == phantom.replace(" e3 ", " - ")


@pytest.mark.parametrize(
    ("name", "bad", "expected"),
    [
        ("a.fen", "8/8/8/8 w - - 0 1", "expected 8 rows in position part of fen"),
        ("a.txt", "8/8/8/8/8/8/8/K1k5 w -", "expected a FEN of six fields, or of four"),
        ("a.txt", "8/8/8/8/8/8/8/8 w - - 0 1", "impossible position"),
        ("a.epd", "8/8/8/8 w - -", "expected an EPD record"),
        ("a.epd", "8/8/8/8/8/8/8/K1k5 w - - fmvn 1000000;", "counters of one to six digits"),
        ("a.jsonl", '{"FEN": "x"}', "expected a JSON object with a FEN under 'fen'"),
        ("a.jsonl", "[" * 100_000, "expected a JSON object with a FEN under 'fen'"),
        ("a.jsonl", '{"fen": "x"}', "expected a FEN of six fields"),
    ],
)
def test_error_of_malformed_position_names_file_and_line(write: Writer, name: str, bad: str, expected: str) -> None:
    good = {".epd": "8/8/8/8/8/8/8/K1k5 w - -", ".jsonl": f'{{"fen": "{ENDGAME}"}}'}.get(name[1:], ENDGAME)
    path = write(name, f"{good}\n\n{bad}\n")
    positions = positions_from_file(path)
    next(positions)
    with pytest.raises(ValueError) as caught:
        next(positions)
    assert expected in str(caught.value)
    assert f"{path}:3" in str(caught.value)


def test_undecodable_bytes_raise_error_with_line_number(tmp_path: Path) -> None:
    (tmp_path / "a.fen").write_bytes(b"\xff\xfe\x00\n")
    with pytest.raises(ValueError, match=r"a\.fen:1"):
        next(positions_from_file(tmp_path / "a.fen"))


def test_unknown_suffix_is_refused_before_reading(write: Writer) -> None:
    with pytest.raises(ValueError, match=r"expected a file of type \.fen, \.txt, \.epd, \.jsonl, \.csv, got .*a\.tsv"):
        positions_from_file(write("a.tsv", ""))


def test_pgn_yields_the_main_lines(write: Writer) -> None:
    expected = []
    for start, moves in ((chess.STARTING_FEN, ("e2e4", "e7e5", "g1f3", "b8c6")), (ENDGAME, ("e2e3", "e5e4"))):
        board = chess.Board(start)
        expected.append(board.fen())
        for move in moves:
            board.push_uci(move)
            expected.append(board.fen())
    positions = list(positions_from_pgn(write("a.pgn", PGN)))
    assert positions == expected
    assert positions[4] == "r1bqkbnr/pppp1ppp/2n5/4p3/4P3/5N2/PPPP1PPP/RNBQKB1R w KQkq - 2 3"


def test_pgn_leaves_out_a_position_that_ended_the_game(write: Writer) -> None:
    assert len(list(positions_from_pgn(write("a.pgn", FOOLS_MATE)))) == 4


def test_an_empty_pgn_file_yields_nothing(write: Writer) -> None:
    assert list(positions_from_pgn(write("a.pgn", "\n\n"))) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PGN + '\n[Event "Three"]\n\n1. e4 e5\n2. Ke3 *\n', "illegal san: 'Ke3'"),
        ("no chess here\n", "neither tags nor moves"),
        ('[Variant "Atomic"]\n\n1. e4 *\n', "standard chess"),
        ('[Variant "Chess960"]\n[FEN "' + chess.STARTING_FEN + '"]\n\n1. e4 *\n', "standard chess"),
        ('[FEN "8/8/8/8/8/8/8/8 w - - 0 1"]\n\n*\n', "valid position"),
        ('[FEN "nonsense"]\n\n*\n', "nonsense"),
    ],
)
def test_error_of_malformed_game_names_file_and_line(write: Writer, text: str, expected: str) -> None:
    path = write("a.pgn", text)
    with pytest.raises(ValueError, match=r"expected .*, got .*a\.pgn:\d+") as caught:
        list(positions_from_pgn(path))
    assert expected in str(caught.value)


def test_error_of_illegal_pgn_move_names_its_line(write: Writer) -> None:
    with pytest.raises(ValueError, match=r"a\.pgn:4"):
        list(positions_from_pgn(write("a.pgn", '[Event "?"]\n\n1. e4 e5\n2. Ke3 Nc6\n3. d4 *\n')))

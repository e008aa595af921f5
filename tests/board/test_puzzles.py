"""Reading of Lichess's puzzles."""

from pathlib import Path

import chess
import pytest

from rookworld_rlvr.board.positions import positions_from_file
from rookworld_rlvr.board.puzzles import COLUMNS, read_puzzles

HEADER = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags"
# Two lines of the published file.
LONG = (
    "00008,r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24,f2g3 e6e7 b2b1 b3c1 b1c1 h6c1,1811,75,95,8000,"
    '"crushing hangingPiece, long",https://lichess.org/787zsVup/black#48,'
)
SHORT = "000Pw,6k1/5p1p/4p3/4q3/3nN3/2Q3P1/PP3P1P/6K1 w - - 2 37,e4d2 d4e2 g1f1 e2c3,1530,75,91,400,fork,,"


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_puzzle_begins_after_the_first_move_and_keeps_the_rest(tmp_path: Path) -> None:
    long, short = read_puzzles(write(tmp_path / "a.csv", HEADER, LONG, "", SHORT))
    assert long.fen == "r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2b1/PqP3PP/7K w - - 0 25"
    assert (long.name, long.moves, long.rating) == ("00008", ("e6e7", "b2b1", "b3c1", "b1c1", "h6c1"), 1811)
    assert short.moves == ("d4e2", "g1f1", "e2c3") and short.rating == 1530
    assert str(short) == f"000Pw {short.fen} d4e2 g1f1 e2c3"


def test_columns_are_found_by_name_in_any_order(tmp_path: Path) -> None:
    fen, moves = SHORT.split(",")[1:3]
    path = write(tmp_path / "a.csv", "\ufeffRating,Moves,Themes,FEN,PuzzleId", f"1530,{moves},fork,{fen},000Pw")
    assert list(read_puzzles(path)) == list(read_puzzles(write(tmp_path / "b.csv", HEADER, SHORT)))


def test_file_of_puzzles_is_a_source_of_the_solvers_positions(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", HEADER, LONG, SHORT)
    positions = list(positions_from_file(path))
    assert positions == [puzzle.fen for puzzle in read_puzzles(path)]
    assert [chess.Board(fen).turn for fen in positions] == [chess.WHITE, chess.BLACK]


@pytest.mark.parametrize(
    ("changed", "to", "expected"),
    [
        ("e4d2", "e4d3", "expected a line of legal moves, got 'e4d3' in '6k1/5p1p"),
        ("e2c3", "e2c4", "expected a line of legal moves, got 'e2c4'"),
        (" e2c3", "", "expected a line of 2, 4, … moves, got 'e4d2 d4e2 g1f1'"),
        ("e4d2 d4e2 g1f1 e2c3", "", "expected a line of 2, 4, … moves, got ''"),
        ("1530", "high", "invalid literal for int"),
        ("6k1/", "", "expected 8 rows in position part of fen"),
        (SHORT[5:], "", "expected a FEN of six fields"),
    ],
)
def test_error_of_malformed_puzzle_names_file_and_line(tmp_path: Path, changed: str, to: str, expected: str) -> None:
    path = write(tmp_path / "a.csv", HEADER, LONG, SHORT.replace(changed, to, 1))
    puzzles = read_puzzles(path)
    next(puzzles)
    with pytest.raises(ValueError) as caught:
        next(puzzles)
    assert expected in str(caught.value) and f"{path}:3" in str(caught.value)


@pytest.mark.parametrize("text", ["", "fen,moves\n", "P: 8/8/8/8/8/8/8/K1k5 w - - 0 1\n"])
def test_file_without_the_columns_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"expected a CSV file, .* columns {', '.join(COLUMNS)}, got .* in {path}"):
        next(read_puzzles(path))


def test_compressed_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd\x00\x00\x0d\x0a" * 50)
    with pytest.raises(ValueError, match="expected a CSV file, not compressed") as caught:
        next(read_puzzles(path))
    assert "\n" not in str(caught.value)

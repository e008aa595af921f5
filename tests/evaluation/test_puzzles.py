"""The suite of Lichess's puzzles: its rules, its bands, and the puzzles that are left out."""

from collections.abc import Callable, Sequence
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.board.fen import parse_fen, position_key
from rookworld_rlvr.board.puzzles import Puzzle
from rookworld_rlvr.evaluation.engine_player import OpponentConfig, engine_player
from rookworld_rlvr.evaluation.players import RandomPlayer
from rookworld_rlvr.evaluation.puzzles import choose_puzzles, puzzle_suite
from rookworld_rlvr.evaluation.suite import suite_table
from rookworld_rlvr.evaluation.table import Row
from rookworld_rlvr.tasks import task_named

HEADER = "PuzzleId,FEN,Moves,Rating"
LINES = (
    "00008,r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24,f2g3 e6e7 b2b1 b3c1 b1c1 h6c1,1811",
    "000Pw,6k1/5p1p/4p3/4q3/3nN3/2Q3P1/PP3P1P/6K1 w - - 2 37,e4d2 d4e2 g1f1 e2c3,999",
    # Four queen moves mate.
    "mate1,7k/p4Q2/6K1/8/8/8/8/8 b - - 0 1,a7a6 f7g7,2000",
)


@pytest.fixture
def puzzles(tmp_path: Path) -> list[Puzzle]:
    (tmp_path / "puzzles.csv").write_text("\n".join([HEADER, *LINES]))
    return list(choose_puzzles(str(tmp_path / "puzzles.csv"), (), 99).puzzles)


class Says:
    """A player that answers by game number and by place in the line, and counts its batches."""

    def __init__(self, *answers: str) -> None:
        self._answers = [line.split() for line in answers]
        self.batches: list[list[int]] = []

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        self.batches.append(list(numbers))
        return [self._answers[number][len(self.batches) - 1] for number in numbers]


def rows_of(player: Says, puzzles: Sequence[Puzzle]) -> list[Row]:
    return [row for chunk in puzzle_suite(player, puzzles).rows(0) for row in chunk]


def scores(row: Row) -> tuple[float, ...]:
    return tuple(row.values[f"puzzles/{name}"] for name in ("first_move", "solved", "legal"))


def test_right_lines_are_solved_in_as_many_batches_as_the_longest_has_moves(puzzles: list[Puzzle]) -> None:
    player = Says("e6e7 b3c1 h6c1", "d4e2 e2c3", "f7g7")
    assert [scores(row) for row in rows_of(player, puzzles)] == [(1, 1, 1)] * 3
    assert player.batches == [[0, 1, 2], [0, 1], [0]]


def test_first_wrong_move_ends_a_puzzle_and_is_the_rows_completion(puzzles: list[Puzzle]) -> None:
    player = Says("e6e7 b3c2 h6c1", "e5e4 e2c3", "nonsense")
    rows = rows_of(player, puzzles)
    assert [scores(row) for row in rows] == [(1, 0, 1), (0, 0, 1), (0, 0, 0)]
    assert player.batches == [[0, 1, 2], [0]]
    written = [(row.written.expected, row.written.completion) for row in rows if row.written]
    assert written == [("b3c1", "b3c2"), ("d4e2", "e5e4"), ("f7g7", "nonsense")]
    # The prompt is the position after the right first move and the reply to it.
    assert rows[0].written and rows[0].written.prompt == "P: r6k/pp2R2p/5p1Q/3p4/8/1N1P2b1/P1P3PP/1q5K w - - 1 26"


def test_row_has_the_prompt_that_its_player_reads(puzzles: list[Puzzle]) -> None:
    task = task_named("chat")
    suite = puzzle_suite(Says("f7g7"), puzzles[2:], prompt=task.prompt)
    [row] = [row for rows in suite.rows(0) for row in rows]
    assert row.written and row.written.prompt == task.prompt(puzzles[2].fen)


@pytest.mark.parametrize("move", ["f7g7", "f7f8", "f7h7", "f7e8"])
def test_every_mate_solves_a_puzzle(move: str, puzzles: list[Puzzle]) -> None:
    assert [scores(row) for row in rows_of(Says(move), puzzles[2:])] == [(1, 1, 1)]


def test_mate_before_the_end_of_the_line_solves_the_puzzle(puzzles: list[Puzzle]) -> None:
    longer = Puzzle("mate2", puzzles[2].fen, ("f7a7", "h8g8", "a7g7"), 1500)
    player = Says("f7g7 never")
    assert [scores(row) for row in rows_of(player, [longer])] == [(1, 1, 1)] and len(player.batches) == 1


def test_keys_exist_by_band_of_rating_and_by_slice(puzzles: list[Puzzle]) -> None:
    rows = rows_of(Says("e6e7 b3c1 h6c1", "e5e4", "f7g7"), puzzles)
    bands = [{key.split("/")[2] for key in row.values if key.startswith("puzzles/solved/")} for row in rows]
    assert bands[0] == {"1500_2000", "white", "middlegame"} and "below_1000" in bands[1] and "2000_up" in bands[2]
    table = suite_table(puzzle_suite(RandomPlayer(), puzzles), rows)
    assert table["puzzles/solved"].value == 2 / 3 and table["puzzles/solved"].n == 3
    assert table["puzzles/solved/2000_up"].value == 1.0 and table["puzzles/solved/below_1000"].value == 0.0


def test_puzzles_of_training_positions_are_left_out_and_counted(tmp_path: Path, puzzles: list[Puzzle]) -> None:
    path = str(tmp_path / "puzzles.csv")
    trained = {position_key(parse_fen(puzzles[0].fen))}
    chosen = choose_puzzles(path, trained, 1)
    assert (chosen.puzzles, chosen.left_out) == ([puzzles[1]], 1)
    chosen = choose_puzzles(path, {position_key(parse_fen(puzzle.fen)) for puzzle in puzzles}, 9)
    assert (chosen.puzzles, chosen.left_out) == ([], 3)


def test_file_is_read_only_as_far_as_its_puzzles_are_needed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("\n".join([HEADER, LINES[0], LINES[0], LINES[1], "broken"]))
    assert [puzzle.name for puzzle in choose_puzzles(str(tmp_path / "a.csv"), (), 2).puzzles] == ["00008", "000Pw"]
    with pytest.raises(ValueError, match=r"a\.csv:5"):
        choose_puzzles(str(tmp_path / "a.csv"), (), 3)


def test_file_without_puzzles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"{HEADER}\n")
    with pytest.raises(ValueError, match=r"expected puzzles in .*a\.csv, got none"):
        choose_puzzles(str(tmp_path / "a.csv"), (), 3)


def test_stockfish_solves_most_published_puzzles_and_a_random_player_hardly_any(
    stockfish: str, shared_file: Callable[[str], Path]
) -> None:
    some = choose_puzzles(str(shared_file("lichess_puzzles.csv")), (), 40).puzzles
    with engine_player(OpponentConfig(nodes=20_000, skill=20)) as player:
        suite = puzzle_suite(player, some)
        strong = suite_table(suite, [row for chunk in suite.rows(0) for row in chunk])
    suite = puzzle_suite(RandomPlayer(), some)
    weak = suite_table(suite, [row for chunk in suite.rows(0) for row in chunk])
    assert strong["puzzles/solved"].value >= 0.9 and strong["puzzles/first_move"].value >= 0.9
    assert weak["puzzles/solved"].value <= 0.1 and weak["puzzles/legal"].value == 1.0

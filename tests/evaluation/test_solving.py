"""Mates in one and puzzles: reading their files, and what counts as solved."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.evaluation import Row, summarise
from rookworld_rlvr.evaluation.engine_player import OpponentConfig, engine_player
from rookworld_rlvr.evaluation.mate_in_one import MateInOneConfig, mate_in_one_suite, read_mates
from rookworld_rlvr.evaluation.players import RandomPlayer
from rookworld_rlvr.evaluation.puzzles import Puzzle, PuzzlesConfig, puzzles_suite, read_puzzles
from rookworld_rlvr.evaluation.suite import Suite

# Four queen moves mate.
MATE = "7k/5Q2/6K1/8/8/8/8/8 w - - 0 1"
BLACK = "7k/8/8/8/5q2/8/8/K7 b - - 0 1"
BACK_RANK = "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"
# Scholar's mate: the target is the only one.
BIGBENCH = {"examples": [{"input": "1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4.", "target": "Qxf7#", "target_scores": {}}]}
LICHESS = (
    "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags\n"
    "00sHx,q3k1nr/1pp1nQpp/3p4/1P2p3/4P3/B1PP1b2/B5PP/5K2 b k - 0 17,e8d7 a2e6 d7d8 f7f8,1760,80,83,72,"
    "mate mateIn2 middlegame short,u,\n"
)


def rows_of(suite: Suite, done: int = 0) -> list[Row]:
    return [row for chunk in suite.rows(done) for row in chunk]


class Says:
    """Answers by FEN."""

    def __init__(self, answers: dict[str, str]) -> None:
        self._answers = answers

    def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
        return [self._answers.get(board.fen(), "") for board in boards]


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def mate_values(tmp_path: Path, text: str) -> dict[str, float]:
    mates = read_mates(write(tmp_path / "m.jsonl", {"fen": MATE, "best": "f7g7"}))
    [row] = rows_of(mate_in_one_suite(Says({MATE: text}), mates))
    own = {key.split("/")[1]: value for key, value in row.values.items() if key.count("/") == 1}
    for part in ("white", "endgame"):
        assert {name: row.values[f"mate_in_one/{name}/{part}"] for name in own} == own
    assert len(row.values) == 3 * len(own)
    return own


@pytest.mark.parametrize(
    ("text", "accuracy", "exact", "legal"),
    [("f7g7", 1, 1, 1), ("f7f8", 1, 0, 1), ("f7a7", 0, 0, 1), ("f7a1", 0, 0, 0), ("Qg7", 0, 0, 0), ("", 0, 0, 0)],
)
def test_any_mating_move_counts_and_exact_match_stands_beside_it(
    tmp_path: Path, text: str, accuracy: float, exact: float, legal: float
) -> None:
    assert mate_values(tmp_path, text) == {"accuracy": accuracy, "exact": exact, "legal": legal}


def test_bigbench_s_own_file_is_read_and_a_row_that_stands_twice_is_asked_once(tmp_path: Path) -> None:
    task = write(tmp_path / "task.json", BIGBENCH)
    [mate] = read_mates(task)
    assert mate.best == "h5f7" and mate.fen.startswith("r1bqkb1r/pppp1ppp/2n2n2/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq")
    row = {"fen": MATE, "best": "f7g7"}
    assert len(read_mates(write(tmp_path / "m.jsonl", row, row))) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"fen": MATE, "best": "f7a7"}], r"a move that mates at .*m.jsonl:1, got 'f7a7'"),
        ([{"fen": MATE, "best": "f7g7"}, {"fen": "x", "best": "f7g7"}], r"fen and best at .*m.jsonl:2"),
        ([{"fen": MATE}], r"fen and best at .*m.jsonl:1"),
        ([[1]], r"fen and best at .*m.jsonl:1"),
        ([], r"a mate in one in .*m.jsonl, got none"),
    ],
)
def test_a_row_that_is_no_mate_in_one_is_named(tmp_path: Path, rows: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_mates(write(tmp_path / "m.jsonl", *rows))


@pytest.mark.parametrize(
    "bad", [{}, {"examples": [{"input": "1. e4"}]}, {"examples": [{"input": "1. e4", "target": "Qh9"}]}]
)
def test_a_file_that_is_none_of_bigbench_s_is_refused(tmp_path: Path, bad: object) -> None:
    named = r"expected (BIG-bench's task.json|moves as input and a move as target at .*task.json, example 1)"
    with pytest.raises(ValueError, match=named):
        read_mates(write(tmp_path / "task.json", bad))


def puzzle_of(*steps: tuple[str, str], rating: int | None = None, themes: tuple[str, ...] = ()) -> Puzzle:
    return Puzzle("p", steps, rating, themes)


def solved(puzzle: Puzzle, answers: dict[str, str]) -> tuple[float, float, float]:
    [row] = rows_of(puzzles_suite(Says(answers), [puzzle]))
    return tuple(row.values[f"puzzles/{name}"] for name in ("accuracy", "first_move", "legal"))  # type: ignore[return-value]


def test_lichess_s_columns_begin_with_the_opponent_s_move(tmp_path: Path) -> None:
    path = tmp_path / "lichess.csv"
    path.write_text(LICHESS)
    [puzzle] = read_puzzles(path)
    first, second = puzzle.steps
    assert (puzzle.rating, puzzle.themes[1], first[1], second[1]) == (1760, "mateIn2", "a2e6", "f7f8")
    assert first[0] == "q5nr/1ppknQpp/3p4/1P2p3/4P3/B1PP1b2/B5PP/5K2 w - - 1 18"
    assert solved(puzzle, {first[0]: "a2e6", second[0]: "f7f8"}) == (1, 1, 1)
    assert solved(puzzle, {first[0]: "a2e6", second[0]: "f7e8"}) == (0, 1, 1)
    assert solved(puzzle, {first[0]: "a2b1", second[0]: "f7f8"}) == (0, 0, 1)
    assert solved(puzzle, {first[0]: "a2a9"}) == (0, 0, 0)


def test_any_mate_is_accepted_and_ends_the_puzzle_though_more_moves_were_asked() -> None:
    two_turns = puzzle_of((MATE, "f7f6"), (BACK_RANK, "a1a8"))
    assert solved(two_turns, {MATE: "f7h7"}) == (1, 1, 1)
    assert solved(two_turns, {MATE: "f7f6", BACK_RANK: "a1a8"}) == (1, 1, 1)
    assert solved(two_turns, {MATE: "f7f6", BACK_RANK: "a1a7"}) == (0, 1, 1)


def test_accuracy_is_told_by_band_and_by_the_themes_asked_for() -> None:
    puzzle = puzzle_of((MATE, "f7g7"), rating=1200, themes=("mateIn1", "endgame", "short"))
    [row] = rows_of(puzzles_suite(Says({MATE: "f7g7"}), [puzzle], themes=["mateIn1", "fork"]))
    own = ("accuracy", "first_move", "legal")
    parts = [f"{key}/{part}" for key in own for part in ("white", "endgame")]
    assert row.values == {
        f"puzzles/{key}": 1.0 for key in (*own, *parts, "accuracy/rated_1200_1599", "accuracy/theme_mateIn1")
    }


def test_a_puzzle_belongs_to_the_position_the_solver_is_asked_first(tmp_path: Path) -> None:
    path = tmp_path / "lichess.csv"
    path.write_text(LICHESS)
    puzzles = [*read_puzzles(path), puzzle_of((BLACK, "f4f3"), (MATE, "f7g7"))]
    table = summarise(rows_of(puzzles_suite(Says({BLACK: "f4f3", MATE: "f7g7"}), puzzles)))
    keys = ("white", "black", "opening", "middlegame", "endgame")
    found = {key: table[f"puzzles/accuracy/{key}"] for key in keys if f"puzzles/accuracy/{key}" in table}
    # The file's position has Black to move; the solver's first has White.
    assert {key: (measure.value, measure.n) for key, measure in found.items()} == {
        "white": (0.0, 1),
        "black": (1.0, 1),
        "middlegame": (0.0, 1),
        "endgame": (1.0, 1),
    }


def test_the_lines_of_one_id_are_the_turns_of_one_puzzle(tmp_path: Path) -> None:
    after = "7k/5Q2/8/5K2/8/8/8/8 w - - 2 2"
    first, second = {"fen": "8/5Q1k/8/4K3/8/8/8/8 w - - 0 1", "best": "e5f5"}, {"fen": after, "best": "f5g6"}
    later, sooner = {**second, "id": "a", "ply": 3}, {**first, "id": "a", "ply": 1, "rating": 900, "themes": ["x"]}
    [one, two] = read_puzzles(write(tmp_path / "p.jsonl", later, first, sooner))
    assert [len(one.steps), len(two.steps)] == [2, 1]
    assert (one.rating, one.themes, one.steps[1]) == (900, ("x",), (after, "f5g6"))
    with pytest.raises(ValueError, match=r"expected the turn that follows e5f5 in .* at .*:2, got '7k"):
        read_puzzles(write(tmp_path / "q.jsonl", sooner, {**later, "fen": MATE, "best": "f7g7"}))


def test_the_square_behind_a_double_step_may_be_named_though_nobody_can_take_there(tmp_path: Path) -> None:
    first = {"fen": "4k3/7p/8/8/8/8/4P3/4K2R w K - 0 1", "best": "e2e3", "id": "a", "ply": 1}
    second = {"fen": "4k3/8/8/7p/8/4P3/8/4K2R w K h6 0 2", "best": "h1h5", "id": "a", "ply": 3}
    [puzzle] = read_puzzles(write(tmp_path / "p.jsonl", first, second))
    assert puzzle.steps[1] == ("4k3/8/8/7p/8/4P3/8/4K2R w K - 0 2", "h1h5")
    assert solved(puzzle, {first["fen"]: "e2e3", puzzle.steps[1][0]: "h1h5"}) == (1, 1, 1)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"fen": MATE, "best": "f7g7", "ply": "x"}, "at .*:1.*the ply 'x', which is not a number"),
        ({"fen": MATE, "best": "f7a1"}, "a legal best at .*:1.*the illegal move 'f7a1'"),
        ({"fen": MATE, "best": "f7g7", "rating": "high"}, "a rating that is not a number"),
        ({"best": "f7g7"}, "a legal best at .*:1"),
    ],
)
def test_a_line_that_is_no_puzzle_is_named(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_puzzles(write(tmp_path / "p.jsonl", row))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("e8d7", "e8e5"),
        ("1760", "high"),
        ("Moves", "Lines"),
        ("e8d7 a2e6 d7d8 f7f8", "e8d7"),
        # Cut short, as by a download that broke off.
        ("d7d8 f7f8,1760,80,83,72,mate mateIn2 middlegame short,u,\n", ""),
        (",e8d7 a2e6 d7d8 f7f8,1760,80,83,72,mate mateIn2 middlegame short,u,\n", ""),
        ("mate mateIn2", "x" * 140_000),
    ],
)
def test_a_csv_that_is_none_of_lichess_s_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "lichess.csv"
    path.write_text(LICHESS.replace(old, new))
    with pytest.raises(ValueError, match=r"expected Lichess's puzzles at .*lichess.csv:[012], got "):
        read_puzzles(path)


@pytest.mark.parametrize("config", [MateInOneConfig, PuzzlesConfig])
def test_a_limit_of_nothing_is_refused(config: type) -> None:
    with pytest.raises(ValueError, match="limit: expected 1 or more, or null, got 0"):
        config(limit=0)


def test_the_random_mover_s_accuracy_is_the_expectation_by_enumeration(shared_file: Callable[[str], Path]) -> None:
    mates = read_mates(shared_file("mate_in_one.jsonl"))
    expected = 0.0
    for mate in mates:
        board = chess.Board(mate.fen)
        after = [board.copy(stack=False) for _ in board.legal_moves]
        for copy, move in zip(after, board.legal_moves, strict=True):
            copy.push(move)
        expected += sum(copy.is_checkmate() for copy in after) / len(after) / len(mates)
    table = summarise(rows_of(mate_in_one_suite(RandomPlayer(), mates)))
    measured = table["mate_in_one/accuracy"]
    assert measured.low < expected < measured.high and measured.high - measured.low < 0.02
    assert table["mate_in_one/legal"].value == 1.0


def test_rows_already_there_are_left_out_and_the_others_are_the_same(shared_file: Callable[[str], Path]) -> None:
    mates = read_mates(shared_file("mate_in_one.jsonl"))[:600]
    asked = read_puzzles(shared_file("puzzles.jsonl"))
    for suite in (mate_in_one_suite(RandomPlayer(), mates), puzzles_suite(RandomPlayer(), asked)):
        whole = rows_of(suite)
        assert rows_of(suite, 256) == whole[256:] and [row.index for row in whole] == list(range(len(whole)))


def test_stockfish_solves_the_mates_and_nearly_all_puzzles_and_the_random_mover_nearly_none(
    shared_file: Callable[[str], Path], stockfish: str
) -> None:
    mates = read_mates(shared_file("mate_in_one.jsonl"))[::20]
    asked = read_puzzles(shared_file("puzzles.jsonl"))
    assert len(asked) == 517 and sum(len(puzzle.steps) for puzzle in asked) == 1142
    with engine_player(OpponentConfig(nodes=1000, skill=20)) as player:
        mated = summarise(rows_of(mate_in_one_suite(player, mates)))
        found = summarise(rows_of(puzzles_suite(player, asked[::10])))
    assert mated["mate_in_one/accuracy"].value >= 0.99
    assert found["puzzles/accuracy"].value > 0.8
    assert summarise(rows_of(puzzles_suite(RandomPlayer(), asked)))["puzzles/accuracy"].value < 0.05

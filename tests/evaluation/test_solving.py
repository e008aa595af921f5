"""Mates in one: reading their files, and scoring the answers."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.evaluation.engine_player import OpponentConfig, engine_player
from rookworld_rlvr.evaluation.mate_in_one import mate_in_one_suite, read_mates
from rookworld_rlvr.evaluation.players import RandomPlayer
from rookworld_rlvr.evaluation.suite import Suite
from rookworld_rlvr.evaluation.table import Row, summarise

# Four queen moves mate.
MATE = "7k/5Q2/6K1/8/8/8/8/8 w - - 0 1"
BLACK = "7k/8/8/8/5q2/8/8/K7 b - - 0 1"
BACK_RANK = "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"
# Scholar's mate: the target is the only mate.
BIGBENCH = {"examples": [{"input": "1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4.", "target": "Qxf7#", "target_scores": {}}]}


def rows_of(suite: Suite, done: int = 0) -> list[Row]:
    return [row for chunk in suite.rows(done) for row in chunk]


class Says:
    """A player that answers by FEN."""

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
def test_any_mating_move_is_accurate_and_exact_match_is_separate(
    tmp_path: Path, text: str, accuracy: float, exact: float, legal: float
) -> None:
    assert mate_values(tmp_path, text) == {"accuracy": accuracy, "exact": exact, "legal": legal}


def test_bigbench_file_is_read_and_duplicate_row_is_kept_once(tmp_path: Path) -> None:
    task = write(tmp_path / "task.JSON", BIGBENCH)
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
def test_error_names_the_row_without_a_mate_in_one(tmp_path: Path, rows: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_mates(write(tmp_path / "m.jsonl", *rows))


@pytest.mark.parametrize(
    "bad", [{}, {"examples": [{"input": "1. e4"}]}, {"examples": [{"input": "1. e4", "target": "Qh9"}]}]
)
def test_file_in_other_format_than_bigbench_is_refused(tmp_path: Path, bad: object) -> None:
    named = r"expected (BIG-bench's task.json|moves as input and a move as target at .*task.json, example 1)"
    with pytest.raises(ValueError, match=named):
        read_mates(write(tmp_path / "task.json", bad))


def test_random_player_accuracy_matches_enumerated_expectation(shared_file: Callable[[str], Path]) -> None:
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


def test_resumed_mate_suite_skips_finished_rows_and_repeats_the_rest(shared_file: Callable[[str], Path]) -> None:
    suite = mate_in_one_suite(RandomPlayer(), read_mates(shared_file("mate_in_one.jsonl"))[:600])
    whole = rows_of(suite)
    assert rows_of(suite, 256) == whole[256:] and [row.index for row in whole] == list(range(len(whole)))


def test_stockfish_solves_the_mates(shared_file: Callable[[str], Path], stockfish: str) -> None:
    mates = read_mates(shared_file("mate_in_one.jsonl"))[::20]
    with engine_player(OpponentConfig(nodes=1000, skill=20)) as player:
        mated = summarise(rows_of(mate_in_one_suite(player, mates)))
    assert mated["mate_in_one/accuracy"].value >= 0.99

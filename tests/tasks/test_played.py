"""Rows of played games, by hand."""

import pytest

from rookworld_rlvr.board.fen import parse_fen
from rookworld_rlvr.tasks.corpus import parse_row, split_line
from rookworld_rlvr.tasks.environment import environment_truth, parse_environment, parse_environment_prompt
from rookworld_rlvr.tasks.played import GameRecord, Turn, position_rows, transition_lines, winner_lines
from rookworld_rlvr.tasks.types import EnvironmentCompletion, Example, Task


def turn(uci: str, answer: str | None = None) -> Turn:
    return Turn(f"M: {uci} E: 0.5 B: {uci}" if answer is None else answer, uci, uci)


# Fool's mate behind 1. f3; Black's second answer cannot be parsed, White's is legal and lost.
MATE = GameRecord(
    ("f2f3",), (turn("e7e5"), turn("g2g4"), turn("d8h4", "M: d8h4 E: x B: d8h4")), "checkmate", False, False
)
STOPPED = GameRecord((), (turn("e2e4"), Turn("B: e7e4", "e7e4", "")), "illegal_move", None, False)
RESCUED = GameRecord((), (Turn("M: e2e5 E: 0.0 B: e2e5", "e2e5", "e2e4"), turn("e7e5")), "cut", None, False)


def test_each_position_has_its_game_s_outcome_for_the_side_to_move() -> None:
    rows = list(position_rows(MATE, 7))
    assert [(row["outcome"], row["ply"], row["game"], row["written"]) for row in rows] == [
        (1.0, 1, 7, "e7e5"),
        (0.0, 2, 7, "g2g4"),
        (1.0, 3, 7, "d8h4"),
    ]
    assert [row["outcome"] for row in position_rows(STOPPED, 0)] == [None, None]
    drawn = GameRecord((), (turn("e2e4"),), "stalemate", None, True)
    assert [row["outcome"] for row in position_rows(drawn, 0)] == [0.5]


def test_a_position_row_is_a_prompt_without_a_label() -> None:
    example = parse_row(next(position_rows(MATE, 0)))
    assert example == Example(Task.policy, "P: rnbqkbnr/pppppppp/8/8/8/5P2/PPPPP1PP/RNBQKBNR b KQkq - 0 1", None)


@pytest.mark.parametrize(
    ("record", "moves"),
    [
        (MATE, [("e7e5", 0.001), ("g2g4", 0.001), ("d8h4", 1.0)]),
        (STOPPED, [("e2e4", 0.001), ("e7e4", -1.0)]),
        (RESCUED, [("e2e5", -1.0), ("e2e4", 0.001), ("e7e5", 0.001)]),
    ],
)
def test_what_was_written_and_played_are_transitions_with_python_chess_s_answer(
    record: GameRecord, moves: list[tuple[str, float]]
) -> None:
    found = []
    for line in transition_lines(record):
        example = split_line(line)
        assert isinstance(example, Example) and example.completion is not None
        prompt, answer = parse_environment_prompt(example.prompt), parse_environment(example.completion)
        assert isinstance(answer, EnvironmentCompletion) and answer == environment_truth(prompt)
        assert prompt.history[-1] == prompt.uci
        found.append((prompt.uci, answer.reward))
    assert found == moves


def test_a_transition_s_history_holds_the_opening_and_the_moves_played() -> None:
    assert [line.split("+")[2] for line in transition_lines(RESCUED)] == ["e2e5", "e2e4", "e2e4 e7e5"]
    assert next(transition_lines(MATE)).split("+")[2] == "f2f3 e7e5"


def test_text_that_is_no_move_is_no_transition() -> None:
    silent = GameRecord((), (Turn("", "", ""),), "illegal_move", None, False)
    assert list(transition_lines(silent)) == []


def test_the_winner_s_well_formed_answers_are_kept_and_nobody_else_s() -> None:
    [line] = winner_lines(MATE)
    example = split_line(line)
    assert isinstance(example, Example) and example.completion is not None
    assert parse_fen(example.prompt.removeprefix("P: ")).ply() == 1
    assert example.completion.split() == ["M:", "e7e5", "E:", "0.5", "B:", "e7e5"]
    won_by_white = GameRecord(MATE.opening, MATE.turns, "checkmate", True, False)
    assert [line.split("B: ")[1] for line in winner_lines(won_by_white)] == ["g2g4"]


def test_winners_keep_legal_candidates_once_each_and_only_answers_whose_move_is_one() -> None:
    answers = [
        # White's first move; its e2e5 is illegal, a2a3 stands there twice.
        ("e2e4", "M: e2e5 a2a3 e2e4 a2a3 E: 9.0 0.1 0.3 0.2 B: e2e4"),
        ("a7a6", None),
        ("d1h5", "M: a2a3 a1a8 E: 0.1 0.3 B: d1h5"),
        ("a6a5", None),
        # Below the best of its own evals, which are the model's.
        ("f1c4", "M: f1c4 a2a3 E: 0.1 0.3 B: f1c4"),
    ]
    record = GameRecord((), tuple(turn(*answer) for answer in answers), "checkmate", True, False)
    rows = [split_line(line) for line in winner_lines(record)]
    assert [row.completion.split() for row in rows if isinstance(row, Example) and row.completion] == [
        ["M:", "a2a3", "e2e4", "E:", "0.1", "0.3", "B:", "e2e4"],
        ["M:", "f1c4", "a2a3", "E:", "0.1", "0.3", "B:", "f1c4"],
    ]


def test_a_move_that_was_not_the_model_s_own_is_no_answer_of_the_winner_s() -> None:
    rescued = GameRecord((), RESCUED.turns, "checkmate", True, False)
    assert list(winner_lines(rescued)) == []
    assert list(winner_lines(STOPPED)) == []


def test_a_record_reads_back_as_it_was_written() -> None:
    for record in (MATE, STOPPED, RESCUED):
        assert GameRecord.from_json(record.to_json()) == record

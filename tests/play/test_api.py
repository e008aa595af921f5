"""Requests of the page: positions, answers and predictions of the shipped model."""

from pathlib import Path
from typing import Any

import chess
import pytest

from rookworld_rlvr.app.play import load_chooser
from rookworld_rlvr.evaluation.players import DecodingConfig
from rookworld_rlvr.play import api as api_module
from rookworld_rlvr.play.api import BadRequestError, BusyError, PlayApi
from rookworld_rlvr.play.choice import MoveChooser
from rookworld_rlvr.tasks import task_named
from rookworld_rlvr.tasks.environment.text import render_environment_prompt

BLACK_BEGINS = "4k3/8/8/8/8/8/8/R3K3 b Q - 0 7"


def test_position_response_has_legal_moves_and_moves_so_far(api: PlayApi) -> None:
    response = api.position({"start": BLACK_BEGINS, "moves": ["e8d7", "e1c1"]})
    assert response["fen"] == "8/3k4/8/8/8/8/8/2KR4 b - - 2 8" and response["turn"] == "b"
    assert response["san"] == ["Kd7", "O-O-O+"] and (response["first"], response["begins"]) == (7, "b")
    assert response["check"] == "d7" and response["ended"] == ""
    assert response["pgn"].endswith("7... Kd7 8. O-O-O+ *")
    assert set(response["legal"]) == {move.uci() for move in chess.Board(response["fen"]).legal_moves}


@pytest.mark.parametrize(("start", "moves", "ended"), [
    ("", ["f2f3", "e7e5", "g2g4", "d8h4"], "0-1 checkmate"),
    ("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1", [], "1/2-1/2 stalemate"),
])  # fmt: skip
def test_position_response_reports_end_of_game(api: PlayApi, start: str, moves: list[str], ended: str) -> None:
    response = api.position({"start": start, "moves": moves})
    assert response["ended"] == ended and response["legal"] == []


def test_king_in_check_is_named_on_every_square(api: PlayApi) -> None:
    assert api.position({"start": "7k/8/8/8/8/8/8/K6r w - - 0 1"})["check"] == "a1"


def test_answer_at_temperature_0_is_the_likeliest_legal_move(api: PlayApi, tiny: MoveChooser) -> None:
    choice = tiny.choose(chess.Board(), DecodingConfig(), attempts=3)
    response = api.answer({})
    assert response["move"] == choice.move and response["illegal"] == []
    assert response["written"] == choice.written == task_named("policy").move(response["text"], None)
    assert [one["move"] for one in response["candidates"]] == list(choice.candidates)
    assert response["san"] == chess.Board().san(chess.Move.from_uci(choice.move))
    assert (response["number"], response["side"]) == (1, "White")


def test_answer_names_the_written_move_beside_the_played_one(small_model: Path) -> None:
    response = PlayApi([("small", load_chooser(str(small_model), seed=0))]).answer({})
    assert response["move"] in {move.uci() for move in chess.Board().legal_moves}
    assert response["written"] == task_named("policy").move(response["text"], None) != response["move"]


def test_prediction_uses_the_last_move_or_the_given_move(api: PlayApi, tiny: MoveChooser) -> None:
    response = api.predict_board({"moves": ["e2e4"], "model": 1})
    assert response["text"] == tiny.next_state(render_environment_prompt(chess.STARTING_FEN, "e2e4", ["e2e4"]))
    assert response["true"] == "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR"
    illegal = api.predict_board({"moves": ["e2e4"], "move": "e7e4"})
    assert illegal["move"] == "e7e4" and illegal["true"] == response["true"]


@pytest.mark.parametrize(("start", "moves", "fen"), [
    ("6k1/5ppp/8/8/8/8/5PPP/3R2K1  w - - ", [], "6k1/5ppp/8/8/8/8/5PPP/3R2K1 w - - 0 1"),
    ("8/4P1k1/8/8/8/8/6K1/8 w KQkq e3", ["e7e8Q"], "4Q3/6k1/8/8/8/8/6K1/8 b - - 0 1"),
    ("r3k2r/8/8/8/8/8/8/R3K2R w kqKQ - - -", ["E1H1", "e8a8"], "2kr3r/8/8/8/8/8/8/R4RK1 w - - 2 2"),
])  # fmt: skip
def test_position_of_another_program_is_read(api: PlayApi, start: str, moves: list[str], fen: str) -> None:
    assert api.position({"start": start, "moves": moves})["fen"] == fen


def test_prediction_of_a_move_in_capitals_is_of_the_legal_move(api: PlayApi) -> None:
    assert api.predict_board({"move": "E2E4"})["move"] == "e2e4"
    assert api.predict_board({"move": "E2E5"})["move"] == "E2E5"


def test_answer_has_no_move_after_end_of_game(api: PlayApi) -> None:
    assert api.answer({"moves": ["f2f3", "e7e5", "g2g4", "d8h4"]})["move"] == ""


@pytest.mark.parametrize(("question", "arguments", "message"), [
    ("position", {"start": "nonsense"}, "start: expected a FEN"), ("position", {"start": 3}, "expected start"),
    ("position", {"start": "4k3/8/8/8/8/8/8/3KK3 w - - 0 1"}, "impossible position: too many kings"),
    ("position", {"start": "8/8/8/8/8/8/8/8 w - - 0 1"}, "impossible position: no white king"),
    ("position", {"moves": "e2e4"}, "expected start"), ("position", {"moves": ["e2e5"]}, "expected a legal move"),
    ("position", {"start": "4k3/8/8/8/8/8/4P3/4K3 b - - 0 999999", "moves": ["e8e7"]}, "expected two counters"),
    ("position", {"moves": [None]}, "expected a legal move"), ("position", {"moves": ["g1f3"] * 1001}, "at most 1000"),
    ("answer", {"model": 2}, "expected model from 0 to 1"), ("answer", {"model": True}, "expected model"),
    ("answer", {"temperature": -1}, "expected temperature from 0 to 2"),
    ("answer", {"temperature": float("nan")}, "expected temperature"),
    ("predict_board", {}, "got a game without one"), ("predict_board", {"move": "a+b+"}, "expected a move in UCI"),
    ("predict_board", {"move": 5}, "expected a move in UCI"),
    ("predict_board", {"start": "4k3/8/8/8/8/8/4P3/4K3 b - - 0 999999", "move": "e8e7"}, "expected counters below"),
])  # fmt: skip
def test_invalid_request_is_refused_with_its_reason(
    api: PlayApi, question: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadRequestError, match=message):
        getattr(api, question)(arguments)


def test_request_that_waits_too_long_raises_busy_error(tiny: MoveChooser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "WAIT_S", 0.01)
    busy = PlayApi([("tiny", tiny)])
    with busy._one_at_a_time(), pytest.raises(BusyError):
        busy.answer({})
    assert busy.answer({})["move"]

"""Adjudication of games at the ply limit, by Stockfish and by material."""

import io
from pathlib import Path

import chess
import chess.pgn
import pytest

from rookworld_rlvr.errors import ScorerError
from rookworld_rlvr.evaluation.adjudication import Referee, material_winner, open_referee
from rookworld_rlvr.evaluation.games import Adjudicator, End, PlayedGame, pgn_text
from rookworld_rlvr.stockfish.engine import EngineConfig

KNIGHT_UP = "4k3/4p3/8/8/8/8/4P3/4K1N1 w - - 0 1"


def limited(fen: str) -> PlayedGame:
    return PlayedGame(0, chess.Board(fen), 0, End.ply_limit, None, None)


@pytest.mark.parametrize(
    ("fen", "winner"),
    [
        (KNIGHT_UP, chess.WHITE),
        (KNIGHT_UP.replace("N", "n"), chess.BLACK),
        ("4k3/8/8/8/8/8/3PP3/4K3 w - - 0 1", None),
        ("4k3/8/8/8/8/8/2PPP3/4K3 b - - 0 1", chess.WHITE),
    ],
)
def test_three_pawns_of_material_win_without_an_engine(fen: str, winner: chess.Color | None) -> None:
    assert material_winner(chess.Board(fen)) is winner
    [game] = Referee().adjudicate([limited(fen)])
    assert (game.winner, game.ending, game.end) == (winner, "adjudicated_material", End.ply_limit)
    assert game.rules_score(chess.WHITE) == 0.5
    assert game.score(chess.WHITE) == (0.5 if winner is None else float(winner))


def test_engine_adjudicates_by_its_evaluation_with_either_side_to_move(stockfish: str) -> None:
    # White or Black is a knight up, with either side to move; the start is even; White is a rook up.
    cases = {
        KNIGHT_UP: chess.WHITE,
        KNIGHT_UP.replace(" w ", " b "): chess.WHITE,
        "4k1n1/4p3/8/8/8/8/4P3/4K3 w - - 0 1": chess.BLACK,
        chess.STARTING_FEN: None,
        "8/8/8/4k3/8/8/8/4K2R w - - 0 1": chess.WHITE,
    }
    with open_referee(EngineConfig()) as referee:
        games = referee.adjudicate([limited(fen) for fen in cases])
        again = referee.adjudicate([limited(fen) for fen in cases])
    assert [game.winner for game in games] == list(cases.values()) == [game.winner for game in again]
    assert {game.ending for game in games} == {"adjudicated_engine"} and "20000 nodes" in referee.name


def test_the_engine_sees_a_promotion_that_material_does_not(stockfish: str) -> None:
    ahead = "6k1/PPP5/8/8/8/8/6r1/K7 w - - 0 1"
    with open_referee(EngineConfig()) as referee:
        [game] = referee.adjudicate([limited(ahead)])
    assert material_winner(chess.Board(ahead)) is None and game.winner is chess.WHITE


def test_game_decided_by_the_rules_is_not_adjudicated() -> None:
    mated = PlayedGame(0, chess.Board(KNIGHT_UP), 0, End.checkmate, chess.BLACK, None)
    assert Referee().adjudicate([mated]) == [mated] and mated.ending == "checkmate"


def test_referee_without_engine_uses_material_and_reports_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STOCKFISH_PATH", str(tmp_path / "absent"))
    with open_referee(EngineConfig()) as referee:
        assert referee.engine is None and referee.name == "material" and "no such file" in referee.reason
        assert referee.adjudicate([limited(KNIGHT_UP)])[0].adjudicator is Adjudicator.material


def test_a_saved_game_has_its_adjudicated_result() -> None:
    [game] = Referee().adjudicate([limited(KNIGHT_UP)])
    record = chess.pgn.read_game(io.StringIO(pgn_text(game, {})))
    assert record is not None
    assert (record.headers["Result"], record.headers["Termination"]) == ("1-0", "adjudicated_material")


def test_forgiving_referee_goes_on_by_material_after_its_engine_died(
    fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DIES", " b ")
    fens = (KNIGHT_UP, KNIGHT_UP.replace(" w ", " b "), KNIGHT_UP)
    with open_referee(EngineConfig(path=str(fake_stockfish)), forgiving=True) as referee:
        games = referee.adjudicate([limited(fen) for fen in fens])
        assert referee.engine is None and "it has died" in referee.reason
        assert referee.name == "Stockfish 15.1 fake.nnue, 20000 nodes; material after 1 games"
    assert [game.adjudicator for game in games] == [Adjudicator.engine, Adjudicator.material, Adjudicator.material]
    assert [game.winner for game in games[1:]] == [chess.WHITE, chess.WHITE]
    # An evaluation that names its engine is not continued by another rule.
    with open_referee(EngineConfig(path=str(fake_stockfish))) as referee, pytest.raises(ScorerError, match="has died"):
        referee.adjudicate([limited(fens[1])])

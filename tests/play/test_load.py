"""`load(model).play(fen)` from Python, with the shipped model."""

import subprocess
import sys
from pathlib import Path

import chess
import pytest

from rookworld_rlvr import load
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.rewards import score
from rookworld_rlvr.tasks.policy.text import policy_fields

MATE_IN_ONE = "6k1/5ppp/8/8/8/8/5PPP/R5K1 w - - 0 1"


def test_the_shipped_model_plays_a_legal_move_with_its_completion() -> None:
    choice = load("tiny").play(chess.STARTING_FEN)
    assert chess.Move.from_uci(choice.move) in chess.Board().legal_moves
    assert policy_fields(choice.text).best == (choice.written,) and not choice.replaced
    assert score(f"P: {chess.STARTING_FEN}", choice.text).total > 0.5


def test_seed_determines_sampled_completions() -> None:
    one, same, other = [load(seed=seed).play(MATE_IN_ONE, temperature=1.0).text for seed in (3, 3, 4)]
    assert one == same != other


@pytest.mark.parametrize("fen", ["4k2k/8/8/8/8/8/8/4K3 w - - 0 1", "8/8/8/8/8/8/8/8 w - - 0 1"])
def test_an_impossible_position_is_not_played(fen: str) -> None:
    with pytest.raises(ValueError, match="impossible position"):
        load().play(fen)


def test_a_position_of_another_program_is_played() -> None:
    play = load().play
    assert play("6k1/5ppp/8/8/8/8/5PPP/R5K1  w KQ e3 ").move == play(MATE_IN_ONE).move


def test_a_loaded_model_chooses_among_legal_moves_unless_it_is_to_write(small_model: Path) -> None:
    chosen, written = load(str(small_model)), load(str(small_model), decoding="text")
    assert not chosen.play(chess.STARTING_FEN).replaced and written.play(chess.STARTING_FEN).replaced


def test_loading_a_missing_model_is_refused() -> None:
    with pytest.raises(UserError):
        load("/nope/model")


def test_importing_the_package_loads_no_torch() -> None:
    code = "import rookworld_rlvr, sys; sys.exit('torch' in sys.modules)"
    path = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=path, check=False).returncode == 0


def test_a_chat_model_plays_by_its_own_task(chat_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rookworld_rlvr.app.play import load_chooser, main

    choice = load_chooser(str(chat_model), 0, "chat").play(chess.STARTING_FEN, attempts=0)
    assert chess.Move.from_uci(choice.move) in chess.Board().legal_moves and choice.candidates == {}
    assert main(["--task", "environment"]) == 2
    assert "invalid choice: 'environment'" in capsys.readouterr().err

"""`benchmarks/known_players.py`: each suite is asked, and whoever is right by definition is told to be."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from rookworld_rlvr.evaluation.players import RandomPlayer
from rookworld_rlvr.tasks import Example, Task

MATE = {"fen": "7k/5Q2/6K1/8/8/8/8/8 w - - 0 1", "best": "f7g7"}
ONLY_MOVE = "7k/6pp/8/8/8/8/8/K6R b - - 0 1"


@pytest.fixture
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("known_players")


def test_a_player_s_move_is_an_answer_with_itself_alone_for_candidate(benchmark: ModuleType) -> None:
    [answer] = benchmark.move_alone(RandomPlayer(), [Example(Task.policy, f"P: {ONLY_MOVE}", None)])
    # Of Black's moves g8 is the king's one, the pawns have two each.
    assert answer.split() in [["M:", m, "E:", "0.0", "B:", m] for m in ("h8g8", "g7g6", "g7g5", "h7h6", "h7h5")]


def test_who_leaves_a_position_as_it_is_gets_the_board_of_illegal_moves_alone(benchmark: ModuleType) -> None:
    prompt = f"A: {MATE['fen']}+f7g8+f7g8+"
    assert benchmark.unchanged(Example(Task.environment, prompt, None)) == f"{MATE['fen']}+0.001+0+0"


@pytest.mark.slow
def test_every_suite_is_asked_of_all_and_python_chess_and_stockfish_are_never_wrong(
    benchmark: ModuleType,
    stockfish: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STOCKFISH_PATH", stockfish)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(benchmark, "MEASURE_NODES", 2000)
    mates, puzzles, output = tmp_path / "mates.jsonl", tmp_path / "puzzles.jsonl", tmp_path / "found.json"
    mates.write_text(json.dumps(MATE) + "\n")
    puzzles.write_text(json.dumps(MATE | {"rating": 900, "themes": ["mateIn1"]}) + "\n")
    files = ["--mates", str(mates), "--puzzles", str(puzzles), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["known_players.py", *files, "--rows", "6", "--games", "1", "--pairs", "1"])
    benchmark.main()
    found = json.loads(output.read_text())
    mover, capture, exchange, model, engine, stays, model_arbiter, rules = found.values()
    assert engine["mate_in_one/accuracy"]["value"] == engine["puzzles/accuracy"]["value"] == 1.0
    # The one mate is no capture; who looks for mates finds it.
    assert exchange["mate_in_one/accuracy"]["value"] == 1.0 == capture["policy/legal_best_move"]["value"]
    assert mover["policy/legal_best_move"]["value"] == mover["selfplay/illegal_rate"]["value"] + 1.0 == 1.0
    assert rules["environment/next_state_accuracy"]["value"] == rules["balanced/exact"]["value"] == 1.0
    assert stays["balanced/exact"]["value"] < model_arbiter["balanced/exact"]["value"] < 1.0
    shown = capsys.readouterr().out
    assert all(key in shown for key in (*benchmark.OF_PLAYERS, *benchmark.OF_ARBITERS))
    assert model.keys() >= set(benchmark.OF_PLAYERS)

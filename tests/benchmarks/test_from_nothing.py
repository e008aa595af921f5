"""`benchmarks/from_nothing.py`: the whole path in small, and again from what is there."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

MATE = {"fen": "6k1/5ppp/8/8/8/8/8/K3R3 w - - 0 1", "best": "e1e8"}
CLONING = ("layers=1", "width=16", "heads=2", "steps=2", "batch_size=4")
TRAINING = (
    "steps=1",
    "evaluation_rows=2",
    "match_pairs=1",
    "match_plies=2",
    "objective.prompts_per_step=2",
    "objective.group_size=2",
    "threads=1",
)
EVALUATION = (
    "evaluation_rows=2",
    "balanced.rows_per_class=1",
    "selfplay.games=2",
    "world_model.games=2",
    "engine_match.pairs=1",
    "engine_match.opponent.nodes=10",
    "threads=1",
)


@pytest.fixture
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("from_nothing")


@pytest.mark.slow
def test_a_model_from_nothing_is_cloned_trained_and_asked_by_every_suite_and_no_stage_is_repeated(
    benchmark: ModuleType,
    stockfish: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STOCKFISH_PATH", stockfish)
    mates, out = tmp_path / "mates.jsonl", tmp_path / "out"
    mates.write_text(json.dumps(MATE) + "\n")
    given = ["--out", str(out), "--rows", "12", "--processes", "1", "--mates", str(mates)]
    given += ["--warmstart", *(f"model.{setting}" for setting in CLONING), "threads=1"]
    monkeypatch.setattr(sys, "argv", ["from_nothing.py", *given, "--train", *TRAINING, "--evaluate", *EVALUATION])
    benchmark.main()
    gain = json.loads((out / "gain.json").read_text())
    assert set(gain["suites"]) == {*benchmark.SUITES, "mate_in_one"}
    stages = ["rows", "cloning", "suites before", "GRPO", "suites after"]
    assert list(json.loads((out / benchmark.TIMES).read_text())) == stages
    shown = capfd.readouterr().out
    assert [name for name in stages if f"{name}: rookworld " in shown] == stages
    benchmark.main()
    assert "rookworld evaluate compare" in (again := capfd.readouterr().out)
    assert not any(f"{name}: rookworld " in again for name in stages)


def test_a_stage_that_fails_ends_the_benchmark_and_says_which(benchmark: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="cloning: ended with exit code 2"):
        benchmark.run_stage(tmp_path, "cloning", "warmstart", f"corpus=[{tmp_path / 'none.txt'}]")
    assert not (tmp_path / benchmark.TIMES).exists()

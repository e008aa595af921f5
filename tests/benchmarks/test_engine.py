"""`benchmarks/engine.py`: what it measures, and agreement by hand. No time is asserted."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from rookworld_rlvr.stockfish.engine import Analysis

FEN = "7k/8/8/8/8/8/8/K7 w - - 0 1"


@pytest.fixture
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("engine")


def test_agreement_is_what_the_short_search_gives_away_and_signal_over_error(benchmark: ModuleType) -> None:
    # Win probabilities 0.5, 0.409, 0.001; the short search takes the second move for the best.
    deep = Analysis(FEN, (("a1b2", 0.0), ("a1a2", -1.0), ("a1b1", -999.99)))
    short = Analysis(FEN, (("a1a2", 0.0), ("a1b2", -1.0), ("a1b1", -999.99)))
    found = benchmark.agreement([short, deep], [deep, deep])
    assert (found["loss"], found["close"]) == (pytest.approx(0.091 / 2), 0.5)
    mean = (1 + 0.909 + 0.501) / 3
    spread = sum((value - mean) ** 2 for value in (1, 0.909, 0.501)) / 3
    error = 2 * 0.091**2 / 3 / 2
    assert found["1 − loss"] == pytest.approx((spread / error) ** 0.5)
    assert found["random"] == pytest.approx((0 + 0.091 + 0.499) / 3)
    # The same values over the best move's 0.5, so the same ratio; over the spread of 0.499 too.
    assert found["win(move) / win(best)"] == pytest.approx(found["1 − loss"])
    assert found["1 − loss / (best − worst)"] == pytest.approx(found["1 − loss"])


def test_it_measures_each_number_of_processes_and_the_cache(
    benchmark: ModuleType,
    stockfish: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--positions", "4", "--nodes", "300", "--rounds", "1", "--deep", "900", "--json", str(tmp_path / "x")]
    monkeypatch.setattr("sys.argv", ["engine.py", *given])
    monkeypatch.setenv("STOCKFISH_PATH", stockfish)
    assert benchmark.main() == 0
    rows = json.loads((tmp_path / "x").read_text())["seconds"]["300"]
    assert rows.keys() == {"cold, processes=1", "cold, processes=2", "cached"}
    assert all(len(times) == 1 and times[0] > 0 for times in rows.values())
    shown = capsys.readouterr().out
    assert shown.count("\n| 300 |") == 4 and shown.startswith("Stockfish ")

"""`benchmarks/judges.py`: its tables by hand, from results that are there already, and a whole one in small."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("judges")


def test_finished_runs_are_read_and_their_mean_and_spread_are_those_of_the_gains(
    benchmark: ModuleType, tmp_path: Path
) -> None:
    for seed, gain in ((0, -0.02), (1, -0.04)):
        folder = tmp_path / f"engine-{seed}" / "latest"
        folder.mkdir(parents=True)
        before = {key: {"value": 0.25} for key in benchmark.KEYS}
        gains = {key: {"value": gain, "low": gain - 0.01, "high": gain + 0.01} for key in benchmark.KEYS}
        (folder / "summary.json").write_text(json.dumps({"before": before, "gain": gains}))
    found = {"engine": {seed: benchmark.gains_of("engine", seed, tmp_path, []) for seed in (0, 1)}}
    [_, _, before_row, first, second] = benchmark.runs_table(found, benchmark.KEYS).splitlines()
    assert before_row.startswith("| before | | 0.2500 |")
    assert first.startswith("| engine | 0 | -0.0200 [-0.0300, -0.0100] |")
    assert second.startswith("| engine | 1 | -0.0400 [-0.0500, -0.0300] |")
    # The deviation of two values from their mean, with one degree of freedom: 0.02 / √2.
    assert benchmark.means_table(found).splitlines()[2].startswith("| engine | 2 | -0.0300 ± 0.0141 |")


def test_a_run_that_fails_ends_the_benchmark_and_says_which(benchmark: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="rules, seed 3: ended with exit code 2"):
        benchmark.gains_of("rules", 3, tmp_path, ["optim.lrr=1"])


@pytest.mark.slow
def test_a_run_on_one_task_is_measured_by_an_engine_and_against_what_it_began_from(
    benchmark: ModuleType,
    stockfish: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("STOCKFISH_PATH", stockfish)
    monkeypatch.setattr(benchmark, "MEASURE", ("evaluation_nodes=300", "match_pairs=0"))
    short = ["steps=1", "evaluation_rows=6", "objective.prompts_per_step=2", "objective.group_size=2", "threads=1"]
    given = ["--seeds", "0", "--runs", "rules", "environment", "--out", str(tmp_path), "--", *short]
    monkeypatch.setattr(sys, "argv", ["judges.py", *given])
    benchmark.main()
    shown = capfd.readouterr().out
    assert "\n| environment | 0 |" in shown and "`retention/policy_loss`" in shown
    assert (tmp_path / "environment-0/latest/retention.json").exists()
    assert not (tmp_path / "rules-0/latest/retention.json").exists()
    benchmark.main()
    again = capfd.readouterr().out
    # Nothing ran again, and the same four tables are told.
    tables = [line for line in again.splitlines() if line]
    assert tables == [line for line in shown.splitlines() if line.startswith("|")]
    assert again.count("\n| environment | ") == 4

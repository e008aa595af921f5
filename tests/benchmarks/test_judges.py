"""`benchmarks/judges.py`: its tables by hand, from summaries that are there already."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "judges.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("judges_benchmark", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    [_, _, before_row, first, second] = benchmark.runs_table(found).splitlines()
    assert before_row.startswith("| before | | 0.2500 |")
    assert first.startswith("| engine | 0 | -0.0200 [-0.0300, -0.0100] |")
    assert second.startswith("| engine | 1 | -0.0400 [-0.0500, -0.0300] |")
    # The deviation of two values from their mean, with one degree of freedom: 0.02 / √2.
    assert benchmark.means_table(found).splitlines()[2].startswith("| engine | 2 | -0.0300 ± 0.0141 |")


def test_a_run_that_fails_ends_the_benchmark_and_says_which(benchmark: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="rules, seed 3: ended with exit code 2"):
        benchmark.gains_of("rules", 3, tmp_path, ["optim.lrr=1"])

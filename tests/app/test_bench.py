"""`rookworld bench`: tiny real runs, and the computation of its figures. No time is asserted."""

import json
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.app import bench
from rookworld_rlvr.app.cli import main


def test_bench_reports_speed_and_memory_of_each_generator(
    small_overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "bench.json"
    given = [*small_overrides, "generator.max_new_tokens=12", "bench.rounds=2", f"bench.output={output}"]
    assert main(["bench", *given, "bench.generators=[hf,native]"]) == 0
    shown, figures = capfd.readouterr().out, json.loads(output.read_text())
    assert "native" in shown and "hf" in shown and "completions/s" in shown
    assert list(figures["generators"]) == ["hf", "native"] and list(figures["ratios_to_hf"]) == ["native"]
    for kind, row in figures["generators"].items():
        assert row["peak_gib"] > 0 and row["tokens_per_s"] > 0
        assert row["generate_s"] + row["score_s"] + row["train_s"] <= row["step_s"]
        assert len(figures["rounds"][kind]) == 2 and 0 < row["completion_tokens"] <= 12
    spread = figures["ratios_to_hf"]["native"]["completions_per_s"]
    assert spread["low"] <= spread["median"] <= spread["high"]
    assert figures["machine"]["threads"] == 1


def test_bench_without_anything_to_train_on_exits_with_code_4(
    small_overrides: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    # At this temperature all completions of a group are equal.
    given = ["generator.temperature=1e-4", "objective.collection.zero_variance=drop", "generator.max_new_tokens=8"]
    assert main(["bench", *small_overrides, *given, "bench.rounds=1"]) == 4
    assert "nothing to train on" in capfd.readouterr().err


@pytest.mark.parametrize("override", [
    "bench.rounds=0", "bench.generators=[]", "bench.generators=[hf,hf]", "bench.output=/nope/bench.json",
    "bench.output=/tmp",
])  # fmt: skip
def test_invalid_bench_option_is_refused(
    override: str, small_overrides: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *small_overrides, override]) == 2
    assert override.split("=")[0] in capfd.readouterr().err


def test_medians_and_ratios_are_over_rounds() -> None:
    def rows(*rates: float) -> list[dict[str, Any]]:
        return [{"completions_per_s": rate, "tokens_per_s": 2 * rate, "peak_gib": rate} for rate in rates]

    assert bench.medians(rows(1.0, 9.0, 2.0)) == {"completions_per_s": 2.0, "tokens_per_s": 4.0, "peak_gib": 9.0}
    ratio = bench.ratios(rows(2.0, 9.0, 4.0), rows(1.0, 3.0, 4.0))["completions_per_s"]
    assert (ratio["median"], ratio["low"], ratio["high"], ratio["mean"]) == (2.0, 1.0, 3.0, 2.0)

"""A small run of `benchmarks/peers.py` with TRL: both sides do the same work. No time is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_peer_benchmark_runs_requested_steps_on_both_sides(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    output = tmp_path / "peers.json"
    given = ["--steps", "2", "--rounds", "2", "--prompts", "2", "--group-size", "4", "--micro-batch", "4"]
    # Completions are cut short, so that a few of them have the same mean length on both sides.
    given += ["--max-new-tokens", "12", "--threads", "1", "--json", str(output)]
    done = subprocess.run(
        [sys.executable, "benchmarks/peers.py", *given],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(output.read_text())
    for side in ("ours", "trl"):
        rounds = result["rounds"][side]
        assert [(row["completions"], row["updates"]) for row in rounds] == [(16, 2)] * 2
        assert all(row["grown_gib"] > 0 for row in rounds)
        assert all(0 < row["generate_s"] < row["wall_s"] and row["train_s"] > 0 for row in rounds)
        assert all(row["decode_steps"] == 24 for row in rounds)
    assert result["completions_per_s"]["low"] <= result["completions_per_s"]["high"] and result["grown_memory"] > 0

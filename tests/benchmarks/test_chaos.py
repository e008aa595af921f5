"""Processes that are killed and resumed: `benchmarks/chaos.py`, in small."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = 6


@pytest.fixture
def chaos(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("chaos")


@pytest.mark.slow
def test_a_run_killed_three_times_ends_as_the_one_left_alone_and_a_difference_would_be_told(
    chaos: ModuleType, tmp_path: Path
) -> None:
    command = [sys.executable, "benchmarks/chaos.py", "--kills", "3", "--steps", str(STEPS), "--out", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| kills (SIGKILL) | 3 |" in done.stdout and "| resumed | 3/3 |" in done.stdout
    assert "| different from the run left alone | nothing |" in done.stdout
    killed, whole = ((tmp_path / name / "latest").resolve() for name in ("killed", "whole"))
    assert killed != whole and chaos.differences(killed, whole, STEPS) == []
    log = killed / "metrics.jsonl"
    log.write_text(log.read_text().replace('"step": 6', '"step": 7'))
    assert chaos.differences(killed, whole, STEPS) == ["metrics.jsonl"]
    newest = killed / f"checkpoints/step-{STEPS}/model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert chaos.differences(killed, whole, STEPS) == ["metrics.jsonl", "weights"]
    with pytest.raises(chaos.ChaosError, match=f"expected to read .*/step-{STEPS}, got "):
        chaos.check_readable(killed)


def test_kills_are_spread_over_the_run_and_over_what_it_does(chaos: ModuleType) -> None:
    kills = chaos.plan(300, 60, random.Random(0))
    assert [kill.step for kill in kills] == sorted(kill.step for kill in kills)
    # 60 equal chances, 300 draws: few steps are missed.
    assert len({kill.step for kill in kills} & set(range(60))) >= 55
    shares = {aim: sum(kill.aim == aim for kill in kills) / 300 for aim in ("start-up", "step", "save")}
    assert shares == pytest.approx({"start-up": 0.2, "step": 0.4, "save": 0.4}, abs=0.1)
    assert chaos.plan(300, 60, random.Random(0)) == kills != chaos.plan(300, 60, random.Random(1))

"""`benchmarks/gpu_visit.py`: a whole dry run on a CPU, and its report page if parts fail."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks/gpu_visit.py"


@pytest.fixture(scope="module")
def gpu_visit(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("gpu_visit")


def results(folder: Path) -> dict[str, Any]:
    return {part["name"]: part for part in json.loads((folder / "visit.json").read_text())["parts"]}


@pytest.mark.slow
def test_dry_visit_succeeds_and_reports_every_part(gpu_visit: ModuleType, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "--dry", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    page = (tmp_path / "visit.md").read_text()
    assert done.returncode == 0, page
    parts = results(tmp_path)
    assert list(parts) == [part.name for part in gpu_visit.Table(tmp_path, dry=True).parts()]
    assert all(part["reason"] for part in parts.values() if part["outcome"] != "passed")
    assert parts["bench 124M 8×8 native"]["figures"]["native"]["completions_per_s"] > 0
    assert 0 < parts["roofline 3.5M 8×8"]["figures"]["native"]["bandwidth/generate"] <= 1
    assert parts["generator.batch_size=1024, in turns"]["figures"]["generator.batch_size=1024"]["ratio"] > 0
    assert parts["fsdp2, 1 card"]["outcome"] == parts["default run"]["outcome"] == "passed"
    assert all(f"| {name} | {part['outcome']} |" in page for name, part in parts.items())


def test_page_reports_outcome_and_reason_of_each_part(gpu_visit: ModuleType, tmp_path: Path) -> None:
    def part(name: str, code: str, limit_s: float = 60, requirements: tuple[str, ...] = ()) -> Any:
        return gpu_visit.Part(name, [sys.executable, "-c", code], limit_s, requirements)

    todo = [
        part("wrong", "raise ValueError('seven')"),
        part("slow", "import time; time.sleep(60)", limit_s=0.5),
        part("without figures", "open(r'{out}/bench.json', 'w').write('{}')"),
        part("installing", "", requirements=("installation",)),
        part("right", "open(r'{out}/sleep.json', 'w').write('{\"peak_gib\": 2.5}')"),
    ]
    assert gpu_visit.visit(todo, tmp_path, dry=True, seconds=600) == 1
    ends = {name: (each["outcome"], each["reason"]) for name, each in results(tmp_path).items()}
    assert ends == {
        "wrong": ("failed", "exit code 1"),
        "slow": ("failed", "not done within 0 s"),
        "without figures": ("failed", "no figures: KeyError: 'generators'"),
        "installing": ("skipped", "a dry visit installs nothing"),
        "right": ("passed", ""),
    }
    page = (tmp_path / "visit.md").read_text()
    assert (
        "ValueError: seven" in page
        and "## Failed: without figures" in page
        and "| right | sleep |  |  |  | 2.5 |" in page
    )


def test_parts_after_the_time_limit_are_skipped(gpu_visit: ModuleType, tmp_path: Path) -> None:
    part = gpu_visit.Part("long", [sys.executable, "-c", "import time; time.sleep(60)"], 60)
    assert gpu_visit.visit([part, replace(part, name="later")], tmp_path, dry=True, seconds=1) == 0
    assert [each["outcome"] for each in results(tmp_path).values()] == ["cut off", "skipped"]


@pytest.mark.parametrize("option", [("--only", "no such part"), ("--minutes", "many")])
def test_a_wrong_option_ends_with_exit_code_2(option: tuple[str, str]) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), "--dry", *option], capture_output=True, check=False)
    assert done.returncode == 2 and option[1].encode() in done.stderr


def test_seconds_of_a_round_become_those_of_a_step(gpu_visit: ModuleType, tmp_path: Path) -> None:
    sides = {side: {"wall_s": wall_s, "updates": 2} for side, wall_s in (("ours", 2.0), ("trl", 6.0))}
    (tmp_path / "peers.json").write_text(json.dumps(sides | {"completions_per_s": {"median": 3.0}}))
    figures = gpu_visit.figures(tmp_path)
    assert (figures["ours"]["step_s"], figures["trl"]["step_s"]) == (1.0, 3.0)

"""`benchmarks/gpu_visit.py`: each call in small on a CPU, its page if parts fail, and what the calls bring."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks/gpu_visit.py"
# What a session on a lent machine has, and what the machine's start takes of it.
SESSION_S = 14 * 60
NAMES = ("speed", "graphs", "start", "chat", "whole_run")


@pytest.fixture(scope="module")
def gpu_visit(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("gpu_visit")


@pytest.fixture(scope="module")
def gpu_carry(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("gpu_carry")


@pytest.fixture
def call_of(gpu_visit: ModuleType, tmp_path: Path) -> Callable[..., int]:
    """Return a function that makes a dry call named `some` of these parts and returns its exit code."""

    def run(*parts: Any, limit_s: float = 600) -> int:
        call = gpu_visit.Call("some", "", (), limit_s, lambda _place: list(parts))
        return gpu_visit.visit(call, gpu_visit.Place(tmp_path / "work", dry=True), tmp_path)

    return run


def part(gpu_visit: ModuleType, name: str, code: str, **options: Any) -> Any:
    return gpu_visit.Part(name, [sys.executable, "-c", code], 1, **({"limit_s": 60} | options))


def results(folder: Path, call: str = "some") -> dict[str, Any]:
    return {each["name"]: each for each in json.loads((folder / f"{call}.json").read_text())["parts"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_dry_call_succeeds_and_reports_every_part(
    gpu_visit: ModuleType, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    done = subprocess.run([sys.executable, str(PROGRAM), name, "--dry"], capture_output=True, text=True, check=False)
    page = (tmp_path / f"{name}.md").read_text()
    assert done.returncode == 0, page
    [call] = [call for call in gpu_visit.CALLS if call.name == name]
    parts = results(tmp_path, name)
    assert list(parts) == [part.name for part in call.parts(gpu_visit.Place(tmp_path, dry=True))]
    assert all(part["reason"] for part in parts.values() if part["outcome"] != "passed")
    assert all(f"| {title} | {part['outcome']} |" in page for title, part in parts.items())
    rows = {title: row for part in parts.values() for title, row in part["figures"].items()}
    match name:
        case "speed":
            assert rows["limits"]["tflop_per_s"] > 0
            assert "ours" not in rows or 0 < rows["trl"]["mfu_train"] < 1
        case "graphs":
            assert rows["8 eager"]["decode_ms"] > 0 and rows["native"]["completions_per_s"] > 0
        case "start":
            curve = [title for title in rows if title.startswith("step ")]
            assert curve and rows[curve[-1]]["lr"] == 0 and 0 <= rows["evaluation"]["policy/valid"] <= 1
            assert (tmp_path / "start/model.tar.part-1").exists() and (tmp_path / "start/parts.json").exists()
        case "chat":
            assert {"before", "after", "gain"} <= rows["chat/legal"].keys()
        case "whole_run":
            assert rows["2 steps"]["time/step_s"] > 0 and (tmp_path / "whole_run/metrics.jsonl").exists()


def test_calls_fit_into_the_time_that_is_lent(gpu_visit: ModuleType) -> None:
    by_name = {call.name: call for call in gpu_visit.CALLS}
    assert tuple(by_name) == NAMES
    for call in by_name.values():
        assert call.expected_s() < call.limit_s <= 360
        for place in (gpu_visit.Place(Path("work"), dry=dry) for dry in (False, True)):
            assert all(part.expected_s < part.limit_s <= call.limit_s for part in call.parts(place))
    for together in (NAMES[:3], NAMES[3:]):
        expected_s = gpu_visit.gpu_calls.MACHINE_S + sum(by_name[name].expected_s() for name in together)
        assert expected_s < SESSION_S


@pytest.mark.parametrize("page", ["benchmarks/README.md", "docs/scaling.md"])
def test_the_documents_list_the_calls(gpu_visit: ModuleType, page: str) -> None:
    assert gpu_visit.gpu_calls.table() in (ROOT / page).read_text(encoding="utf-8")


def test_page_reports_outcome_reason_and_figures_of_each_part(
    gpu_visit: ModuleType, call_of: Callable[..., int], tmp_path: Path
) -> None:
    parts = [
        part(gpu_visit, "wrong", "raise ValueError('seven')"),
        part(gpu_visit, "slow", "import time; time.sleep(60)", limit_s=0.1),
        part(gpu_visit, "without figures", "open(r'{out}/bench.json', 'w').write('{}')"),
        part(gpu_visit, "absent", "", needs=["no such file"]),
        part(gpu_visit, "right", "open(r'{out}/some.json', 'w').write('{\"row\": {\"peak_gib\": 2.5}}')"),
    ]
    assert call_of(*parts) == 1
    assert {name: (each["outcome"], each["reason"]) for name, each in results(tmp_path).items()} == {
        "wrong": ("failed", "exit code 1"),
        "slow": ("failed", "not done within 1 s"),
        "without figures": ("failed", "no figures: KeyError: 'generators'"),
        "absent": ("skipped", "there is no no such file"),
        "right": ("passed", ""),
    }
    page = (tmp_path / "some.md").read_text()
    assert "ValueError: seven" in page and "## Failed: without figures" in page
    assert "| | peak_gib |\n|---|---|\n| row | 2.5 |" in page


def test_rows_without_a_common_column_get_tables_of_their_own(gpu_visit: ModuleType) -> None:
    rows = {"speed": {"step_s": 1.0}, "step 1": {"loss": 2.0}, "step 2": {"loss": 1.5, "lr": 0.25}}
    assert gpu_visit.related(rows) == [{"speed": rows["speed"]}, {name: rows[name] for name in ("step 1", "step 2")}]
    assert gpu_visit.table(gpu_visit.related(rows)[1])[1:] == [
        "| | loss | lr |",
        "|---|---|---|",
        "| step 1 | 2 |  |",
        "| step 2 | 1.5 | 0.25 |",
    ]


def test_page_is_complete_after_each_part(gpu_visit: ModuleType, call_of: Callable[..., int], tmp_path: Path) -> None:
    """The second part reads what the call had written after the first."""
    copying = f"import shutil; shutil.copy(r'{tmp_path}/some.md', r'{{out}}/seen.md')"
    parts = [part(gpu_visit, "first", ""), part(gpu_visit, "second", copying, keep=["seen.md"])]
    assert call_of(*parts, part(gpu_visit, "third", "")) == 0
    seen = (tmp_path / "some/seen.md").read_text()
    assert "| first | passed |" in seen and "| second | not yet run | | |" in seen and "| third | not yet run" in seen


def test_parts_after_the_time_limit_are_left_out_and_the_call_fails(
    gpu_visit: ModuleType, call_of: Callable[..., int], tmp_path: Path
) -> None:
    sleeping = part(gpu_visit, "long", "import time; time.sleep(60)")
    assert call_of(sleeping, replace(sleeping, name="later"), limit_s=0.1) == 1
    ends = [(each["outcome"], each["reason"]) for each in results(tmp_path).values()]
    assert ends[0][0] == "failed" and ends[1] == ("failed", "the time was over")


@pytest.mark.parametrize(
    ("given", "expected"), [(("no_such_call",), "whole_run"), ((), "--list"), (("--prepare", "nothing"), "smollm2")]
)
def test_wrong_arguments_end_with_exit_code_2(given: tuple[str, ...], expected: str) -> None:
    done = subprocess.run([sys.executable, str(PROGRAM), *given], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and expected in done.stderr.splitlines()[-1]


def test_figures_of_a_round_become_those_of_a_step(gpu_visit: ModuleType, tmp_path: Path) -> None:
    row = {"completions": 16, "length": 10.0, "completions_per_s": 4.0, "updates": 2, "decode_steps": 40}
    row |= {"wall_s": 4.0, "generate_s": 1.0, "score_s": 0.5, "train_s": 2.5, "grown_gib": 3.0}
    sides = {"ours": row | {"train_tflop": 5.0}, "trl": row | {"wall_s": 12.0, "train_s": 10.0}}
    (tmp_path / "peers.json").write_text(json.dumps(sides | {"completions_per_s": {"median": 3.0}}))
    rows = gpu_visit.figures(tmp_path)
    gpu_visit.add_mfu(rows, tflop_per_s=10.0)
    assert (rows["ours"]["step_s"], rows["trl"]["step_s"], rows["ours"]["ratio"]) == (2.0, 6.0, 3.0)
    assert (rows["ours"]["tokens_per_s"], rows["ours"]["tokens_per_s_in_sampling"]) == (40.0, 160.0)
    assert rows["ours"]["decode_ms"] == 25.0
    assert (rows["ours"]["mfu_train"], rows["trl"]["mfu_train"]) == (0.2, 0.05)


def test_a_file_is_split_and_joined_whole(gpu_carry: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(bytes(range(256)) * 10240)
    parts = gpu_carry.split(file, tmp_path / "carried", 1)
    assert [path.name for path in parts] == ["model.bin.part-1", "model.bin.part-2", "model.bin.part-3", "parts.json"]
    # Each part may have travelled in a folder of its own.
    (tmp_path / "carried/part-2").mkdir()
    parts[1].rename(tmp_path / "carried/part-2" / parts[1].name)
    joined = gpu_carry.join(tmp_path / "carried", tmp_path / "joined")
    assert joined == tmp_path / "joined/model.bin" and joined.read_bytes() == file.read_bytes()


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_missing_or_changed_part_is_refused(gpu_carry: ModuleType, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"weights" * 10)
    first, _ = gpu_carry.split(file, tmp_path / "carried", 1)
    first.unlink() if damage == "missing" else first.write_bytes(b"others")
    with pytest.raises(SystemExit, match="model.bin.part-1" if damage == "missing" else "checksum"):
        gpu_carry.join(tmp_path / "carried", tmp_path / "joined")
    assert damage == "missing" or not (tmp_path / "joined/model.bin").exists()


def test_every_carried_package_is_pinned_and_torch_is_none_of_them(gpu_carry: ModuleType) -> None:
    names = {name.lower() for name in (*gpu_carry.PACKAGES, *gpu_carry.TRL_PACKAGES)}
    assert names <= gpu_carry.pins().keys() and not names & {"torch", "transformers", "triton", "vllm"}


def test_the_curve_of_the_recipe_is_read_from_its_lines(load_benchmark: Callable[[str], ModuleType]) -> None:
    printed = (
        "2 positions\nstep 50/900  moves 1.250  next state 0.500  lr × 1.00\nstep 100/900  moves 0.750  lr × 0.00\n"
    )
    assert load_benchmark("gpu_probes").curve(printed) == {
        "step 50": {"moves": 1.25, "next state": 0.5, "lr": 1.0},
        "step 100": {"moves": 0.75, "lr": 0.0},
    }

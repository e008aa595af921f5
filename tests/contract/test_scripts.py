"""Shell scripts return the right exit codes, and running them again changes nothing."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("train.sh", "test.sh", "scripts/setup.sh", "benchmarks/gpu_visit.sh", ".ci/run")
ENVIRONMENTS = (".venv", ".venv-peers", ".venv-vllm", ".venv-verifiers")
PIN = re.compile(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*")
# Fake of an environment's Python: records its arguments and fails if they contain $FAIL.
FAKE_PYTHON = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/calls"
case "$*" in *${FAIL:-no such call}*) exit ${FAIL_CODE:-1};; esac
"""


def bash(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["env", *(f"{name}={value}" for name, value in environment.items()), "bash", str(script), *arguments]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with the scripts, the pins and fake virtual environments."""
    for name in ("train.sh", "test.sh", "scripts", "requirements", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for program in [*(f"{venv}/bin/python" for venv in ENVIRONMENTS), ".venv/bin/rookworld"]:
        path = tmp_path / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FAKE_PYTHON)
        path.chmod(0o755)
    return tmp_path


def calls(project: Path, venv: str = ".venv") -> str:
    path = project / venv / "bin/calls"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_executable_strict_and_parses(name: str) -> None:
    script = ROOT / name
    assert script.stat().st_mode & 0o111 and "set -euo pipefail" in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


@pytest.mark.parametrize("file", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.stem)
def test_requirements_are_exact_pins_without_hosts(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("#", "-r "))]
    assert lines and [line for line in lines if not PIN.fullmatch(line)] == []


@pytest.mark.parametrize("mode", ["run", "peers", "vllm", "verifiers"])
def test_setup_installs_once_and_is_silent_after(project: Path, mode: str) -> None:
    first = bash(project / "scripts/setup.sh", mode)
    assert first.returncode == 0 and "installing" in first.stdout
    again = bash(project / "scripts/setup.sh", mode)
    assert (again.returncode, again.stdout) == (0, "")
    used = ".venv" if mode == "run" else f".venv-{mode}"
    assert [venv for venv in ENVIRONMENTS if calls(project, venv)] == [used]


def test_setup_for_tests_also_covers_runs(project: Path) -> None:
    bash(project / "scripts/setup.sh", "test")
    assert bash(project / "scripts/setup.sh", "run").stdout == ""


@pytest.mark.parametrize("changed", ["requirements/run.txt", "pyproject.toml"])
def test_setup_installs_again_when_a_pin_changes(project: Path, changed: str) -> None:
    bash(project / "scripts/setup.sh")
    with (project / changed).open("a") as file:
        file.write("# more\n")
    assert "installing" in bash(project / "scripts/setup.sh").stdout


def test_failed_installation_is_retried(project: Path) -> None:
    assert bash(project / "scripts/setup.sh", FAIL="install").returncode != 0
    assert "installing" in bash(project / "scripts/setup.sh").stdout


def test_setup_refuses_an_unknown_mode_in_one_line(project: Path) -> None:
    done = bash(project / "scripts/setup.sh", "everything")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_training_passes_its_arguments_to_smoke_then_train(project: Path) -> None:
    assert bash(project / "train.sh", "-m", "kl.coef=0,0.01", "steps=5").returncode == 0
    arguments = "-m kl.coef=0,0.01 steps=5"
    assert calls(project).endswith(f"smoke {arguments}\ntrain {arguments}\n")


def test_training_ends_with_the_exit_code_of_a_failed_smoke_test(project: Path) -> None:
    assert bash(project / "train.sh", FAIL="smoke", FAIL_CODE="3").returncode == 3
    assert "\ntrain" not in calls(project)


@pytest.mark.parametrize("failing", ["ruff check", "ruff format", "mypy", "pytest", "mkdocs", "tests/peers"])
def test_any_failing_check_fails_the_test_script(project: Path, failing: str) -> None:
    done = bash(project / "test.sh", "all", FAIL=failing)
    failures = [line for line in done.stderr.splitlines() if line.startswith("test: failed: ")]
    assert done.returncode == 1 and failures and all(failing in line for line in failures)
    assert all("pytest" in calls(project, venv) for venv in ENVIRONMENTS)


def test_test_script_without_all_uses_one_environment(project: Path) -> None:
    assert bash(project / "test.sh").returncode == 0
    assert [venv for venv in ENVIRONMENTS if calls(project, venv)] == [".venv"]

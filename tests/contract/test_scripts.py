import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("train.sh", "test.sh", "scripts/setup.sh", ".ci/run")
PIN = re.compile(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*")
# Stands in for the virtual environment's Python: notes what it is asked, and runs nothing.
FAKE_PYTHON = '#!/bin/sh\necho "$@" >>"$(dirname "$0")/calls"\n'


def bash(script: Path, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(script), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The scripts and pins, in a folder whose virtual environments are fakes."""
    for name in ("train.sh", "test.sh", "scripts", "requirements", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for venv in (".venv", ".venv-peers", ".venv-vllm", ".venv-verifiers"):
        put(tmp_path / venv / "bin/python", FAKE_PYTHON)
    return tmp_path


def calls(project: Path, name: str = "calls", venv: str = ".venv") -> list[str]:
    noted = project / venv / "bin" / name
    return noted.read_text().splitlines() if noted.exists() else []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_executable_strict_and_parses(name: str) -> None:
    script = ROOT / name
    assert script.stat().st_mode & 0o111
    assert "set -euo pipefail" in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_training_script_holds_no_hyper_parameter() -> None:
    lines = (ROOT / "train.sh").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert len(commands) == 3
    assert not re.search(r"=|\d", " ".join(commands))


@pytest.mark.parametrize(
    ("name", "included"),
    [
        ("run", []),
        ("test", ["-r run.txt"]),
        ("peers", ["-r test.txt"]),
        ("vllm", []),
        ("vllm-cuda", []),
        ("verifiers", []),
    ],
)
def test_requirements_are_exact_pins_without_hosts_or_local_versions(name: str, included: list[str]) -> None:
    lines = (ROOT / f"requirements/{name}.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [pin for pin in pins if pin.startswith("-r")] == included
    pins = [pin for pin in pins if pin not in included]
    assert all(PIN.fullmatch(pin) for pin in pins)
    assert not [pin for pin in pins if pin.startswith("nvidia")]


def test_setup_installs_once_and_is_silent_after(project: Path) -> None:
    first = bash(project / "scripts/setup.sh")
    assert first.returncode == 0 and len(first.stdout.splitlines()) >= 1
    installs = [call for call in calls(project) if " install " in call]
    assert len(installs) == 2
    assert installs[0].endswith("-r requirements/run.txt") and installs[1].endswith("-e .")
    before = calls(project)
    again = bash(project / "scripts/setup.sh")
    assert (again.returncode, again.stdout, calls(project)) == (0, "", before)


def test_setup_of_the_peers_touches_no_other_environment(project: Path) -> None:
    assert bash(project / "scripts/setup.sh", "peers").returncode == 0
    installs = [call for call in calls(project, venv=".venv-peers") if " install " in call]
    assert installs[0].endswith("-r requirements/peers.txt") and installs[1].endswith("-e .")
    assert calls(project) == []
    assert bash(project / "scripts/setup.sh", "peers").stdout == ""


@pytest.mark.parametrize("pins", ["vllm", "vllm-cuda"])
def test_setup_of_vllm_takes_the_build_of_the_machine(
    project: Path, pins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if pins == "vllm-cuda":
        put(project / "bin/nvidia-smi", "#!/bin/sh\n")
    elif shutil.which("nvidia-smi"):
        pytest.skip("there is CUDA here")
    monkeypatch.setenv("PATH", f"{project / 'bin'}:{os.environ['PATH']}")
    assert bash(project / "scripts/setup.sh", "vllm").returncode == 0
    noted = calls(project, venv=".venv-vllm")
    installs = [call for call in noted if " install " in call]
    assert installs[0].endswith(f"-r requirements/{pins}.txt") and installs[1].endswith("-e .")
    assert any("uninstall" in call and "torchvision" in call for call in noted) == (pins == "vllm")
    assert calls(project) == calls(project, venv=".venv-peers") == []


@pytest.mark.parametrize("changed", ["requirements/run.txt", "pyproject.toml"])
def test_setup_installs_again_when_a_pin_changes(project: Path, changed: str) -> None:
    bash(project / "scripts/setup.sh")
    before = len(calls(project))
    with (project / changed).open("a") as file:
        file.write("# more\n")
    bash(project / "scripts/setup.sh")
    assert len(calls(project)) > before


def test_an_installation_that_failed_is_tried_again(project: Path) -> None:
    put(project / ".venv/bin/python", FAKE_PYTHON + 'case "$*" in *install*) exit 1;; esac\n')
    assert bash(project / "scripts/setup.sh").returncode != 0
    put(project / ".venv/bin/python", FAKE_PYTHON)
    assert "installing" in bash(project / "scripts/setup.sh").stdout


def test_setup_refuses_an_unknown_mode_in_one_line(project: Path) -> None:
    done = bash(project / "scripts/setup.sh", "everything")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_training_passes_every_argument_to_smoke_then_train_from_any_folder(project: Path) -> None:
    bash(project / "scripts/setup.sh")
    put(project / ".venv/bin/rookworld", '#!/bin/sh\necho "$@" >>"$(dirname "$0")/commands"\n')
    done = bash(project / "train.sh", "-m", "kl.coef=0,0.01", "steps=5", cwd=Path("/"))
    assert done.returncode == 0
    expected = ["smoke -m kl.coef=0,0.01 steps=5", "train -m kl.coef=0,0.01 steps=5"]
    assert calls(project, "commands") == expected


def test_training_stops_with_the_exit_code_of_a_smoke_test_that_fails(project: Path) -> None:
    bash(project / "scripts/setup.sh")
    note = '#!/bin/sh\necho "$@" >>"$(dirname "$0")/commands"\n[ "$1" = train ] || exit 3\n'
    put(project / ".venv/bin/rookworld", note)
    assert bash(project / "train.sh").returncode == 3
    assert calls(project, "commands") == ["smoke"]


TOOLS = [
    ".venv/bin/ruff",
    ".venv/bin/mypy",
    ".venv/bin/pytest",
    ".venv-peers/bin/pytest",
    ".venv-vllm/bin/pytest",
    ".venv-verifiers/bin/pytest",
]


def put_tools(project: Path, failing: str = "") -> None:
    """Stand-ins for the checks; each notes what it is asked, and the one named fails."""
    for tool in TOOLS:
        note = 'echo "$@" >>"$(dirname "$0")/checks"'
        put(project / tool, f"#!/bin/sh\n{note}\nexit {int(tool == failing)}\n")


@pytest.mark.parametrize("failing", TOOLS)
def test_every_check_runs_and_any_failure_fails(project: Path, failing: str) -> None:
    put_tools(project, failing)
    done = bash(project / "test.sh", "all")
    assert done.returncode == 1
    (named,) = [line for line in done.stderr.splitlines() if line.startswith("test: failed: ")]
    assert Path(failing).name in named and ("tests/peers" in named) == (".venv-peers" in failing)
    assert ("tests/vllm" in named) == (".venv-vllm" in failing)
    assert ("tests/verifiers" in named) == (".venv-verifiers" in failing)
    excluded = "--extend-exclude .venv-peers --extend-exclude .venv-vllm --extend-exclude .venv-verifiers"
    assert calls(project, "checks") == [f"check {excluded}", "", "-q -n 2 --durations=10"]
    assert calls(project, "checks", ".venv-peers") == ["-q tests/peers"]
    assert calls(project, "checks", ".venv-vllm") == ["-q tests/vllm"]
    assert calls(project, "checks", ".venv-verifiers") == ["-q tests/verifiers"]


def test_without_all_the_peers_are_neither_set_up_nor_run(project: Path) -> None:
    put_tools(project, failing=".venv-peers/bin/pytest")
    assert bash(project / "test.sh").returncode == 0
    for venv in (".venv-peers", ".venv-vllm", ".venv-verifiers"):
        assert calls(project, venv=venv) == calls(project, "checks", venv) == []


def test_peers_that_cannot_be_set_up_fail_after_the_other_checks(project: Path) -> None:
    put_tools(project)
    put(project / ".venv-peers/bin/python", FAKE_PYTHON + 'case "$*" in *install*) exit 1;; esac\n')
    done = bash(project / "test.sh", "all")
    assert done.returncode == 1 and "test: failed: setup.sh peers" in done.stderr
    assert len(calls(project, "checks")) == 3
    assert calls(project, "checks", ".venv-peers") == []

"""The worked examples of CONTRIBUTING.md, applied to a copy of the tree and run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = ["A reward part", "A loss", "A suite", "A command"]
MOST_LINES_OF_A_REWARD_PART = 20


def example(title: str) -> tuple[str, str, str]:
    """The change, the code that uses it, and what that prints."""
    part = re.split(r"^## ", GUIDE.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    (change,), (code,), (said,) = (_blocks(part, kind) for kind in ("diff", "python", "text"))
    return change, code, said


def _blocks(part: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", part, re.S)


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no program `patch`")
@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_applies_and_does_what_it_says(title: str, tmp_path: Path) -> None:
    change, code, said = example(title)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "assets"))
    (tmp_path / "src/rookworld_rlvr/assets").symlink_to(ROOT / "src/rookworld_rlvr/assets")
    subprocess.run(["patch", "-p1", "--fuzz=0"], input=change, cwd=tmp_path, text=True, check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_a_reward_part_takes_few_lines() -> None:
    change, _, _ = example("A reward part")
    added = [line for line in change.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert 0 < len(added) <= MOST_LINES_OF_A_REWARD_PART


def test_the_guide_names_checks_that_exist() -> None:
    for name in ("test.sh", ".pre-commit-config.yaml", "tests/contract/test_contributing.py"):
        assert name in GUIDE and (ROOT / name).exists()

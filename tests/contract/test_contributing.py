"""The worked examples of CONTRIBUTING.md, applied to a copy of the package and run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^## ([^\n]+)\n[^#]*?```diff\n(.*?)```.*?```python\n(.*?)```\s*```text\n(.*?)```", re.M | re.S)
EXAMPLES = EXAMPLE.findall(GUIDE)


def apply(change: str, folder: Path) -> None:
    """Apply a diff to files of a folder. Line numbers are ignored, and a hunk may be applied already."""
    for name, hunks in re.findall(r"^--- (\S+)\n(.*?)(?=^---|\Z)", change, re.M | re.S):
        path = folder / name
        text = path.read_text(encoding="utf-8")
        for hunk in hunks.split("@@\n"):
            old, new = ("".join(line[1:] for line in hunk.splitlines(True) if line[0] in kept) for kept in (" -", " +"))
            if new not in text:
                assert text.count(old) == 1, f"CONTRIBUTING.md: expected these lines once in {path.name}:\n{old}"
                text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")


def test_guide_has_a_reward_and_an_advantage_example() -> None:
    assert [title for title, *_ in EXAMPLES] == ["A new reward component", "A changed advantage"]


@pytest.mark.parametrize(("title", "change", "code", "output"), EXAMPLES, ids=[title for title, *_ in EXAMPLES])
def test_guide_example_prints_the_output_shown(title: str, change: str, code: str, output: str, tmp_path: Path) -> None:
    source, tests = tmp_path / "src/rookworld_rlvr", tmp_path / "tests/rewards"
    shutil.copytree(ROOT / "src/rookworld_rlvr", source, ignore=shutil.ignore_patterns("__pycache__", "assets"))
    (source / "assets").symlink_to(ROOT / "src/rookworld_rlvr/assets")
    tests.mkdir(parents=True)
    shutil.copy(ROOT / "tests/rewards/test_rubric.py", tests)
    apply(change, tmp_path)
    assert run(tmp_path, "-c", code) == output
    assert " passed" in run(tmp_path, "-m", "pytest", "-q", str(tests), "-k", "some_total")


def run(folder: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

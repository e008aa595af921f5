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
    """Apply the hunks of a change to its file. A hunk fits where its old lines stand, at any line number."""
    header, *lines = change.splitlines(keepends=True)
    path = folder / header.removeprefix("--- ").strip()
    text = path.read_text(encoding="utf-8")
    for hunk in "".join(lines).split("@@\n"):
        old, new = ("".join(line[1:] for line in hunk.splitlines(True) if line[0] in kept) for kept in (" -", " +"))
        assert text.count(old) == 1, f"CONTRIBUTING.md: expected these lines once in {path.name}:\n{old}"
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def test_there_is_an_example_of_a_reward_and_of_an_advantage() -> None:
    assert [title for title, *_ in EXAMPLES] == ["A new reward component", "A changed advantage"]


@pytest.mark.parametrize(("title", "change", "code", "output"), EXAMPLES, ids=[title for title, *_ in EXAMPLES])
def test_an_example_does_what_it_says(title: str, change: str, code: str, output: str, tmp_path: Path) -> None:
    source = tmp_path / "src/rookworld_rlvr"
    ignored = shutil.ignore_patterns("__pycache__", "assets")
    shutil.copytree(ROOT / "src/rookworld_rlvr", source, ignore=ignored)
    (source / "assets").symlink_to(ROOT / "src/rookworld_rlvr/assets")
    apply(change, tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, output), done.stderr

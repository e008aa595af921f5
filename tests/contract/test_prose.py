"""Docstrings that a reader understands without looking at their neighbour."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "benchmarks", "environments")
FILES = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
# A sentence that begins with one of these needs the name or the docstring above it.
LEANING = ("Of ", "The same", "Those ", "That of", "Likewise")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_docstring_leans_on_its_neighbour(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    texts = (node.value for node in alone if isinstance(node, ast.Constant) and isinstance(node.value, str))
    assert [text for text in texts if text.startswith(LEANING)] == []

"""Docstrings that a reader understands without looking at their neighbour."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "rookworld_rlvr"
# A sentence that begins with one of these needs the name or the docstring above it.
LEANING = ("Of ", "The same", "Those ", "That of", "Likewise")


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_no_docstring_leans_on_its_neighbour(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    texts = (node.value for node in alone if isinstance(node, ast.Constant) and isinstance(node.value, str))
    assert [text for text in texts if text.startswith(LEANING)] == []

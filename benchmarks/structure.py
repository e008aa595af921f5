"""How much must a reader open? The shape of the code at one commit or more, side by side.

    .venv/bin/python benchmarks/structure.py [COMMIT...]

Prints a table of what `src/rookworld_rlvr` holds at each commit; without one, at HEAD. `one step: …` counts the modules
of `training` that `training/step.py` imports, and those that these import: what a reader may have to open to follow a
step. A circle is a set of modules that import each other, imports for type checking included.
"""

import argparse
import ast
import io
import subprocess
import sys
import tarfile
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from statistics import median

ROOT = PurePosixPath("src/rookworld_rlvr")
LEANING = ("Of ", "The same", "Those ", "That of", "Likewise")
LONG_FUNCTION, LONG_FILE = 40, 250
STEP = ("training", "step")
Module = tuple[str, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs="*", default=["HEAD"])
    commits = parser.parse_args().commits
    columns = [measures(sources(commit)) for commit in commits]
    names = list(dict.fromkeys(name for column in columns for name in column))
    print("| | " + " | ".join(commits) + " |")
    print("|---|" + "---|" * len(commits))
    for name in names:
        print(f"| {name} | " + " | ".join(str(column.get(name, 0)) for column in columns) + " |")
    return 0


def sources(commit: str) -> dict[Module, str]:
    """The package's modules at a commit: their names, within the package, and their text."""
    archive = subprocess.run(["git", "archive", commit, str(ROOT)], capture_output=True, check=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            path = PurePosixPath(member.name)
            file = tar.extractfile(member) if path.suffix == ".py" else None
            if file is not None:
                found[path.relative_to(ROOT).with_suffix("").parts] = file.read().decode()
    return found


def measures(modules: dict[Module, str]) -> dict[str, float]:
    """The rows of the table."""
    trees = {name: ast.parse(text) for name, text in modules.items()}
    lines = {name: len(text.splitlines()) for name, text in modules.items()}
    graph = {name: set(imported(name, tree, modules.keys())) for name, tree in trees.items()}
    lengths = [length for tree in trees.values() for length in function_lengths(tree)]
    step = reached(STEP, {name: {other for other in to if other[0] == STEP[0]} for name, to in graph.items()})
    direct = {STEP} | {name for name in graph[STEP] if name[0] == STEP[0]}
    packages = sorted({name[0] for name in modules if len(name) > 1})
    return {
        "files": len(modules),
        "lines": sum(lines.values()),
        **{f"files in `{package}`": sum(name[:-1] == (package,) for name in modules) for package in packages},
        "one step: modules of `training` imported by `step.py`, itself included": len(direct),
        "one step: modules of `training` reached": len(step),
        "one step: their lines": sum(lines[name] for name in step),
        "one step: `step.py`, `loss.py` and `collection.py`, lines": sum(
            lines.get((STEP[0], file), 0) for file in ("step", "loss", "collection")
        ),
        "circles of imports": circles(graph),
        "annotations that are `Any` alone": sum(any_annotations(tree) for tree in trees.values()),
        "functions": len(lengths),
        "median function, lines": median(lengths),
        f"functions over {LONG_FUNCTION} lines": sum(length > LONG_FUNCTION for length in lengths),
        f"files over {LONG_FILE} lines": sum(count > LONG_FILE for count in lines.values()),
        "docstrings that lean on a neighbour": sum(
            text.startswith(LEANING) for tree in trees.values() for text in docstrings(tree)
        ),
    }


def imported(name: Module, tree: ast.AST, known: Collection[Module]) -> Iterator[Module]:
    """The modules that a module imports, at its top or within a function; a package counts as its `__init__`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = (*name[: len(name) - node.level], *(node.module.split(".") if node.module else ()))
            for target in (base, *((*base, alias.name) for alias in node.names)):
                yield from (module for module in (target, (*target, "__init__")) if module in known)


def reached(start: Module, graph: dict[Module, set[Module]]) -> set[Module]:
    """A module and all that it imports, directly or not."""
    found, open_ = set[Module](), [start]
    while open_:
        module = open_.pop()
        if module not in found:
            found.add(module)
            open_ += graph.get(module, ())
    return found


def circles(graph: dict[Module, set[Module]]) -> int:
    """How many sets of modules import each other."""
    behind = {name: reached(name, graph) for name in graph}
    rings = {frozenset(other for other in behind[name] if name in behind[other]) for name in graph}
    return sum(len(ring) > 1 for ring in rings)


def function_lengths(tree: ast.AST) -> list[int]:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in found]


def any_annotations(tree: ast.AST) -> int:
    annotations = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            annotations.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            annotations.append(node.returns)
    return sum(isinstance(annotation, ast.Name) and annotation.id == "Any" for annotation in annotations)


def docstrings(tree: ast.AST) -> Iterator[str]:
    """The texts that stand alone: of modules, classes, functions and fields."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value


if __name__ == "__main__":
    sys.exit(main())

"""Every import follows the rule of the layers: a package imports only packages of lower layers."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "rookworld_rlvr"
SOURCE = Path(__file__).resolve().parents[2] / "src" / PACKAGE
LAYERS = {
    "board": 0,
    "stockfish": 1,
    "tasks": 2,
    "rewards": 3,
    "generation": 3,
    "objective": 4,
    "model": 5,
    "rollout": 6,
    "evaluation": 7,
    "stability": 6,
    "training": 8,
    "report": 9,
    "play": 9,
    "interop": 9,
    "app": 10,
}
HIGHEST_LAYER_WITHOUT_TORCH = 3
FILES = sorted(SOURCE.rglob("*.py"))


def package_of(file: Path) -> str:
    """Return the name of the package that a file is in; empty for the files at the root."""
    parts = file.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else ""


def imports(file: Path) -> Iterator[str]:
    """Yield the full dotted names of a file's imports, including imports inside functions."""
    parents = [PACKAGE, *file.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def packages_imported(file: Path) -> set[str]:
    names = (name.split(".") for name in imports(file))
    return {parts[1] for parts in names if parts[0] == PACKAGE and len(parts) > 1 and parts[1] in LAYERS}


def module_of(file: Path) -> str:
    """Return the full dotted name of a file's module; for `__init__.py` that of its package."""
    return ".".join([PACKAGE, *file.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")


def importers(library: str) -> set[str]:
    return {
        str(file.relative_to(SOURCE)) for file in FILES if any(name.split(".")[0] == library for name in imports(file))
    }


def test_every_source_package_has_a_layer() -> None:
    with_code = {package_of(file) for file in FILES} - {""}
    assert with_code <= LAYERS.keys()
    assert {"board", "tasks", "rewards", "objective"} <= with_code


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_package_imports_only_itself_and_lower_layers(file: Path) -> None:
    package = package_of(file)
    if not package:
        # `load` in __init__.py imports only when it is called.
        assert file.name in ("__main__.py", "__init__.py") or not packages_imported(file)
        return
    allowed = {other for other in LAYERS if LAYERS[other] < LAYERS[package]} | {package}
    if package == "objective":
        allowed = {package}
    assert packages_imported(file) <= allowed


def test_other_packages_use_data_generation_through_its_door() -> None:
    package = f"{PACKAGE}.generation"
    inside = {module_of(file) for file in FILES if package_of(file) == "generation"} - {package}
    named = {name for file in FILES if package_of(file) != "generation" for name in imports(file)}
    assert inside and f"{package}.generate" in named
    assert not [name for name in named if name in inside or name.rpartition(".")[0] in inside]


def test_imports_have_no_cycles() -> None:
    modules = {module_of(file) for file in FILES}
    graph = {}
    for file in FILES:
        named = {name if name in modules else name.rpartition(".")[0] for name in imports(file)}
        graph[module_of(file)] = named & modules - {module_of(file)}
    # A cycle raises CycleError, which names its modules.
    assert set(TopologicalSorter(graph).static_order()) == modules


def test_import_scan_finds_relative_absolute_and_nested_imports() -> None:
    assert "rookworld_rlvr.board.fen.parse_fen" in set(imports(SOURCE / "tasks" / "policy" / "text.py"))
    assert {"rewards", "tasks"} <= packages_imported(SOURCE / "rewards" / "rubric.py")
    assert "tasks/corpus.py" in importers("datasets")


def test_chess_and_rewards_import_no_torch() -> None:
    packages = {file.split("/")[0] for library in ("torch", "transformers") for file in importers(library)}
    assert {package for package in packages if LAYERS[package] <= HIGHEST_LAYER_WITHOUT_TORCH} == set()


def test_importing_the_rewards_loads_no_torch() -> None:
    code = f"import {PACKAGE}.rewards, sys; sys.exit('torch' in sys.modules)"
    path = {"PYTHONPATH": str(SOURCE.parent)}
    assert subprocess.run([sys.executable, "-c", code], env=path, check=False).returncode == 0


@pytest.mark.slow
def test_plain_run_imports_no_optional_dependency(small_overrides: list[str], tmp_path: Path) -> None:
    little = ("steps=1", "evaluation.rows=0", "generator.max_new_tokens=8", f"output_root={tmp_path}")
    run = ["train", *small_overrides, *little]
    code = f"from {PACKAGE}.app.cli import main; code = main({run}); import sys; print(*sys.modules); sys.exit(code)"
    path = {"PYTHONPATH": str(SOURCE.parent), "PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    extras = "datasets pandas peft tensorboard trl verifiers vllm wandb"
    imported = done.stdout.splitlines()[-1].split()
    assert set(extras.split()).isdisjoint(imported)
    # A single process does not load modules that only several processes need.
    assert not {f"{PACKAGE}.model.ranks", "torch.distributed.launcher.api"} & set(imported)


def test_only_the_app_imports_hydra() -> None:
    assert {file for library in ("hydra", "omegaconf") for file in importers(library)} <= {
        str(file.relative_to(SOURCE)) for file in FILES if package_of(file) == "app"
    }


def closure(name: str) -> set[str]:
    """Return the modules that a module needs: those it imports, those they import, and so on; itself included."""
    files = {module_of(file): file for file in FILES}
    needed, todo = set[str](), [f"{PACKAGE}.{name}"]
    while todo:
        module = todo.pop()
        if module in files and module not in needed:
            needed.add(module)
            # `from .loss import LossPlan` names the module, `from . import checks` a module as well.
            todo += [part for imported in imports(files[module]) for part in (imported, imported.rpartition(".")[0])]
    return needed - {PACKAGE}


@pytest.mark.parametrize(("name", "most"), [("training.loss", 20), ("training.step", 45)])
def test_the_step_and_its_loss_can_be_read_with_few_modules(name: str, most: int) -> None:
    assert len(closure(name)) <= most, sorted(closure(name))

"""The generated reference pages list every option, metric and command with its description."""

import importlib.util
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rookworld_rlvr.app.cli import COMMANDS
from rookworld_rlvr.app.config import BenchRunConfig, EvaluateConfig
from rookworld_rlvr.evaluation.keys import declared
from rookworld_rlvr.training.metrics import METRICS

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "generate_docs.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up the module that they are defined in.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "generate_docs", module)
        spec.loader.exec_module(module)
        yield module


def leaves(config: Any) -> int:
    values = [getattr(config, option.name) for option in fields(config)]
    return sum(leaves(value) if is_dataclass(value) else 1 for value in values)


@pytest.mark.parametrize("schema", [BenchRunConfig, EvaluateConfig])
def test_every_option_is_listed_with_a_description(generator: ModuleType, schema: type) -> None:
    options = list(generator.options(schema))
    assert len(options) == leaves(schema())
    assert [option.name for option in options if not option.text] == []


def test_every_metric_is_listed(generator: ModuleType) -> None:
    page = generator.metrics_page()
    documented = [key for key, entry in declared().items() if entry.meaning]
    assert [key for key in (*METRICS, *documented) if f"| `{key}` |" not in page] == []


def test_every_command_is_listed_with_its_help(generator: ModuleType) -> None:
    page = generator.cli_page()
    for command in COMMANDS:
        section = page.split(f"## `rookworld {command}`\n", 1)[1].split("\n## ", 1)[0]
        assert f"usage: rookworld {command}" in section, command


def test_generated_pages_are_deterministic(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        monkeypatch.setattr("sys.argv", ["generate_docs.py", str(tmp_path / name)])
        assert generator.main() == 0
    pages = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert pages == ["cli.md", "configuration.md", "metrics.md"]
    assert all((tmp_path / "a" / page).read_bytes() == (tmp_path / "b" / page).read_bytes() for page in pages)

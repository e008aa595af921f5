"""Every earlier name of an option or a group is refused in one line, which names an option that exists."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.old_names import OLD_NAMES
from rookworld_rlvr.errors import BAD_INPUT

NAMES = [(command, old) for command, by_name in OLD_NAMES.items() for old in by_name]
USE = re.compile(r"use ([\w.]+(?:=[\w./\[\]-]+)?)")
USED = sorted({(command, used) for command, old in NAMES for used in USE.findall(OLD_NAMES[command][old])})


@pytest.mark.parametrize(("command", "old"), NAMES)
def test_old_name_is_refused_in_one_line_with_what_to_use(
    command: str, old: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([command, old if "=" in old else f"{old}=1"]) == BAD_INPUT
    assert capfd.readouterr().err == f"rookworld: {old}: {OLD_NAMES[command][old]}\n"


@pytest.fixture(scope="module")
def configurations() -> dict[str, Any]:
    """Return a cache of the commands' configurations. Composing one takes longer than everything else here."""
    return {}


@pytest.mark.parametrize(("command", "used"), USED)
def test_name_to_use_is_accepted(
    command: str, used: str, composed: Callable[..., Any], configurations: dict[str, Any]
) -> None:
    if "=" in used:
        composed(used, command=command)
        return
    if command not in configurations:
        configurations[command] = composed(command=command)
    option = configurations[command]
    for name in used.split("."):
        option = getattr(option, name)


@pytest.mark.parametrize(
    ("given", "old"),
    [
        (["-m", "generator=hf,native"], "generator=hf"),
        (["+evaluation_rows=0"], "evaluation_rows"),
        (["rubric.policy.correctness.best_value=0.5"], "rubric.policy.correctness"),
        (["steps=2", "kl=off"], "kl=off"),
    ],
)
def test_old_name_is_found_in_sweeps_additions_and_longer_names(
    given: list[str], old: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *given]) == BAD_INPUT
    assert capfd.readouterr().err.startswith(f"rookworld: {old}: use ")


def test_saved_configuration_with_an_old_name_is_refused_in_one_line(
    train: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = train("steps=1", "evaluation.rows=0")
    config = folder / "config.yaml"
    config.write_text(config.read_text() + "evaluation_rows: 4\n")
    capfd.readouterr()
    assert main(["train", f"resume={folder}", "steps=2"]) == BAD_INPUT
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and "evaluation_rows" in error and str(config) in error

"""An option, group choice or command of earlier versions is refused in one line that names its successor."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from rookworld_rlvr.app.arguments import conf_folder
from rookworld_rlvr.app.cli import COMMANDS, main
from rookworld_rlvr.app.config import BenchRunConfig, EvaluateConfig, SFTRunConfig
from rookworld_rlvr.app.renamed_options import REMOVED, RENAMED_COMMANDS, RENAMED_OPTIONS, renamed_option

SCHEMAS = (BenchRunConfig, EvaluateConfig, SFTRunConfig)


def options_and_groups(config: Any, path: str = "") -> Iterator[str]:
    for option in fields(config):
        yield f"{path}{option.name}"
        value = getattr(config, option.name)
        if is_dataclass(value):
            yield from options_and_groups(value, f"{path}{option.name}.")


PRESENT = {option for schema in SCHEMAS for option in options_and_groups(schema())}


def refusal(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    shown = capfd.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    return shown.err


def hint(new: str) -> str:
    return new.removeprefix(REMOVED).removesuffix(")") if new.startswith(REMOVED) else f"use {new}"


@pytest.mark.parametrize("old", RENAMED_OPTIONS)
def test_a_renamed_option_is_refused_with_its_new_name(old: str, capfd: pytest.CaptureFixture[str]) -> None:
    override = old if "=" in old else f"{old}=1"
    for command in ("train", "evaluate"):
        assert hint(RENAMED_OPTIONS[old]) in refusal([command, "steps=3", override], capfd)


@pytest.mark.parametrize("old", RENAMED_OPTIONS)
def test_a_new_name_exists_and_the_old_one_does_not(old: str) -> None:
    new = RENAMED_OPTIONS[old]
    assert (new.startswith(REMOVED) and new.endswith(")")) or new.split("=")[0] in PRESENT or is_group_file(new)
    assert old not in PRESENT and not is_group_file(old)


def is_group_file(choice: str) -> bool:
    group, _, name = choice.partition("=")
    return bool(name) and (conf_folder() / group / f"{name}.yaml").is_file()


@pytest.mark.parametrize("prefix", ["", "+", "++", "~"])
def test_an_option_below_a_renamed_group_keeps_its_last_part(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RENAMED_OPTIONS, "old.group", "new.group")
    assert renamed_option([f"{prefix}old.group.leaf=1"]) == "old.group.leaf was renamed: use new.group.leaf"
    assert renamed_option([f"{prefix}old.group=1"]) == "old.group was renamed: use new.group"
    assert renamed_option([f"{prefix}old.groups=1"]) == ""


def test_a_renamed_value_of_an_option_that_stays_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RENAMED_OPTIONS, "mode=old", "mode=new")
    assert renamed_option(["mode=old"]) == "mode=old was renamed: use mode=new"
    assert renamed_option(["mode=new"]) == ""


@pytest.mark.parametrize("old", RENAMED_COMMANDS)
def test_a_renamed_command_is_refused_with_its_new_name(old: str, capfd: pytest.CaptureFixture[str]) -> None:
    new = RENAMED_COMMANDS[old]
    assert new.startswith(REMOVED) or new.split()[0] in COMMANDS
    assert hint(new if new.startswith(REMOVED) else f"rookworld {new}") in refusal(old.split(), capfd)

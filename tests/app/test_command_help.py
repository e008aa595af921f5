"""The help of a command lists exactly the options that it accepts."""

import re
import subprocess
import sys
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import pytest
from hydra.errors import HydraException

from rookworld_rlvr.app.arguments import conf_folder
from rookworld_rlvr.app.cli import COMMANDS, CONFIGURED, main

FILES = {f"{path.parent.name}={path.stem}" for path in conf_folder().glob("*/*.yaml")}


def help_of(command: str, capfd: pytest.CaptureFixture[str], flag: str = "--help") -> str:
    capfd.readouterr()
    assert main([command, flag]) == 0
    shown = capfd.readouterr()
    assert shown.err == "" and "Hydra" not in shown.out
    return shown.out


def options_in(text: str) -> set[str]:
    rows = re.findall(r"^  (\w+) +(\S.*)$", text, re.M)
    return {f"{group}={option}" for group, choices in rows for option in choices.split(", ")}


def by_group(options: set[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for option in sorted(options):
        groups.setdefault(option.split("=")[0], []).append(option)
    return groups


def test_configured_commands_match_the_files_under_conf() -> None:
    assert {f"{name}.yaml" for name in CONFIGURED.values()} == {path.name for path in conf_folder().glob("*.yaml")}
    others = {"data", "export", "inspect", "play", "report", "rescore", "rollouts", "uci"}
    assert COMMANDS.keys() - CONFIGURED.keys() == others


@pytest.mark.parametrize("command", CONFIGURED)
def test_help_lists_exactly_the_accepted_option_groups(
    command: str, composed: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    shown = options_in(help_of(command, capfd))
    assert shown <= FILES
    groups = by_group(shown)
    # Options of different groups are composed together, because composing takes a third of a second.
    for together in zip_longest(*groups.values()):
        composed(*filter(None, together), command=CONFIGURED[command])
    for group, options in by_group(FILES - shown).items():
        assert group not in groups, f"{options} are missing"
        with pytest.raises(HydraException):
            composed(options[0], command=CONFIGURED[command])


@pytest.mark.parametrize("command", CONFIGURED)
def test_help_shows_usage_summary_and_where_to_find_options(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    text = help_of(command, capfd)
    assert text == help_of(command, capfd, "-h")
    assert text.startswith(f"usage: rookworld {command} [") and f"\n{COMMANDS[command]}\n" in text
    assert "scripts/generate_docs.py" in text and "--cfg job" in text


def test_evaluate_help_shows_usage_of_the_compare_subcommand(
    capfd: pytest.CaptureFixture[str],
) -> None:
    (form,) = re.findall(r"rookworld evaluate compare (.*)", help_of("evaluate", capfd))
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", "compare", "--help"])
    assert ended.value.code == 0 and f"usage: rookworld evaluate compare [-h] {form}\n" in capfd.readouterr().out
    assert "compare" in COMMANDS["evaluate"]


def test_cfg_job_prints_the_composed_configuration(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "generator.kind=hf", "selfplay.games=7", "--cfg", "job"]) == 0
    shown = capfd.readouterr().out
    assert "  kind: hf\n" in shown and "  games: 7\n" in shown


def test_help_needs_no_torch() -> None:
    code = "from rookworld_rlvr.app.cli import main; main(['train', '--help']); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "hydra"} & set(done.stdout.split())

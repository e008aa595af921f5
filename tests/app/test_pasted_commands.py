"""Commands that rookworld prints work as they are pasted into a shell, and a value without its quotes is named."""

import shlex
import subprocess
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.quotes import require_quotes
from rookworld_rlvr.app.tables import Member
from rookworld_rlvr.app.train import _next, _show_sweep
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.shell import command, quoted, setting, shell_word, train_command
from rookworld_rlvr.tasks import task_named

PATHS = [
    "outputs/latest", "seed=0", "out (1)/x", "a#b", "grün", "日本", "a,b.txt", "it's", 'a"b', "a{b}", "a\\b",
    "a\\", "a\\'b", "a&b;c|d", "$HOME", "~/x", "a!b", "", " a ", "null", "TRUE", "1e3", "12", "1_000", "`a`", "[a]",
    "a b/c", "*?", "-a", "a:b/",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_setting_gives_hydra_the_same_text_through_a_shell(path: str) -> None:
    pasted = subprocess.run(
        ["bash", "-c", f"printf %s {shell_word(setting('resume', path))}"], capture_output=True, text=True, check=True
    ).stdout
    assert pasted == setting("resume", path)
    value = OverridesParser.create().parse_override(pasted).value()
    assert (value.text if isinstance(value, QuotedString) else value) == path


@pytest.mark.parametrize("path", PATHS)
def test_printed_commands_have_their_words_again_in_a_shell(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shlex.split(command("report", path, "--output", "a b"))[1:] == ["report", path, "--output", "a b"]
    assert shlex.split(train_command(path))[1:] == ["train", path]
    (tmp_path / "train.sh").touch()
    assert shlex.split(train_command(path)) == ["bash", "train.sh", path]


def test_path_of_a_study_needs_quotes_only_in_hydra() -> None:
    assert setting("resume", "outputs/studies/a/none/seed=0/1/2") == "resume='outputs/studies/a/none/seed=0/1/2'"
    assert shell_word("resume='seed=0'") == "\"resume='seed=0'\""
    assert shell_word("outputs/2026-11-28/12-00-00-run") == "outputs/2026-11-28/12-00-00-run"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "data.train=d/v=2/rows.txt",
            """with '=', got data.train=d/v=2/rows.txt; type "data.train='d/v=2/rows.txt'\"""",
        ),
        ("resume=out (1)/x", """with '(' and ')', got resume=out (1)/x; type "resume='out (1)/x'\""""),
        ("data.train=a#b", """with '#', got data.train=a#b; type "data.train='a#b'\""""),
        ("data.train=grün/a", """with 'ü', got data.train=grün/a; type "data.train='grün/a'\""""),
        ("data.train=~/a", """type "data.train='~/a'\""""),
        ("data.exclude=[a=b,c.txt]", """type "data.exclude=['a=b',c.txt]\""""),
        ("data.train=a,b", """a comma; type "data.train='a,b'", or for a list 'data.train=[a,b]'"""),
        ("+a=b=c", "+a: expected quotes around a value with '='"),
        ("name=it's", """around a value with "'","""),
    ],
)
def test_value_that_needs_quotes_is_named_with_them(override: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        require_quotes(["steps=1", override], sweep=False)
    assert expected in str(caught.value) and str(caught.value).startswith(override.split("=")[0] + ": expected ")
    advised = str(caught.value).split("; type ")[1].split(", or for")[0]
    require_quotes(shlex.split(advised), sweep=False)


def test_each_value_of_a_sweep_gets_quotes_of_its_own() -> None:
    require_quotes(["kl.coef=0,1", "data.train='a=b'", "kl.coef=range(1,3)", "steps", "=", "~steps"], sweep=True)
    with pytest.raises(UserError, match=r"data\.train='a=1',b"):
        require_quotes(["data.train=a=1,b"], sweep=True)


@pytest.mark.parametrize("name", ["train", "evaluate", "sft"])
def test_command_names_the_option_that_needs_quotes_in_one_line(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([name, "model.path=a=b"]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "rookworld: model.path: expected quotes around a value with '=', got model.path=a=b; type "
        "\"model.path='a=b'\"\n"
    )


def test_a_run_in_an_odd_folder_prints_commands_that_name_it(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("out (1)/grün #/seed=0")
    task = task_named("policy")
    again = shlex.split(_next(folder, {"stopped": "interrupted", "steps": 2}, task).removeprefix("to resume: "))
    assert again == ["bash", "train.sh", f"resume={quoted(str(folder))}"]
    ended = {"stopped": "finished", "steps": 2}
    play = shlex.split(_next(folder, ended, task).removeprefix("to play against it: "))
    assert play[1:] == ["play", "--model", str(folder / "checkpoints/step-2")]
    assert _next(folder, ended, task_named("chat")).endswith(" --task chat")
    assert _next(folder, ended, None) == f"its model: {shell_word(str(folder / 'checkpoints/step-2'))}"
    summary = {"steps": 1, "stopped": "finished", "gain": {}, "after": {}, "worse": [], "wall_s": 1.0}
    _show_sweep([Member([f"seed={n}"], summary, folder / str(n)) for n in (0, 1)])
    compare = capsys.readouterr().out.splitlines()[-1].removeprefix("to compare them on one page: ")
    assert shlex.split(compare)[1:] == ["report", str(folder / "0"), str(folder / "1"), "--output", "report.html"]

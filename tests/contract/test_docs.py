"""README and documents agree with the code: links resolve, commands parse, snippets run, figures are right."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "rookworld_rlvr"
README = ROOT / "README.md"
DATA_CARD = SOURCE / "assets/data/README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), DATA_CARD])
PUBLIC_PAGE = re.compile(r"https?://(?!\d+\.\d+\.\d+\.\d+|localhost)[\w-]+(\.[\w-]+)+(/[^\s]*)?")
SECRETS = re.compile(
    r"(?<![\w.~-])/(?:work|tmp|root|home)/"
    r"|\b(?:10|127|172|192)\.\d+\.\d+\.\d+\b|localhost|index-url"
    r"|\b(?:hf|ghp|gho|github_pat|sk|pypi)[_-][A-Za-z0-9]{20,}|\bAKIA[A-Z0-9]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY",
    re.I,
)
HYDRA_COMMANDS = {"smoke": "train"} | {name: name for name in ("train", "bench", "evaluate", "sft")}
UNFILLED = "@@"
# Written by scripts/generate_docs.py when the site is built.
GENERATED = {"configuration.md", "metrics.md", "cli.md"}


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document, re.S)


def command_lines(document: str) -> list[list[str]]:
    """Return the commands of all bash blocks, split into words."""
    lines = (line for block in blocks(document, "bash") for line in block.splitlines())
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def snippets() -> list[tuple[str, str, str]]:
    """Return document, code and output of each Python block that is followed by a block of its output."""
    pair = re.compile(r"```python\n(.*?)```\s*```text\n(.*?)```", re.S)
    documents = [path for path in DOCUMENTS if path.name != "CONTRIBUTING.md"]
    return [(path.name, code, output) for path in documents for code, output in pair.findall(path.read_text("utf-8"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_resolves_or_is_a_public_page(document: Path) -> None:
    targets = re.findall(r"\]\(([^)\s#]+)", document.read_text(encoding="utf-8"))
    local = [target for target in targets if not PUBLIC_PAGE.fullmatch(target) and Path(target).name not in GENERATED]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_contain_no_secrets_or_machine_paths(document: Path) -> None:
    assert [match.group() for match in SECRETS.finditer(document.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "secret", ["see /work/x", "(/root/y)", "localhost", "10.0.0.1", f"hf_{'a' * 30}", "--index-url"]
)
def test_secret_scanner_finds_secrets(secret: str) -> None:
    assert SECRETS.search(secret)


@pytest.mark.parametrize("harmless", ["my/work/x", "version 2.0.1", "sk-learn", "src/tmp/a.py"])
def test_secret_scanner_ignores_harmless_text(harmless: str) -> None:
    assert not SECRETS.search(harmless)


@pytest.mark.parametrize(("name", "code", "output"), snippets(), ids=lambda value: value[:30])
def test_snippet_prints_the_output_shown_below_it(
    name: str, code: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == output


def test_the_example_lines_of_the_readme_are_valid_rows(tmp_path: Path) -> None:
    from rookworld_rlvr.tasks.audit import audit

    lines = [line for block in blocks(text("README.md"), "text") for line in block.splitlines()]
    rows = [line for line in lines if line[:2] in ("P:", "A:")]
    shown = tmp_path / "shown.txt"
    shown.write_text("\n".join(rows) + "\n")
    report = audit(shown)
    assert (report.valid, report.is_clean) == (2, True)


def test_reward_component_table_has_every_weight() -> None:
    from rookworld_rlvr.tasks.policy.reward import CORRECTNESS_WEIGHTS

    table = text("docs/rewards.md").split("| component of `P:` correctness |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| (`[^|]+) \| ([\d., ]+) \|", table, re.M)
    shown = {
        name: float(weight)
        for names, weights in rows
        for name, weight in zip(re.findall(r"`(\w+)`", names), weights.split(", "), strict=True)
    }
    weights = {name: weight for name, (_, weight) in CORRECTNESS_WEIGHTS.items()}
    assert shown == weights, "docs/rewards.md: expected a row with the weight of each of CORRECTNESS_WEIGHTS"


def test_the_table_of_faults_names_every_fault() -> None:
    from rookworld_rlvr.stability.faults import FaultKind

    table = text("docs/reliability.md").split("| fault | noticed when |")[1].split("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(FaultKind)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_shown_exists(document: Path) -> None:
    from rookworld_rlvr.app.cli import COMMANDS

    for words in command_lines(document.read_text(encoding="utf-8")):
        if words[0] == "rookworld":
            assert words[1] in COMMANDS, words
        elif words[0] == "bash":
            assert (ROOT / words[1]).is_file(), words


def composed(words: list[str]) -> tuple[str, list[str]] | None:
    """Return configuration name and overrides of a command (a sweep's first member); None for other commands."""
    if words[:2] == ["bash", "train.sh"]:
        words = ["rookworld", "train", *words[2:]]
    if words[0] != "rookworld" or words[1] not in HYDRA_COMMANDS or words[1:3] == ["evaluate", "compare"]:
        return None
    given = [word.split(",")[0] if "-m" in words else word for word in words[2:] if word != "-m"]
    return None if any(UNFILLED in word for word in given) else (HYDRA_COMMANDS[words[1]], given)


SHOWN = [shown for path in DOCUMENTS for words in command_lines(path.read_text("utf-8")) if (shown := composed(words))]


@pytest.mark.parametrize(
    ("name", "overrides"), SHOWN, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_the_overrides_shown_are_accepted(name: str, overrides: list[str]) -> None:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from rookworld_rlvr.app.arguments import conf_folder
    from rookworld_rlvr.app.config import BenchRunConfig, EvaluateConfig, RunConfig, SFTRunConfig
    from rookworld_rlvr.app.hydra_command import store_schema

    schemas = {"train": RunConfig, "bench": BenchRunConfig, "evaluate": EvaluateConfig, "sft": SFTRunConfig}
    store_schema(name, schemas[name])
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_folder())):
        assert is_dataclass(OmegaConf.to_object(compose(config_name=name, overrides=overrides)))


def options(schema: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted name of every option and every group of options of a configuration."""
    for option in fields(schema):
        value, name = getattr(schema, option.name), f"{path}{option.name}"
        yield name
        if is_dataclass(value):
            yield from options(value, f"{name}.")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_option_named_in_a_sentence_exists(document: Path) -> None:
    from rookworld_rlvr.app import config

    if document.name == "CHANGELOG.md":
        pytest.skip("it names options of earlier versions")
    schemas = (config.RunConfig, config.EvaluateConfig, config.BenchRunConfig, config.SFTRunConfig)
    known = {name for schema in schemas for name in options(schema())}
    groups = "|".join(sorted({name.split(".")[0] for name in known if "." in name}))
    named = set(re.findall(rf"`((?:{groups})(?:\.\w+)+)(?:\.\*)?(?:=[^`]*)?`", document.read_text("utf-8")))
    assert sorted(name for name in named - known if not (SOURCE / name).exists()) == []


def test_documented_options_of_the_data_command_exist(capsys: pytest.CaptureFixture[str]) -> None:
    from rookworld_rlvr.app.data import main

    for words in (words for path in DOCUMENTS for words in command_lines(path.read_text("utf-8"))):
        if words[:2] == ["rookworld", "data"]:
            with pytest.raises(SystemExit):
                main([words[2], "--help"])
            help_text = capsys.readouterr().out
            assert [word for word in words[3:] if word.startswith("--") and word not in help_text] == [], words


def test_documented_tier_weights_equal_the_rubrics_weights() -> None:
    from rookworld_rlvr.rewards.rubric import TierWeights

    shown = dict(re.findall(r"^\| (structure|parse|correctness) \| ([\d.]+) \|", text("docs/rewards.md"), re.M))
    weights = TierWeights()
    assert {tier: float(weight) for tier, weight in shown.items()} == {
        option.name: getattr(weights, option.name) for option in fields(weights)
    }


@pytest.mark.parametrize("name", ["train.txt", "held_out.jsonl"])
def test_data_card_audits_equal_audits_of_the_files(name: str) -> None:
    from rookworld_rlvr.tasks.audit import audit
    from rookworld_rlvr.training.data import default_file

    path = default_file(name)
    shown = re.search(rf"<!-- audit {name} -->\n```text\n(.*?)```", DATA_CARD.read_text("utf-8"), re.S)
    report = audit(path)
    expected = "".join(f"{line}\n" for line in report.lines()).replace(str(path), str(path.relative_to(ROOT)))
    assert shown and shown[1] == expected
    assert report.tasks["policy"].white["below_best"] == report.tasks["policy"].black["below_best"] == 0

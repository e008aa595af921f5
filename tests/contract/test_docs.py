"""The documents, held to the code: what they list is what there is, and what they show runs."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "rookworld_rlvr"
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
HOSTS = {"github.com", "joschu.net", "laion.ai", "fengyao.notion.site", "ringtech.notion.site", "richardli.xyz"}
READER_S_OWN = {"HOST:8000", "HOST:8001"}
MACHINE = re.compile(
    r"(?<![\w.~])/(?:work|tmp|root|home|usr|opt|mnt)\b|localhost|\b\d+\.\d+\.\d+\.\d+\b|\bpypi\b|index-url", re.I
)
HYDRA_COMMANDS = {"smoke": "train"} | {name: name for name in ("train", "bench", "evaluate", "pretrain", "warmstart")}
UNFILLED = "@@"
# Lines that a terminal shows.
SCREEN = 50


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(document: str, title: str) -> str:
    """What stands under a heading of level two."""
    return re.split(r"^## ", document.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document, re.S)


def table(document: str) -> list[list[str]]:
    """The cells of every table row below a heading; the header's rule separates them."""
    rows, below_rule = [], False
    for line in document.splitlines():
        if not line.startswith("|"):
            below_rule = False
        elif re.fullmatch(r"[|\-: ]+", line):
            below_rule = True
        elif below_rule:
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            rows.append([cell.strip().replace("\\|", "|") for cell in cells])
    return rows


def run_python(code: str) -> str:
    path = {"PYTHONPATH": str(SOURCE.parent), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", code], env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def command_lines(document: str) -> list[list[str]]:
    """The commands of all bash blocks, as words."""
    lines = (line for block in blocks(document, "bash") for line in block.splitlines())
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def test_there_are_the_documents_that_the_readme_promises() -> None:
    named = set(re.findall(r"docs/(\w+\.md)", text("README.md")))
    assert named >= {"architecture.md", "metrics.md", "configuration.md", "commands.md", "limits.md", "references.md"}
    assert named <= {document.name for document in DOCUMENTS}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)\s#]+)", document.read_text(encoding="utf-8"))
    local = [target for target in targets if not target.startswith(("http://", "https://"))]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_document_names_a_machine(document: Path) -> None:
    content = document.read_text(encoding="utf-8")
    assert MACHINE.findall(content) == []
    assert set(re.findall(r"https?://([^/)\s,\]]+)", content)) <= HOSTS | READER_S_OWN


def test_the_search_for_machines_finds_them() -> None:
    found = "see /work/x, (/tmp/y), localhost, 10.0.0.1, a pypi mirror"
    assert len(MACHINE.findall(found)) == 5
    assert not MACHINE.findall("my/work, src/tmp/a.py, version 2.0.1, https://github.com/work")


def paths_named(content: str) -> set[str]:
    """File names with a folder, in backticks."""
    return set(re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|yaml|md|txt|sh))`", content))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_named_with_its_folder_exists(document: Path) -> None:
    named = paths_named(document.read_text(encoding="utf-8"))
    assert {name for name in named if not ((ROOT / name).exists() or (SOURCE / name).exists())} == set()


# README


def test_readme_has_its_parts_in_order() -> None:
    titles = re.findall(r"^## (.+)$", text("README.md"), re.M)
    assert titles == [
        "Results",
        "One command",
        "What you see",
        "Smaller or larger machines",
        "How it works",
        "File map",
    ]


def test_the_results_of_the_readme_show_every_headline_key() -> None:
    from rookworld_rlvr.evaluation.headline import HEADLINE

    shown = [row[0].strip("`") for row in table(section(text("README.md"), "Results"))]
    assert shown == list(HEADLINE)


def test_the_readme_fits_three_screens_without_its_table() -> None:
    lines = [line for line in text("README.md").splitlines() if not line.startswith("|")]
    assert len(lines) <= 3 * SCREEN


def test_the_judge_used_alone_runs_and_prints_what_it_says() -> None:
    part = section(text("docs/judging.md"), "Using only the judge")
    (code,), (said,) = blocks(part, "python"), blocks(part, "text")
    assert run_python(f"{code}\nimport sys\nassert 'torch' not in sys.modules") == said


def test_the_rewards_for_other_libraries_run_and_print_what_they_say() -> None:
    part = section(text("docs/guides.md"), "From other libraries")
    (code,), (said,) = blocks(part, "python"), blocks(part, "text")
    assert run_python(f"{code}\nimport sys\nassert 'torch' not in sys.modules") == said


def test_the_lines_that_the_readme_shows_are_sound_rows(tmp_path: Path) -> None:
    from rookworld_rlvr.tasks.audit import audit

    (rows,) = blocks(section(text("README.md"), "How it works"), "text")
    shown = tmp_path / "shown.txt"
    shown.write_text(rows)
    report = audit(shown)
    assert (report.valid, report.is_clean) == (2, True)


def test_the_rungs_of_the_readme_weigh_what_the_rubric_says() -> None:
    from rookworld_rlvr.rewards.rubric import RungWeights

    (rungs,) = re.findall(r"^\| rung \|.*?(?=\n\n)", text("README.md"), re.M | re.S)
    rows = table(rungs)
    assert {row[0]: float(row[1]) for row in rows} == {
        knob.name: getattr(RungWeights(), knob.name) for knob in fields(RungWeights)
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_shown_exists(document: Path) -> None:
    from rookworld_rlvr.app.cli import COMMANDS

    for words in command_lines(document.read_text(encoding="utf-8")):
        if words[0] == "rookworld":
            assert words[1] in COMMANDS, words
        elif words[0] == "bash":
            assert (ROOT / words[1]).is_file(), words


def test_every_command_there_is_is_shown() -> None:
    from rookworld_rlvr.app.cli import COMMANDS

    shown = {words[1] for words in command_lines(text("docs/commands.md")) if words[0] == "rookworld"}
    assert shown | {"train"} == set(COMMANDS)


def composed(words: list[str]) -> tuple[str, list[str]] | None:
    """The configuration's name and the overrides of a shown command, of a sweep its first member."""
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

    from rookworld_rlvr.app.conf_groups import conf_folder
    from rookworld_rlvr.app.config import (
        BenchRunConfig,
        EvaluateConfig,
        PretrainRunConfig,
        RunConfig,
        WarmstartRunConfig,
    )
    from rookworld_rlvr.app.hydra_command import store_schema

    schemas = {
        "train": RunConfig,
        "bench": BenchRunConfig,
        "evaluate": EvaluateConfig,
        "pretrain": PretrainRunConfig,
        "warmstart": WarmstartRunConfig,
    }
    store_schema(name, schemas[name])
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_folder())):
        assert is_dataclass(OmegaConf.to_object(compose(config_name=name, overrides=overrides)))


def test_the_options_shown_of_the_data_command_exist(capsys: pytest.CaptureFixture[str]) -> None:
    from rookworld_rlvr.app.data import main

    for words in (words for path in DOCUMENTS for words in command_lines(path.read_text("utf-8"))):
        if words[:2] == ["rookworld", "data"]:
            with pytest.raises(SystemExit):
                main([words[2], "--help"])
            told = capsys.readouterr().out
            assert [word for word in words[3:] if word.startswith("--") and word not in told] == [], words


def test_the_file_map_names_every_package() -> None:
    (tree,) = blocks(section(text("README.md"), "File map"), "text")
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages <= set(re.findall(r"^  (\w+)/ +\d", tree, re.M))


def test_every_paper_that_the_code_names_is_in_the_references() -> None:
    paper = re.compile(r"\b\d{4}\.\d{5}\b")
    cited = {number for file in SOURCE.rglob("*.py") for number in paper.findall(file.read_text("utf-8"))}
    assert cited == set(paper.findall(text("docs/references.md")))


# docs/metrics.md


def test_the_table_of_training_metrics_is_the_declared_one() -> None:
    from rookworld_rlvr.training.metrics import METRICS

    told = {row[0].strip("`"): row[1:] for row in table(section(text("docs/metrics.md"), "Training"))}
    assert told == {key: [m.unit, str(m.reduction), m.meaning, m.healthy] for key, m in METRICS.items()}


def evaluation_keys() -> Iterator[str]:
    """Every key that a suite can have, the games' by scripted players, less what refines it."""
    import chess

    from rookworld_rlvr.evaluation.balanced import score_balanced_row
    from rookworld_rlvr.evaluation.engine_match import EngineMatchConfig, engine_match_suite
    from rookworld_rlvr.evaluation.held_out import held_out_rows
    from rookworld_rlvr.evaluation.label_loss import LabelLoss
    from rookworld_rlvr.evaluation.match import RULES, MatchConfig, match_suite
    from rookworld_rlvr.evaluation.mate_in_one import MateInOne, mate_in_one_suite
    from rookworld_rlvr.evaluation.players import RandomPlayer
    from rookworld_rlvr.evaluation.puzzles import Puzzle, puzzles_suite
    from rookworld_rlvr.evaluation.retention import Asked, retention_suite
    from rookworld_rlvr.evaluation.selfplay import SelfplayConfig, selfplay_suite
    from rookworld_rlvr.evaluation.suite import suite_table
    from rookworld_rlvr.evaluation.world_model import WorldModelConfig, world_model_suite
    from rookworld_rlvr.rollout.generator import SampledCompletion
    from rookworld_rlvr.stockfish.engine import Analysis
    from rookworld_rlvr.tasks.corpus import read_corpus
    from rookworld_rlvr.tasks.policy import parse_policy_prompt
    from rookworld_rlvr.tasks.types import Task
    from rookworld_rlvr.training.data import default_file

    class Silent:
        """A model that says nothing."""

        input_ids = (0,)

        def __call__(self, *_: Any, **__: Any) -> "Silent":
            return self

        def decode(self, *_: Any, **__: Any) -> str:
            return ""

        def generate(self, prompts: Any, **_: Any) -> list[list[SampledCompletion]]:
            return [[SampledCompletion((0,), (0.0,), True)] for _ in prompts]

    every = read_corpus(default_file("held_out.jsonl")).examples
    # Plain legal moves are all alike; of the others each kind is among so many.
    examples = [*every[::40], *[row for row in every if "+0.001+" not in (row.completion or "+0.001+")][-400:]]
    labels = [example.completion or "" for example in examples]
    fen = next(parse_policy_prompt(row.prompt).fen for row in examples if row.task is Task.policy)
    verdict = Analysis(fen, tuple((move.uci(), 0.0) for move in chess.Board(fen).legal_moves))
    asked = Asked(lambda chunk: [""] * len(chunk), lambda chunk: [LabelLoss(1.0, 1)] * len(chunk))
    player, silent = RandomPlayer(), Silent()
    mate = "7k/5Q2/6K1/8/8/8/8/8 w - - 0 1", "f7g7"
    suites = [
        selfplay_suite(player, SelfplayConfig(games=1, max_plies=2)),
        world_model_suite(silent, silent, player, WorldModelConfig(games=1)),
        engine_match_suite(player, lambda: nullcontext(player), EngineMatchConfig(pairs=1, max_plies=2)),
        match_suite(RULES["random"], RULES["random"], MatchConfig(pairs=1, max_plies=2)),
        retention_suite(asked, asked, examples),
        mate_in_one_suite(player, [MateInOne(*mate)]),
        puzzles_suite(player, [Puzzle("", (mate,), 900, ())]),
    ]
    for suite in suites:
        yield from suite_table(suite, [row for rows in suite.rows(0) for row in rows])
    for row in held_out_rows(0, examples, labels, {fen: verdict}):
        yield from row.values
    yield from score_balanced_row(next(example for example in examples if example.task is Task.environment), "")


def test_the_table_of_evaluation_metrics_has_every_key() -> None:
    measured = {"/".join(key.split("/")[:2]) for key in evaluation_keys()}
    # The metrics of the other suites under retention's name are told of together.
    repeated = {key for key in measured if key.startswith("retention/") and "_loss" not in key}
    of_rows = {key for key in measured if key.startswith(("policy/", "environment/")) and "/fen_" not in key}
    of_rows -= {"policy/win_probability_loss", "policy/eval_error"}
    assert {key.removeprefix("retention/").replace("_", "/", 1) for key in repeated} == of_rows
    told = table(section(text("docs/metrics.md"), "Evaluation"))
    assert sorted(row[0].strip("`") for row in told) == sorted(measured - repeated)


# docs/configuration.md


def leaves(config: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every knob of a configuration and its default, as the documents spell them."""
    for knob in fields(config):
        value = getattr(config, knob.name)
        if is_dataclass(value):
            yield from leaves(value, f"{path}{knob.name}.")
        else:
            yield path + knob.name, spelled(value)


def spelled(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(spelled, value))}]"
    return str(value) or "''"


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("`train` and `smoke`", "RunConfig"),
        ("`evaluate`", "EvaluateConfig"),
        ("`pretrain`", "PretrainRunConfig"),
        ("`warmstart`", "WarmstartRunConfig"),
    ],
)
def test_every_knob_and_its_default_is_in_the_table(title: str, name: str) -> None:
    from rookworld_rlvr.app import config

    rows = table(section(text("docs/configuration.md"), title))
    assert [(row[0].strip("`"), row[1].strip("`")) for row in rows] == list(leaves(getattr(config, name)()))
    assert all(row[2] for row in rows)


def test_the_table_of_the_bench_has_what_it_knows_beside_a_run() -> None:
    from rookworld_rlvr.app.config import BenchRunConfig, RunConfig

    rows = table(section(text("docs/configuration.md"), "`bench`"))
    of_a_run = dict(leaves(RunConfig()))
    own = [(path, value) for path, value in leaves(BenchRunConfig()) if path not in of_a_run]
    assert [(row[0].strip("`"), row[1].strip("`")) for row in rows] == own
    assert all(row[2] for row in rows)


def settings(content: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in content.items():
        here = f"{path}{key}"
        yield from settings(value, f"{here}.") if isinstance(value, dict) else [f"{here}={value}"]


def test_every_group_file_is_named_with_what_it_sets() -> None:
    import yaml

    told = {row[0].strip("`"): row[1] for row in table(section(text("docs/configuration.md"), "Group files"))}
    files = {str(path.relative_to(ROOT)): path for path in (ROOT / "conf").glob("*/*.yaml")}
    assert told.keys() == files.keys()
    for name, path in files.items():
        content = yaml.safe_load(path.read_text("utf-8")) or {}
        if not content:
            assert told[name].startswith("nothing"), name
        elif path.parent.name not in ("experiment", "debug"):
            assert [f"`{setting}`" for setting in settings(content) if f"`{setting}`" not in told[name]] == [], name


# docs/architecture.md


def test_the_table_of_layers_names_what_each_package_imports() -> None:
    imported = re.compile(rf"^ *from (?:\.\.\.?|{SOURCE.name}\.)(\w+)", re.M)
    for row in table(section(text("docs/architecture.md"), "Packages and layers")):
        (package, *others) = re.findall(r"`(\w+)`", row[1])
        files = list((SOURCE / package).rglob("*.py"))
        assert bool(files) != (row[2] == "not there yet"), package
        names = {name for file in files for name in imported.findall(file.read_text("utf-8"))} - {package}
        actual = {name for name in names if (SOURCE / name).is_dir()}
        assert set(re.findall(r"`(\w+)`", row[3])) == actual, package
        assert not (others and files)


def test_the_table_of_gates_is_that_of_the_preflight() -> None:
    from rookworld_rlvr.training import preflight

    source = Path(preflight.__file__).read_text("utf-8")
    named = re.findall(r"_result\(\s*\"(\w+)\"", source)
    (gates,) = re.findall(r"^\| gate \|.*?(?=\n\n)", text("docs/architecture.md"), re.M | re.S)
    told = {row[0].strip("`"): tuple(map(float, row[2].split(", "))) for row in table(gates)}
    assert list(told) == named
    assert told["padding_neutral"] == tuple(preflight.PADDING_BOUND_NAT.values())
    assert told["sampler_agrees"] == tuple(preflight.SAMPLER_BOUND_NAT.values())
    equal = {"kl_step_0", "ratio_step_0", "dropout_off"}
    assert all(told[name] == (preflight.EQUAL_BOUND,) for name in equal)


@pytest.mark.parametrize("package", ["training", "stability", "pretraining", "model", "rollout", "rewards"])
def test_the_files_of_a_package_are_each_told_of_once(package: str) -> None:
    told = re.findall(r"`(\w+\.py)`", section(text("docs/architecture.md"), f"Inside `{package}`"))
    assert sorted(told) == sorted({file.name for file in (SOURCE / package).glob("*.py")} - {"__init__.py"})


def test_the_documents_tell_of_every_way_a_run_may_stop() -> None:
    from rookworld_rlvr.training import loop, trainer

    said = set(re.findall(r"\bstopped = \"(\w+)\"", Path(loop.__file__).read_text("utf-8")))
    said |= set(re.findall(r", \"(\w+)\"\n", Path(loop.__file__).read_text("utf-8"))) | {trainer.INTERRUPTED}
    (stops,) = re.findall(r"^\| `stopped` \|.*?(?=\n\n)", text("docs/architecture.md"), re.M | re.S)
    assert {row[0].strip("`") for row in table(stops)} == said


# docs/stability.md


def rows_of(header: str) -> dict[str, list[str]]:
    """A table of docs/stability.md by its first cells, without backticks and remarks."""
    (found,) = re.findall(rf"^\| {re.escape(header)} \|.*?(?=\n\n)", text("docs/stability.md"), re.M | re.S)
    return {re.findall(r"`(?:\w+=)?(\w+)`", row[0])[0]: row for row in table(found)}


def test_stability_tells_of_every_choice() -> None:
    from rookworld_rlvr import objective
    from rookworld_rlvr.stability.entropy_control import EntropyControl
    from rookworld_rlvr.stability.kl_control import KLControl
    from rookworld_rlvr.stability.reference import ReferenceMode

    choices = {
        "`objective=`": objective.LossKind,
        "`objective.advantage.scale`": objective.AdvantageScale,
        "`kl.form`": objective.KLForm,
        "`kl.control`": KLControl,
        "`objective.entropy.control`": EntropyControl,
        "`reference.mode`": ReferenceMode,
    }
    for header, choice in choices.items():
        assert rows_of(header).keys() == {option.value for option in choice}, header
    modes = section(text("docs/stability.md"), "What samples and what trains")
    assert {mode for mode in objective.MismatchMode if f"`{mode}`" not in modes} == set()


def test_stability_tells_of_every_fault_and_which_restore_at_once() -> None:
    from rookworld_rlvr.stability.faults import DAMAGE, LASTING, FaultKind

    told = rows_of("fault")
    assert told.keys() == set(FaultKind)
    assert {kind for kind, row in told.items() if "at once" in row[3]} == DAMAGE
    assert {kind for kind, row in told.items() if row[3] == "give up"} == LASTING
    assert all(row[3] == "skip" for kind, row in told.items() if kind not in DAMAGE | LASTING)


def test_stability_tells_of_every_moment_of_a_step_in_order() -> None:
    from rookworld_rlvr.training.context import Moment

    assert list(rows_of("moment")) == [moment.value for moment in Moment]


def test_the_hook_of_stability_runs_and_prints_what_it_says() -> None:
    part = section(text("docs/stability.md"), "Seeing and changing a step")
    (code,), (said,) = blocks(part, "python"), blocks(part, "text")
    assert run_python(code) == said


# docs/results.md


def test_what_the_ablation_says_of_its_table_is_what_the_table_says() -> None:
    part = section(text("docs/results.md"), "Advantage scale, outcome gate, KL form")
    header, told = re.findall(r"^\| (?:configuration|column) \|.*?(?=\n\n)", part, re.M | re.S)
    columns = re.findall(r"`([\w/]+)`", header.splitlines()[0])
    _, default, *others = table(header)
    figures = {row[0]: [tuple(map(float, cell.split(" ± "))) for cell in row[1:]] for row in (default, *others)}
    far: dict[str, tuple[list[str], list[str]]] = {}
    for place, column in enumerate(columns):
        mean, deviation = figures[default[0]][place]
        for name, (value, spread) in ((row[0], figures[row[0]][place]) for row in others):
            if abs(value - mean) > max(deviation, spread):
                far.setdefault(column, ([], []))[value < mean].append(name)
    assert {row[0].strip("`"): row[1:] for row in table(told)} == {
        column: [", ".join(names) for names in sides] for column, sides in far.items()
    }

    def ranked(column: str) -> list[str]:
        """Best first; of drift the least."""
        place, sign = columns.index(column), 1 if column == "kl/original" else -1
        return sorted(figures, key=lambda name: sign * figures[name][place][0])

    assert sum(ranked(column)[0] == "no scale" for column in columns) == 5
    assert ranked("reward/mean")[0] == "group std" and ranked("kl/original")[-1] == "exact KL"
    assert ranked("policy/valid")[-1] == ranked("policy/legal_best_move")[-1] == "naive k3"


# docs/data.md


@pytest.mark.parametrize("name", ["train.txt", "held_out.jsonl"])
def test_the_audits_of_the_data_card_are_those_of_the_files(name: str) -> None:
    from rookworld_rlvr.tasks.audit import audit
    from rookworld_rlvr.training.data import default_file

    path = default_file(name)
    told = re.search(rf"<!-- audit {name} -->\n```text\n(.*?)```", text("docs/data.md"), re.S)
    report = audit(path)
    expected = "".join(f"{line}\n" for line in report.lines()).replace(str(path), str(path.relative_to(ROOT)))
    assert told and told[1] == expected
    assert report.white.below_best == report.black.below_best == 0


def test_the_counts_of_the_data_card_are_what_its_program_prints() -> None:
    document = text("docs/data.md")
    (code,) = blocks(document, "python")
    printed = run_python(code).splitlines()
    assert len(printed) == 2
    assert [line for line in printed if f"{line}\n" not in document] == []


def test_the_data_card_counts_the_rows_of_each_task() -> None:
    from rookworld_rlvr.tasks.corpus import example_key, read_corpus
    from rookworld_rlvr.training.data import default_file

    told = {row[0]: row[1:4] for row in table(section(text("docs/data.md"), "What ships"))}
    positions = []
    for name in ("train.txt", "held_out.jsonl"):
        examples = read_corpus(default_file(name)).examples
        policy = sum(example.task == "policy" for example in examples)
        counts = [f"{count:,}" for count in (len(examples), policy, len(examples) - policy)]
        assert told[f"[`{name}`](../src/rookworld_rlvr/assets/data/{name})"] == counts
        positions.append({example_key(example) for example in examples})
    assert not positions[0] & positions[1]

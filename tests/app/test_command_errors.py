"""Bad input ends a command with one clear line and exit code 2, and writes no file."""

import json
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.config import EvaluateConfig
from rookworld_rlvr.app.hydra_command import run_command
from rookworld_rlvr.errors import RAISED_ON, UserError
from rookworld_rlvr.rollout.generator import GeneratorError

BAD_VALUES = [
    ("optim.lrr=1", "did you mean optim.lr"),
    ("rows=1", "did you mean evaluation.rows or evaluation.sampled_rows or evaluation.curve_rows?"),
    ("+objective.clop=1", "clop"),
    ("kl.form=nope", "nope"),
    ("experiment=nope", "nope"),
    ("debug=nope", "nope"),
    ("model.path=/nope", "model.path: expected a folder with a config.json"),
    ("model.path=nope", "model.path: expected a folder with a config.json or a hub name (owner/name), got 'nope'"),
    ("model.lora.rank=-1", "model.lora.rank: expected 0 or more, got -1"),
    ("model.lora.alpha=0", "model.lora.alpha: expected a finite number above 0, got 0"),
    (
        "model.lora.rank=4 model.lora.targets=[q_proj]",
        "expected names of linear layers in the blocks of GPT2LMHeadModel",
    ),
    ("data.train=/nope/rows.txt", "/nope/rows.txt"),
    ("data.held_out=/nope/rows.txt", "/nope/rows.txt"),
    ("data.limit=0", "data.limit: expected 1 or more"),
    ("data.exclude=[nothing.txt]", "data.exclude: expected a .txt"),
    ("data.tasks=[policy:-1]", "data.tasks: expected each task once, as NAME or NAME:WEIGHT with a weight from 0"),
    ("data.tasks=[chess]", "data.tasks: expected a task among policy, environment"),
    ("objective.group_size=1", "group_size from 2"),
    ("objective.prompts_per_step=0", "prompts_per_step from 1"),
    ("objective.advantage.std_floor=0", "std_floor: expected above 0"),
    ("objective.advantage.scale=max", "max"),
    ("objective.clip.low=0", "objective.clip.low: expected above 0"),
    ("generator.top_p=0.9", "Key 'top_p' not in"),
    ("generator.kind=none", "none"),
    ("processes=0", "processes: expected 1 or more, got 0"),
    ("generator.kind=vllm_server", "generator.vllm.url: expected the server's http://HOST:PORT, got none"),
    ("generator.vllm.url=somewhere", "generator.vllm.url: expected http://HOST:PORT"),
    ("generator.kind=vllm_server generator.vllm.url=http://127.0.0.1:1", "rookworld_rlvr.rollout.vllm_serve MODEL"),
    ("generator.vllm.gpu_memory_fraction=2", "gpu_memory_fraction in (0, 1]"),
    ("kl.coef=-1", "kl.coef: expected a finite number from 0 up"),
    ("kl.coef=nan", "kl.coef: expected a finite number"),
    ("kl.coef=inf", "kl.coef: expected a finite number"),
    ("kl.form=k3", "k3"),
    ("kl.warmup_steps=-1", "kl.warmup_steps: expected 0 or more"),
    ("optim.weight_decay=-1", "optim.weight_decay: expected a finite number from 0 up"),
    ("seed=18446744073709551616", "seed: expected a number of at most 63 bits"),
    ("objective.loss=ppo", "ppo"),
    ("objective.loss=gspo", "objective.loss=gspo: expected objective.mismatch_cap=0"),
    ("objective.epochs=0", "objective: expected epochs and minibatches from 1"),
    ("objective.collection.zero_variance=replace", "replace"),
    ("objective.mismatch_cap=1", "mismatch_cap: expected"),
    ("objective.entropy_coef=-1", "objective.entropy_coef: expected a finite number from 0 up"),
    ("objective.all_moves_coef=-1", "objective.all_moves_coef: expected a finite number from 0 up"),
    ("objective.all_moves_temperature=inf", "objective.all_moves_temperature: expected a finite number from 0 up"),
    ("start_share=1", "start_share: expected a number from 0 and below 1"),
    ("objective.advantage.scale=reward", "reward"),
    ("reference.refresh_every=-1", "reference.refresh_every: expected 0 or more"),
    ("reference=monthly", "reference has options: reference.refresh_every"),
    ("recovery.recovery_lr_factor=0", "recovery_lr_factor in (0, 1]"),
    ("recovery.kl_limit=-1", "recovery.kl_limit: expected a finite number from 0 up"),
    ("rubric.source=stockfish", "stockfish"),
    ("rubric.stockfish.nodes=0", "stockfish.nodes: expected 1 or more, got 0"),
    ("rubric.source=engine rubric.stockfish.path=/nope", "rubric.stockfish: expected an engine's binary, got '/nope'"),
    ("evaluation.curve_every=-1", "evaluation: expected curve_every from 0"),
    ("optim.lr=-1", "expected lr from 0 up"),
    ("optim.lr=fast", "optim.lr"),
    ("optim.micro_batch_size=-1", "micro_batch_size and warmup_steps from 0"),
    ("generator.cuda_graph=true device=cpu", "generator.cuda_graph: expected generator.kind=native on a CUDA device"),
    ("rubric.malformed_reward=1", "rubric.malformed_reward"),
    ("rubric.tiers.parse=nan", "rubric.tiers.parse"),
    ("precision=fp8", "fp8"),
    ("threads=-1", "threads: expected 0 or more"),
    ("steps=0", "steps"),
    ("steps=many", "steps"),
    ("evaluation.rows=-1", "evaluation: expected rows and sampled_rows from 0"),
    ("resume=/nope", "resume: expected a run's folder"),
    ("=", "="),
    ("steps", "steps"),
]


def complaint(arguments: Sequence[str], capfd: pytest.CaptureFixture[str]) -> str:
    """Return the one line that a refused command prints on stderr; nothing is printed on stdout."""
    capfd.readouterr()
    assert main(list(arguments)) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.endswith("\n") and shown.err.count("\n") == 1 and shown.err.strip()
    # Hydra's advice, which does not apply to these commands.
    assert "use +" not in shown.err
    return shown.err


@pytest.mark.parametrize(("override", "named"), BAD_VALUES, ids=[override for override, _ in BAD_VALUES])
def test_bad_override_is_named_in_one_line_and_writes_nothing(
    override: str,
    named: str,
    small_overrides: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    root = f"output_root={tmp_path / 'outputs'}"
    assert named in complaint(["train", *small_overrides, root, *override.split()], capfd)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("override", "named"), BAD_VALUES[:6:2])
def test_smoke_refuses_bad_overrides_like_train(
    override: str, named: str, small_overrides: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert named in complaint(["smoke", *small_overrides, override], capfd)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed")
def test_missing_vllm_is_refused_with_its_install_command(
    small_overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", *small_overrides, f"output_root={tmp_path / 'outputs'}", "generator.kind=vllm"]
    error = complaint(arguments, capfd)
    assert "generator.kind=vllm: expected vllm to be installed: bash scripts/setup.sh vllm" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_missing_cuda_device_is_refused(
    small_overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", *small_overrides, f"output_root={tmp_path / 'outputs'}", "device=cuda"]
    assert "device=cuda: expected a CUDA device" in complaint(arguments, capfd)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [("none.txt", "no row\n"), ("empty.txt", ""), ("none.jsonl", '{"x": 1}\n'), ("bytes.txt", "\x00\n")],
)
@pytest.mark.parametrize("option", ["data.train", "data.held_out"])
def test_a_corpus_without_a_valid_row_is_refused(
    name: str,
    text: str,
    option: str,
    small_overrides: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_text(text)
    arguments = ["train", *small_overrides, f"output_root={tmp_path / 'outputs'}", f"{option}={tmp_path / name}"]
    assert name in complaint(arguments, capfd)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_corpus_without_rows_of_a_requested_task_is_refused(
    small_overrides: list[str], corpus: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in corpus.train.read_text().splitlines() if row.startswith("P: ")]
    (tmp_path / "policy.txt").write_text("\n".join(rows) + "\n")
    given = ["train", *small_overrides, f"output_root={tmp_path / 'outputs'}", f"data.train={tmp_path / 'policy.txt'}"]
    assert "expected rows of task environment" in complaint(given, capfd)
    assert main([*given, "experiment=policy_only", "steps=1", "evaluation.rows=0"]) == 0


def test_an_output_folder_that_cannot_be_made_is_refused(
    small_overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("here first")
    arguments = ["train", *small_overrides, f"output_root={tmp_path / 'file' / 'outputs'}"]
    assert "output_root: expected a folder to write to" in complaint(arguments, capfd)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "here first"


@pytest.mark.parametrize("missing", ["tokenizer.json", "model.safetensors", "config.json"])
def test_a_model_folder_that_lacks_a_file_is_refused(
    missing: str,
    small_overrides: list[str],
    small_model: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    broken = tmp_path / "model"
    broken.mkdir()
    for file in small_model.iterdir():
        if file.name != missing:
            (broken / file.name).symlink_to(file)
    given = ["train", *small_overrides, f"model.path={broken}", f"output_root={tmp_path / 'outputs'}"]
    assert "model.path: expected" in complaint(given, capfd)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["evaluate", "evaluation.rows=0"], "evaluation.rows: expected 1 or more"),
        (["evaluate", "output=/nope/table.json"], "output: expected a file in a folder that exists"),
        (["evaluate", "suites=[policy,policy]"], "suites: expected"),
        (["evaluate", "suites=[chess]"], "chess"),
        (["evaluate", "suites=[mate_in_one]"], "evaluation.mates: expected a file"),
        (["evaluate", "suites=[puzzles]"], "evaluation.puzzles: expected a file"),
        (
            ["evaluate", "suites=[puzzles]", "evaluation.puzzles=/nope.csv"],
            "evaluation.puzzles: [Errno 2] No such file",
        ),
        (["evaluate", "suites=[puzzles]", "evaluation.puzzles={train}"], "evaluation.puzzles: expected a CSV file"),
        (["evaluate", "suites=[acpl]", "stockfish.path=/nope"], "suites=[acpl]: expected an engine's binary"),
        (["evaluate", "suites=[selfplay]", "selfplay.games=0"], "expected items of selfplay"),
        (["evaluate", "suites=[selfplay]", "selfplay.pgn=/nope/games.pgn"], "selfplay.pgn: expected a file"),
        (["evaluate", "suites=[match]", "match.opponent=stockfish", "stockfish.path=/nope"], "stockfish: expected"),
        (["evaluate", "data.train={held_out}", "data.held_out={held_out}"], "expected items of policy"),
        (["evaluate", "compare"], "evaluate compare: the following arguments are required: A, B"),
        (["evaluate", "compare", "a.json", "b.json", "--json", "/tmp"], "--json: expected a file in a folder"),
        (["evaluate", "compare", "/nope/a.json", "/nope/b.json"], "in /nope/a.json.rows.jsonl, got no such file\n"),
        (["evaluate", "model.path=/nope", "data.train={train}", "data.held_out={held_out}"], "model.path: expected"),
        (["evaluate", "kl.coef=1"], "kl"),
        (["evaluate", "rubric=rules"], "Key 'rubric' not in 'EvaluateConfig'"),
        (["evaluate", "-m", "rubric=rules,labels"], "Key 'rubric' not in 'EvaluateConfig'"),
        (["sft", "rubric=rules"], "Key 'rubric' not in 'SFTRunConfig'"),
        (["sft"], "corpus: expected files"),
        (["train", "rubric.move_evals=/nope.tsv"], "rubric.move_evals: expected a file of move evaluations"),
        (["evaluate", "suites=[match]", "match.opponent=/nope"], "match.opponent: expected random, capture, exchange"),
        (["sft", "corpus=[/nope/rows.txt]"], "/nope/rows.txt"),
        (["trian"], "expected one of train, smoke, bench, evaluate, report, rollouts, rescore, export, inspect"),
        (["--steps=3"], "expected one of train"),
    ],
)
def test_bad_arguments_of_any_command_are_refused_in_one_line(
    arguments: list[str], named: str, corpus: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(train=corpus.train, held_out=corpus.held_out) for argument in arguments]
    assert named in complaint(given, capfd)


@pytest.mark.parametrize("kind", ["native", "hf"])
def test_prompt_longer_than_model_positions_is_refused_in_one_line(
    kind: str, small_overrides: list[str], small_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "model"
    shutil.copytree(small_model, short)
    weights = load_file(short / "model.safetensors")
    weights["transformer.wpe.weight"] = weights["transformer.wpe.weight"][:20].clone()
    save_file(weights, short / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"n_positions": 20}))
    given = [override for override in small_overrides if override.startswith(("data.", "device", "precision"))]
    capfd.readouterr()
    assert main(["evaluate", *given, f"model.path={short}", f"generator.kind={kind}", "suites=[policy]"]) == 2
    *_, line = capfd.readouterr().err.splitlines()
    assert line.startswith("rookworld: expected a prompt shorter than the model's 20 positions, got ")


def test_error_subclass_gets_exit_code_of_its_base_class(capfd: pytest.CaptureFixture[str]) -> None:
    class GoneError(GeneratorError):
        """An error of a generator."""

    def gone(config: Any, raw: Any) -> None:
        raise GoneError("vllm_server: expected an answer, got none")

    assert run_command("evaluate", EvaluateConfig, [], gone) == 4
    assert capfd.readouterr().err == "rookworld: vllm_server: expected an answer, got none\n"


@pytest.mark.parametrize(
    ("raised_on", "printed"),
    [([], "rookworld: rank 1: no device\n"), (["1"], "rookworld: rank 1: no device\n"), (["0"], "")],
)
def test_rank_prints_its_own_error_but_not_another_ranks(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, raised_on: list[str], printed: str
) -> None:
    def refused(config: Any, raw: Any) -> None:
        error = UserError("no device")
        for rank in raised_on:
            error.add_note(f"{RAISED_ON}{rank}")
        raise error

    monkeypatch.setenv("RANK", "1")
    assert run_command("evaluate", EvaluateConfig, [], refused) == 2
    assert capfd.readouterr().err == printed


def test_missing_command_and_help_both_print_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2 and main(["--help"]) == 0
    shown = capfd.readouterr()
    assert shown.out.count("usage: rookworld <command>") == 2 and "smoke" in shown.out and shown.err == ""


def test_a_model_with_fewer_tokens_than_its_tokenizer_is_refused(
    small_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    shape = {"vocab_size": 20, "n_positions": 256, "n_embd": 8, "n_layer": 1, "n_head": 1}
    GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0)).save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(small_model).save_pretrained(tmp_path / "model")
    assert main(["smoke", f"model.path={tmp_path / 'model'}", "threads=1"]) == 2
    error = capfd.readouterr().err
    assert "expected a model with as many tokens as its tokenizer" in error and error.count("\n") == 1

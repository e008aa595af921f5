"""The recipe's training learns, resumes to the same bits and skips held-out rows; its command saves a small model."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, AutoTokenizer

import tiny_model.__main__ as recipe
from rookworld_rlvr.board.distance_to_mate import exact_evals
from rookworld_rlvr.board.fen import position_key
from rookworld_rlvr.errors import TrainingGaveUpError, UserError
from rookworld_rlvr.evaluation.conversion import Advantage, won_board
from rookworld_rlvr.generation.sources import bare_king_ending
from rookworld_rlvr.stockfish.move_evals import MoveEvals, render_move_evals
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.types import Example
from rookworld_rlvr.training.data import default_file
from rookworld_rlvr.training.saved_state import NotFiniteError
from tiny_model import drawing as drawing_module
from tiny_model.config import TrainingConfig
from tiny_model.data import Positions, load_data
from tiny_model.drawing import DrawnExamples
from tiny_model.losses import LossWeights
from tiny_model.tokenizer import build_tokenizer
from tiny_model.training import Training

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
SMALL = TrainingConfig(
    layers=2,
    width=32,
    heads=2,
    board_layer=1,
    steps=12,
    policy_examples=4,
    environment_examples=2,
    warmup_steps=2,
    save_every=5,
    log_every=4,
    average=0.5,
)
FEN = "6k1/5ppp/8/8/8/8/8/R6K w - - 0 1"


def positions(count: int) -> Positions:
    rng, lines = random.Random(0), list[str]()
    while len(lines) < count:
        board = chess.Board()
        for _ in range(rng.randint(1, 30)):
            board.push(rng.choice(list(board.legal_moves)))
        evals = {move.uci(): round(rng.gauss(0, 2), 2) for move in board.legal_moves}
        if evals:
            lines.append(render_move_evals(MoveEvals(board.fen(), "test", evals)))
    return Positions(lines)


@pytest.fixture(scope="module")
def transitions(make_lines: Callable[[int, int], list[str]], tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    file = tmp_path_factory.mktemp("transitions") / "rows.txt"
    file.write_text("".join(f"{line}\n" for line in make_lines(5, 20)))
    return [row for row in read_corpus(file).examples if row.task == "environment"]


def drawn(rows: list[Example], count: int, config: TrainingConfig = SMALL, seed: int = 3) -> DrawnExamples:
    return DrawnExamples(config, seed, build_tokenizer(), positions(count), rows)


def learn(folder: Path, rows: list[Example], config: TrainingConfig = SMALL) -> tuple[Training, list[dict[str, float]]]:
    folder.mkdir(exist_ok=True)
    training, examples = Training(config, seed=3, device=CPU), drawn(rows, 8, config)
    training.resume(folder, examples)
    return training, list(training.run(examples, folder))


def one_step(config: TrainingConfig, rows: list[Example], count: int = 4) -> dict[str, float]:
    return Training(config, seed=3, device=CPU).train_step(drawn(rows, count, config))


@pytest.mark.slow
def test_all_losses_fall(transitions: list[Example], tmp_path: Path) -> None:
    common = {
        "policy_examples": 8,
        "environment_examples": 8,
        "check_share": 0.0,
        "mate_share": 0.0,
        "ending_share": 0.0,
    }
    config = replace(SMALL, steps=80, log_every=20, save_every=200, bf16=False, **common)
    _, logged = learn(tmp_path / "out", transitions, config)
    assert [entry["step"] for entry in logged] == [20, 40, 60, 80]
    for name in ("tokens", "moves", "legal", "attacks", "pieces", "environment", "outcome", "targets"):
        assert logged[-1][name] < logged[0][name]


def test_logged_losses_after_a_resume_are_means_of_the_steps_since(
    transitions: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(training: Training, *_: Any) -> dict[str, float]:
        training.step += 1
        return {"tokens": 1.0}

    monkeypatch.setattr(Training, "train_step", step)
    config = replace(SMALL, steps=8, log_every=4, save_every=3)
    examples = drawn(transitions, 4, config)
    for last in (3, 8):
        training = Training(config, seed=3, device=CPU)
        assert training.resume(tmp_path, examples) == (last == 8)
        logged = []
        for entry in training.run(examples, tmp_path):
            logged.append(entry)
            if last == 3:
                break
    # Resumed at step 3, so the first entry is of one step.
    assert [(entry["step"], entry["tokens"]) for entry in logged] == [(4, 1.0), (8, 1.0)]


class _Types(TorchDispatchMode):
    """A mode that records the types of the tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = set[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= {leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        return result


@pytest.mark.parametrize("bf16", [False, True])
def test_bfloat16_is_used_only_with_the_bf16_option(transitions: list[Example], bf16: bool) -> None:
    training = Training(replace(SMALL, bf16=bf16), seed=3, device=CPU)
    with _Types() as types:
        training.train_step(drawn(transitions, 4))
    assert (torch.bfloat16 in types.seen) is bf16


def test_a_training_starts_from_an_exported_model(transitions: list[Example], tmp_path: Path) -> None:
    learned, _ = learn(tmp_path / "first", transitions)
    started = Training(replace(SMALL, start=str(tmp_path / "first" / "model")), seed=4, device=CPU)
    tokens_BT = torch.randint(0, 500, (2, 20))
    expected, logits = (model.exported()(tokens_BT).logits for model in (learned, started))
    # The exported weights are in bfloat16.
    assert torch.allclose(expected, logits, atol=0.05) and expected.std() > 0.1
    # During the warm-up only the heads are trained.
    examples = drawn(transitions, 8, seed=4)
    for step in range(SMALL.warmup_steps + 1):
        before = started.model.embeddings().detach().clone(), started.model.piece.weight.detach().clone()
        started.train_step(examples)
        assert torch.equal(before[0], started.model.embeddings()) == (step < SMALL.warmup_steps)
        assert not torch.equal(before[1], started.model.piece.weight)
    with pytest.raises(UserError, match=r"training\.start: expected vocabulary, width, inner width and layers .* got"):
        Training(replace(SMALL, start=str(tmp_path / "first" / "model"), layers=3), seed=4, device=CPU)
    with pytest.raises(UserError, match=r"training\.start: expected an exported model, got"):
        Training(replace(SMALL, start=str(tmp_path)), seed=4, device=CPU)


def test_an_interrupted_training_resumes_to_the_same_bits(
    transitions: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninterrupted, _ = learn(tmp_path / "uninterrupted", transitions)
    train_step = Training.train_step

    def interrupted(training: Training, *data: Any) -> dict[str, float]:
        if training.step == 7:
            raise KeyboardInterrupt
        return train_step(training, *data)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Training, "train_step", interrupted)
        learn(tmp_path / "interrupted", transitions)
    resumed, _ = learn(tmp_path / "interrupted", transitions)
    for one, other in zip(uninterrupted.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert all(map(torch.equal, uninterrupted.average, resumed.average))


def test_a_step_does_not_depend_on_its_threads_and_parts(
    transitions: list[Example], monkeypatch: pytest.MonkeyPatch, threads: Callable[[int], None]
) -> None:
    """In float32, and up to rounding: a CPU's kernels may add in another order on another number of threads."""

    def step(count: int, parts: int) -> tuple[dict[str, float], list[torch.Tensor]]:
        threads(count)
        monkeypatch.setattr(drawing_module, "PARTS", parts)
        training, gradients = Training(replace(SMALL, bf16=False), seed=3, device=CPU), dict[int, torch.Tensor]()

        def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for group in optimizer.param_groups:
                gradients.update({id(each): each.grad.clone() for each in group["params"]})

        hook = register_optimizer_step_pre_hook(keep)
        losses = training.train_step(drawn(transitions, 4))
        hook.remove()
        return losses, [gradients[id(parameter)] for parameter in training.model.parameters()]

    losses, expected = step(1, parts=2)
    for count, parts in ((2, 2), (1, 1)):
        same_losses, found = step(count, parts)
        assert same_losses == pytest.approx(losses, rel=1e-5)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8 + 1e-5 * float(theirs.abs().max()))


def test_gradients_have_the_strides_of_their_parameters(transitions: list[Example]) -> None:
    """Fused AdamW refuses other strides on CUDA."""
    other_strides = []

    def check(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
            if parameter.grad is not None and parameter.grad.stride() != parameter.stride():
                other_strides.append(parameter.shape)

    hook = register_optimizer_step_pre_hook(check)
    try:
        one_step(SMALL, transitions)
    finally:
        hook.remove()
    assert other_strides == []


def test_checks_mates_and_endings_are_sampled_by_their_shares(transitions: list[Example]) -> None:
    check, mate, two_mates = "4k3/8/8/8/8/8/4r3/4K3 w - - 0 1", FEN, "6k1/5ppp/8/8/8/8/8/RR5K w - - 0 1"
    evals = {check: {"e1e2": 5.0}, mate: {"a1a8": 999.99}, two_mates: {"a1a8": 999.99, "b1b8": 999.99}}
    ending = MoveEvals("8/8/8/8/8/3k4/8/R3K3 w - - 0 1", "ending", {"a1a8": 999.9})
    rare = [render_move_evals(MoveEvals(fen, "test", moves)) for fen, moves in evals.items()]
    data = Positions([*positions(200).lines, *rare, render_move_evals(ending)])
    assert [row.fen for row in data.checks][-1] == check and [row.fen for row in data.mates] == [mate]
    assert [row.fen for row in data.endings] == [ending.fen]
    config, rng = replace(SMALL, check_share=0.3, mate_share=0.2, ending_share=0.25), random.Random(0)
    examples = DrawnExamples(config, 3, build_tokenizer(), data, transitions)
    boards = [chess.Board(examples.sample(rng).fen) for _ in range(1000)]
    assert sum(board.is_check() for board in boards) / 1000 == pytest.approx(0.3, abs=0.06)
    for fen, share in ((mate, 0.2), (ending.fen, 0.25)):
        pieces = sum(len(board.piece_map()) == len(chess.Board(fen).piece_map()) for board in boards)
        assert pieces / 1000 == pytest.approx(share, abs=0.06)


def test_bare_king_examples_have_exact_values(transitions: list[Example]) -> None:
    excluded = frozenset(position_key(bare_king_ending(random.Random(seed))) for seed in range(40))
    data, config = Positions(positions(20).lines, excluded), replace(SMALL, mate_share=0.0, bare_king_share=0.5)
    examples, rng = DrawnExamples(config, 3, build_tokenizer(), data, transitions), random.Random(0)
    drawn = [row for row in (examples.sample(rng) for _ in range(400)) if len(chess.Board(row.fen).piece_map()) == 3]
    assert len(drawn) / 400 == pytest.approx(0.5, abs=0.1)
    for row in drawn:
        board = chess.Board(row.fen)
        assert row.evals_pawns == exact_evals(board) and board.occupied_co[board.turn].bit_count() == 2
    # A generator with the seed of an excluded position draws another one.
    assert all(position_key(chess.Board(data.bare_king(random.Random(seed)).fen)) not in excluded for seed in range(40))


def test_longer_run_resumes_only_from_before_its_decay(transitions: list[Example], tmp_path: Path) -> None:
    learn(tmp_path / "out", transitions, replace(SMALL, steps=4, decay_fraction=0.0))
    longer, logged = learn(tmp_path / "out", transitions, replace(SMALL, steps=8, decay_fraction=0.5))
    assert longer.step == 8 and logged[-1]["lr"] == 0.0
    with pytest.raises(UserError, match=r"expected training\.steps=8 training\.decay_fraction=0\.5"):
        learn(tmp_path / "out", transitions, replace(SMALL, steps=12, decay_fraction=0.5))


def test_state_of_another_training_is_refused_with_the_difference(transitions: list[Example], tmp_path: Path) -> None:
    learn(tmp_path / "out", transitions)
    with pytest.raises(UserError, match="seed: expected 3"):
        Training(SMALL, seed=4, device=CPU).resume(tmp_path / "out", drawn(transitions, 8))
    with pytest.raises(UserError, match="data: expected"):
        Training(SMALL, seed=3, device=CPU).resume(tmp_path / "out", drawn(transitions, 7))
    lighter = replace(SMALL, weights=LossWeights(legal=0.01))
    with pytest.raises(UserError, match=r"training\.weights\.legal: expected 0\.02"):
        Training(lighter, seed=3, device=CPU).resume(tmp_path / "out", drawn(transitions, 8))


def test_exported_recipe_model_loads_with_auto_classes(transitions: list[Example], tmp_path: Path) -> None:
    training, _ = learn(tmp_path / "out", transitions)
    folder = tmp_path / "out" / "model"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == training.tokenizer.get_vocab()
    tokens = torch.tensor([training.tokenizer(f"P: {FEN}").input_ids])
    # The exported weights are in bfloat16.
    torch.testing.assert_close(model(tokens).logits, training.exported()(tokens).logits, atol=0.1, rtol=0.05)


def test_held_out_and_excluded_positions_are_not_trained_on(transitions: list[Example], tmp_path: Path) -> None:
    held_out = next(row for row in read_corpus(default_file("held_out.jsonl")).examples if row.task == "policy")
    ending = won_board(Advantage.kqk, 19, seed=0).fen()
    fens = [held_out.prompt.removeprefix("P: "), FEN, ending, *(evals.fen for evals in positions(2))]
    fens[3:3] = [chess.Board(fen).mirror().fen() for fen in fens[:3]]
    lines = [f"{render_move_evals(MoveEvals(fen, 'test', {'a1a8': 0.0}))}\n" for fen in fens]
    (tmp_path / "move_evals.tsv").write_text("".join(lines))
    (tmp_path / "environment.txt").write_text("".join(f"{row.prompt}{row.completion}\n" for row in transitions))
    (tmp_path / "excluded.fen").write_text(f"{FEN}\n")
    kept, _ = load_data(tmp_path, [str(tmp_path / "excluded.fen")])
    assert [evals.fen for evals in kept] == fens[6:]
    (tmp_path / "move_evals.tsv").write_text("no position\n")
    with pytest.raises(UserError, match="data: expected source, FEN and moves"):
        load_data(tmp_path, [])


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 0},
        {"width": 31},
        {"board_layer": 7},
        {"lr": 0.0},
        {"average": 1.0},
        {"decay_fraction": -0.1},
        {"mate_share": 0.9},
    ],
    ids=str,
)
def test_invalid_recipe_options_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="training"):
        TrainingConfig(**changes)


def test_each_loss_weight_scales_its_loss(transitions: list[Example]) -> None:
    config = replace(SMALL, layers=1, width=16, policy_examples=2, environment_examples=1)
    before = one_step(config, transitions)
    for name in ("moves", "legal", "attacks", "move_values", "pieces", "win_probability", "outcome", "targets"):
        weights = LossWeights(**{name: 2 * getattr(LossWeights(), name)})
        assert one_step(replace(config, weights=weights), transitions)[name] == pytest.approx(
            2 * before[name], rel=1e-4
        )
    assert (
        one_step(replace(config, weights=LossWeights(copied=0.5)), transitions)["environment"] < before["environment"]
    )
    assert np.isfinite(list(before.values())).all()


def test_options_and_the_quick_preset_are_parsed() -> None:
    folder, config = recipe.parse(["out", "quick", "training.steps=7", "seed=2"])
    assert (folder, config.rows, config.training.steps, config.seed) == (Path("out"), 300, 7, 2)
    folder, config = recipe.parse(["rows=9"])
    assert (str(folder), config.rows, config.training.layers) == (recipe.OUTPUT, 9, 6)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["out", "fast"], "expected [OUT] [quick] [option=value ...], got 'fast'"),
        (["out", "row=3"], "row"),
        (["out", "training.board_layer=9"], "training.board_layer: expected 1 to 6, got 9"),
        (["out", "training.weights.legal=-1"], "training.weights: expected weights of at least 0"),
    ],
)
def test_wrong_recipe_arguments_are_refused_in_one_line(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recipe.main(words) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("tiny_model: ") and expected in errors and errors.count("\n") == 1


def test_run_sh_passes_its_arguments_to_the_recipe(tmp_path: Path) -> None:
    for name in ("recipes/tiny_model", "scripts", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "recipes/tiny_model/run.sh", tmp_path / "recipes/tiny_model/run.sh")
    (tmp_path / "scripts/setup.sh").write_text('echo "setup $*"\n')
    python = tmp_path / ".venv/bin/python"
    python.write_text('#!/usr/bin/env bash\necho "$PYTHONPATH: $*"\n')
    python.chmod(0o755)
    command = ["bash", str(tmp_path / "recipes/tiny_model/run.sh"), "out", "quick", "seed=1"]
    environment = {"PATH": os.environ["PATH"]}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == ["setup run", "recipes: -m tiny_model out quick seed=1"]


@pytest.mark.slow
def test_quick_recipe_resumes_after_an_interrupt_and_saves_a_model(stockfish: str, tmp_path: Path) -> None:
    out = tmp_path / "out (1)=ü"
    command = [sys.executable, "-m", "tiny_model", str(out), "quick", "processes=1", "threads=1", "device=cpu"]
    path = os.pathsep.join(map(str, (ROOT / "recipes", ROOT / "src")))
    environment = os.environ | {"PYTHONPATH": path, "STOCKFISH_PATH": stockfish}
    interrupted = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (out / "training_state.pt").is_file() and interrupted.poll() is None:
        time.sleep(0.1)
    interrupted.send_signal(signal.SIGINT)
    _, errors = interrupted.communicate()
    assert interrupted.returncode == 130 and errors.endswith("tiny_model: interrupted; the same command resumes\n")
    resumed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming from step " in resumed.stdout and "step 60/60" in resumed.stdout
    assert "data generate" not in resumed.stdout and "evaluation: " in resumed.stdout
    assert (out / "model/model.safetensors").is_file() and (out / "evaluation.json").is_file()


@pytest.mark.slow(minutes=5)
def test_ninety_steps_from_nothing_learn_formats_and_moves(stockfish: str, tmp_path: Path) -> None:
    # The model that ships had 2,200 steps on 200,000 rows in its last run; so short a run warms up in fewer steps.
    out = tmp_path / "out"
    length = ("rows=4000", "training.steps=90", "training.warmup_steps=10", "training.average=0.95")
    one = ("evaluation_rows=128", "processes=1", "threads=1", "device=cpu")
    path = os.pathsep.join(map(str, (ROOT / "recipes", ROOT / "src")))
    environment = os.environ | {"PYTHONPATH": path, "STOCKFISH_PATH": stockfish}
    command = [sys.executable, "-m", "tiny_model", str(out), *length, *one]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    suites = json.loads((out / "evaluation.json").read_text())["suites"]
    table = {key: measure["value"] for suite in suites.values() for key, measure in suite["table"].items()}
    # It had 0.74, 0.92, 0.34 and 0.59 when this was written; a model that learns nothing has 0 of each.
    assert table["policy/valid"] > 0.3 and table["environment/valid"] > 0.8
    assert table["policy/legal_best_move"] > 0.08 and table["environment/next_state_nls"] > 0.4


def test_recipe_stops_at_a_loss_that_is_not_finite_and_keeps_its_last_state(
    transitions: list[Example], tmp_path: Path
) -> None:
    training, _ = learn(tmp_path, transitions, replace(SMALL, steps=1))
    state = (tmp_path / "training_state.pt").read_bytes()
    training.config = replace(SMALL, steps=3)
    next(training.model.parameters()).data.fill_(torch.nan)
    with pytest.raises(TrainingGaveUpError, match=r"^after 2 steps: expected finite losses, got nan as .*kept in "):
        list(training.run(drawn(transitions, 4), tmp_path))
    with pytest.raises(NotFiniteError, match=r"^expected finite numbers to save, got others in state\.model\."):
        training._save(tmp_path, {})
    assert (tmp_path / "training_state.pt").read_bytes() == state


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["out"], "out"),
        (["./seed=1", "seed=2"], "seed=1"),
        (["a b/c=d", "quick"], "a b/c=d"),
        (["seed=1"], "outputs/tiny_model"),
    ],
)
def test_folder_of_the_recipe_may_have_an_equals_sign_behind_a_separator(words: list[str], folder: str) -> None:
    assert recipe.parse(words)[0] == Path(folder)

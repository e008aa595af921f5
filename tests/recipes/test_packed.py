"""Packed examples give the batches and the losses of the examples that they were made from."""

import random
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch

import tiny_model.__main__ as recipe
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.stockfish.move_evals import MoveEvals, render_move_evals
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.types import Example
from tiny_model import make_examples
from tiny_model.config import TrainingConfig
from tiny_model.data import Positions
from tiny_model.drawing import DrawnExamples
from tiny_model.packed import PackedExamples, pack, settings_of, write
from tiny_model.tokenizer import build_tokenizer
from tiny_model.training import Training

STEPS, SEED = 6, 3
CONFIG = TrainingConfig(
    layers=2, width=32, heads=2, board_layer=1, steps=STEPS, policy_examples=24, environment_examples=12, bf16=False
)
# Promotions of both colours, castling, an en-passant capture, a single legal move, three legal moves, mates.
SPECIAL = (
    "1n2k3/P1P5/8/8/8/8/1p1p4/R3K2R b KQ - 0 1",
    "1n2k3/P1P5/8/8/8/8/1p1p4/R3K2R w KQ - 0 1",
    "r3k2r/8/8/3pP3/8/8/8/R3K2R w KQkq d6 0 2",
    "7k/8/8/8/8/8/5q2/7K w - - 0 1",
    "8/8/8/8/8/6k1/8/r6K w - - 99 140",
    "6k1/5ppp/8/8/8/8/8/R6K w - - 0 1",
    "r1bqkb1r/pppp1Qpp/2n2n2/4p3/2B1P3/8/PPPP1PPP/RNB1K1NR b KQkq - 0 4",
)


def positions(count: int) -> Positions:
    """Return the special positions and positions of random games, with evals of all sizes, some of them equal."""
    rng, boards = random.Random(0), [board for board in map(chess.Board, SPECIAL) if any(board.legal_moves)]
    while len(boards) < count:
        board = chess.Board()
        for _ in range(rng.randint(1, 80)):
            if board.is_game_over():
                break
            board.push(rng.choice(list(board.legal_moves)))
        boards += [board] if any(board.legal_moves) else []
    lines = []
    for board in boards:
        evals = {
            move.uci(): round(rng.choice((0.0, rng.gauss(0, 2), rng.gauss(0, 9))), 2) for move in board.legal_moves
        }
        for move in rng.sample(list(evals), min(2, len(evals))):
            evals[move] = rng.choice((999.99, 999.97, -999.98, 0.0))
        lines.append(render_move_evals(MoveEvals(board.fen(), "test", evals)))
    return Positions(lines)


@pytest.fixture(scope="module")
def drawn(make_lines: Callable[[int, int], list[str]], tmp_path_factory: pytest.TempPathFactory) -> DrawnExamples:
    file = tmp_path_factory.mktemp("transitions") / "rows.txt"
    file.write_text("".join(f"{line}\n" for line in make_lines(5, 20)))
    rows: list[Example] = [row for row in read_corpus(file).examples if row.task == "environment"]
    return DrawnExamples(CONFIG, SEED, build_tokenizer(), positions(60), rows)


def opened(file: Path, config: TrainingConfig = CONFIG, seed: int = SEED) -> PackedExamples:
    return PackedExamples(file, config, seed, build_tokenizer())


@pytest.fixture(scope="module")
def file(drawn: DrawnExamples, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "examples.npz"
    parts = [pack(drawn, range(0, 4)), pack(drawn, range(4, STEPS))]
    write(path, parts, {**settings_of(CONFIG, SEED), "steps": STEPS, "source": drawn.source})
    return path


def tensors(value: Any, name: str = "batch") -> dict[str, torch.Tensor]:
    """Return all tensors of nested dataclasses, lists and tuples, by name."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    inner = (
        {spec.name: getattr(value, spec.name) for spec in fields(value)}
        if is_dataclass(value)
        else dict(enumerate(value))
    )
    return {key: tensor for field, part in inner.items() for key, tensor in tensors(part, f"{name}.{field}").items()}


def test_packed_batches_equal_the_drawn_ones(drawn: DrawnExamples, file: Path) -> None:
    packed = opened(file)
    for step in range(STEPS):
        expected, found = tensors(drawn.batches(step)), tensors(packed.batches(step))
        assert expected.keys() == found.keys() and len(expected) == 2 * (17 + 8)
        for name, tensor in expected.items():
            assert tensor.dtype == found[name].dtype and tensor.shape == found[name].shape, name
            # Only sums of probabilities are rounded in another order.
            atol = 1e-6 if tensor.is_floating_point() else 0.0
            torch.testing.assert_close(found[name], tensor, atol=atol, rtol=0, msg=lambda text, name=name: name + text)


def test_training_from_packed_examples_has_the_same_losses(drawn: DrawnExamples, file: Path) -> None:
    """Six updates of the weights, with the same examples in the same order."""
    ours, theirs = (Training(CONFIG, seed=SEED, device=torch.device("cpu")) for _ in range(2))
    packed = opened(file)
    for _ in range(STEPS):
        expected, found = ours.train_step(drawn), theirs.train_step(packed)
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert ours._header(drawn) == theirs._header(packed)


@pytest.mark.parametrize(
    ("changes", "seed", "message"),
    [
        ({"check_share": 0.3}, SEED, r"training\.check_share: expected 0\.2, as in .*, got 0\.3"),
        ({"policy_examples": 25}, SEED, r"training\.policy_examples: expected 24"),
        ({}, 4, "seed: expected 3"),
        ({"steps": STEPS + 1}, SEED, r"training\.steps: expected at most 6, as in .*, got 7"),
    ],
)
def test_examples_of_other_options_are_refused(changes: dict[str, Any], seed: int, message: str, file: Path) -> None:
    with pytest.raises(UserError, match=message):
        opened(file, replace(CONFIG, **changes), seed)


def test_a_damaged_file_is_refused(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    for number, content in enumerate(
        (b"", b"no archive", whole[: len(whole) // 2], whole[:900] + b"\0" * 99 + whole[999:])
    ):
        damaged = tmp_path / f"{number}.npz"
        damaged.write_bytes(content)
        with pytest.raises(UserError, match=r"^examples: expected a file of examples made ahead, got .*npz: "):
            opened(damaged)
    with pytest.raises(UserError, match="examples: expected"):
        opened(tmp_path / "missing.npz")


def test_the_command_makes_a_file_that_the_recipe_trains_from(
    drawn: DrawnExamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In two processes, and in the order of the steps. The data are those of the fixture, without Stockfish."""
    for module in (recipe, make_examples):
        monkeypatch.setattr(module, "make_data", lambda *_: None)
        monkeypatch.setattr(module, "drawn_examples", lambda *_: drawn)
    file = tmp_path / "examples.npz"
    shape = ("layers=2", "width=32", "heads=2", "board_layer=1", "bf16=false", "warmup_steps=2")
    counts = (f"steps={STEPS}", "policy_examples=24", "environment_examples=12")
    options = [f"seed={SEED}", "threads=1", "device=cpu", *(f"training.{option}" for option in (*shape, *counts))]
    assert make_examples.main([str(tmp_path / "out"), f"examples={file}", *options]) == 0
    assert f"{36 * STEPS} examples" in capsys.readouterr().out
    packed = opened(file)
    assert packed.source == drawn.source
    for name, tensor in tensors(drawn.batches(STEPS - 1)).items():
        torch.testing.assert_close(tensors(packed.batches(STEPS - 1))[name], tensor, atol=1e-6, rtol=0)
    monkeypatch.setattr(recipe, "evaluate", lambda *_: None)
    monkeypatch.setattr(recipe, "drawn_examples", None)
    assert recipe.main([str(tmp_path / "out"), f"examples={file}", *options]) == 0
    assert (tmp_path / "out" / "model" / "model.safetensors").is_file()
    assert make_examples.main([str(tmp_path / "out"), *options]) == 2
    assert "examples: expected the file to write, got none" in capsys.readouterr().err


def test_arrays_are_of_compact_types(file: Path) -> None:
    with np.load(file) as archive:
        bytes_of = {name: archive[name].dtype.itemsize for name in archive.files}
    assert {name for name, size in bytes_of.items() if size > 2} == {"evals", "a_targets"}

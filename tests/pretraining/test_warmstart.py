"""Cloning from nothing: it learns, goes on where it stopped, and stays clear of what is held out."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.config import WarmstartRunConfig
from rookworld_rlvr.app.warmstart import _load
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model.chess_tokenizer import build_tokenizer
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.pretraining.warmstart import (
    ClonedRow,
    Warmstart,
    WarmstartConfig,
    batches,
    build_model,
    cloning_loss,
    tokenise,
)
from rookworld_rlvr.tasks import Example, Task
from rookworld_rlvr.tasks.corpus import example_key, read_corpus
from rookworld_rlvr.training.data import default_file

CPU = torch.device("cpu")
SMALL = WarmstartConfig(
    layers=1, width=32, heads=2, steps=30, batch_size=16, lr=2e-2, warmup_steps=5, save_every=10, log_every=5
)
UNWEIGHTED = replace(SMALL, environment_weight=1.0, eval_weight=1.0)


@pytest.fixture(scope="module")
def rows(corpus: Any) -> list[ClonedRow]:
    examples: Sequence[Example] = read_corpus(corpus.train).examples
    found = tokenise(examples, build_tokenizer(), SMALL)
    assert len(found) == len(examples) == 64
    return found


def interrupted_after(train_step: Callable[..., float], steps: int) -> Callable[..., float]:
    def step(training: Warmstart, rows: Sequence[ClonedRow]) -> float:
        if training.step == steps:
            raise KeyboardInterrupt
        return train_step(training, rows)

    return step


def learn(rows: Sequence[ClonedRow], folder: Path, config: WarmstartConfig = SMALL) -> tuple[Warmstart, list[float]]:
    folder.mkdir(exist_ok=True)
    training = Warmstart(config, seed=3, device=CPU, precision=Precision.fp32)
    training.resume(folder, rows)
    return training, [metrics["loss"] for metrics in training.run(rows, folder)]


def test_the_loss_falls_on_64_rows_in_30_steps(corpus: Any, tmp_path: Path) -> None:
    examples: Sequence[Example] = read_corpus(corpus.train).examples
    rows = tokenise(examples, build_tokenizer(), UNWEIGHTED)
    training, losses = learn(rows, tmp_path / "model", UNWEIGHTED)
    # At first no token is likelier than another: about the logarithm of their number, 8.25.
    assert len(losses) == 6 and 6.0 < losses[0] < 8.4
    assert losses[0] > losses[2] > losses[-1]
    assert cloning_loss(training.policy, rows).item() < losses[0] - 2.0


def test_the_loss_is_the_weighted_mean_cross_entropy_of_completion_tokens_and_their_end(rows: list[ClonedRow]) -> None:
    torch.manual_seed(0)
    model = build_model(SMALL, build_tokenizer())
    losses, weights = [], []
    for row in rows[:3]:
        logits = model(torch.tensor([row.tokens])).logits[0, row.prompt_length - 1 : -1]
        losses.append(cross_entropy(logits, torch.tensor(row.tokens[row.prompt_length :]), reduction="none"))
        weights.append(torch.tensor(row.weights))
        assert row.tokens[-1] == build_tokenizer().eos_token_id
    expected = (torch.cat(losses) * torch.cat(weights)).mean()
    assert cloning_loss(Policy(model, build_tokenizer()), rows[:3]).item() == pytest.approx(expected.item(), abs=1e-5)


def test_evals_count_little_and_transitions_much() -> None:
    fen = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
    policy = Example(Task.policy, f"P: {fen} ", "M: e2e4 d2d4 E: 0.5 B: e2e4")
    environment = Example(Task.environment, f"A: {fen}+e2e5+e2e5+", f"{fen}+0.0+0+1")
    config = replace(SMALL, environment_weight=3.0, eval_weight=0.25)
    chosen, moved = tokenise([policy, environment], build_tokenizer(), config)
    # M:, two moves of two squares, a blank, E:; then " 0", ".5" and a blank; then B:, a move, the end.
    assert chosen.weights == (*[1.0] * 7, *[0.25] * 3, *[1.0] * 4)
    assert set(moved.weights) == {3.0} and len(moved.weights) == len(moved.tokens) - moved.prompt_length


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(rows: list[ClonedRow], tmp_path: Path) -> None:
    whole, _ = learn(rows, tmp_path / "whole")
    # The schedule is the whole run's: the stop comes from outside.
    stopped = Warmstart(SMALL, seed=3, device=CPU, precision=Precision.fp32)
    (tmp_path / "stopped").mkdir()
    list(islice(stopped.run(rows, tmp_path / "stopped"), 5))
    assert stopped.step == 25
    resumed = Warmstart(SMALL, seed=3, device=CPU, precision=Precision.fp32)
    assert resumed.resume(tmp_path / "stopped", rows) and resumed.step == 20
    list(resumed.run(rows, tmp_path / "stopped"))
    assert resumed.step == 30
    ours, theirs = resumed.policy.model.state_dict(), whole.policy.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_model_that_is_there_is_gone_on_with_and_keeps_its_tokenizer(
    corpus: Any, small_model: Path, tmp_path: Path
) -> None:
    # Rows that it has not been trained on: of the others it has little left to learn.
    examples: Sequence[Example] = read_corpus(corpus.held_out).examples
    config = replace(SMALL, width=64)
    begun = Warmstart(config, seed=3, device=CPU, precision=Precision.fp32, init_from=str(small_model))
    rows = tokenise(examples, begun.policy.tokenizer, SMALL, begun.positions)
    plain = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(small_model)
    assert begun.policy.tokenizer.get_vocab() == tokenizer.get_vocab() and begun.positions == plain.config.n_positions
    before = cloning_loss(begun.policy, rows).item()
    assert before == pytest.approx(cloning_loss(Policy(plain, tokenizer), rows).item(), abs=1e-5)
    list(begun.run(rows, tmp_path))
    assert cloning_loss(begun.policy, rows).item() < before - 0.1
    saved = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert saved.config.n_embd == plain.config.n_embd == 32
    # It is gone on with where it stopped, and by no run that began with another.
    again = Warmstart(config, seed=3, device=CPU, precision=Precision.fp32, init_from=str(small_model))
    assert again.resume(tmp_path, rows)
    for other in ("", "tiny"):
        with pytest.raises(UserError, match=r"^init_from: expected .*, which .* was begun with, got "):
            Warmstart(config, seed=3, device=CPU, precision=Precision.fp32, init_from=other).resume(tmp_path, rows)


def test_the_evals_of_any_tokenizer_count_little() -> None:
    """GPT-2's words: byte pairs, here those of single bytes."""
    words = {character: i for i, character in enumerate(["<|endoftext|>", *sorted(ByteLevel.alphabet())])}
    pairs = Tokenizer(BPE(words, []))
    pairs.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pairs, eos_token="<|endoftext|>")
    text = "M: e2e4 E: -0.5 B: e2e4"
    [row] = tokenise([Example(Task.policy, "P: x", text)], tokenizer, SMALL)
    counted = [weight == SMALL.eval_weight for weight in row.weights]
    assert "".join(c for c, little in zip(text, counted, strict=False) if little) == " -0.5 "
    assert len(row.weights) == len(text) + 1 and row.weights[-1] == 1.0


def test_a_folder_without_a_state_begins_anew(rows: list[ClonedRow], tmp_path: Path) -> None:
    training = Warmstart(SMALL, seed=3, device=CPU, precision=Precision.fp32)
    assert not training.resume(tmp_path, rows) and training.step == 0


def test_what_another_run_saved_is_refused_by_the_first_knob_that_differs(
    rows: list[ClonedRow], tmp_path: Path
) -> None:
    config = replace(SMALL, steps=2)
    learn(rows, tmp_path, config)
    others = [replace(config, steps=3), replace(config, heads=1), replace(config, lr=1e-3), replace(config, layers=2)]
    knobs = ["model.steps: expected 2, ", "model.heads", "model.lr", "model.layers"]
    asked = [(other, 3, False, rows, knob) for other, knob in zip(others, knobs, strict=True)]
    asked += [(config, 4, False, rows, "seed: expected 3, "), (config, 3, True, rows, "precision: expected fp32, ")]
    asked += [(config, 3, False, other, "corpus, exclude: expected 64 rows of ") for other in (rows[1:], rows[::-1])]
    for other, seed, bf16, found, knob in asked:
        training = Warmstart(other, seed=seed, device=CPU, precision=Precision.bf16 if bf16 else Precision.fp32)
        with pytest.raises(UserError, match=f"^{knob}.*was begun with, got .*; another output= begins anew$"):
            training.resume(tmp_path, found)
    often = Warmstart(replace(config, save_every=1, log_every=1), seed=3, device=CPU, precision=Precision.fp32)
    assert often.resume(tmp_path, rows) and often.step == 2


def test_a_damaged_state_is_one_line(rows: list[ClonedRow], tmp_path: Path) -> None:
    training, _ = learn(rows, tmp_path, replace(SMALL, steps=1))
    file = tmp_path / "warmstart_state.pt"
    whole = file.read_bytes()
    other_text = whole.replace(b"precision", b"\xff" * len(b"precision"))
    for damaged in (b"", whole[:1], whole[:5000], whole[:-1], other_text, b"no state at all", b"\0" * 64):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"expected the state of a warm start in .*, got .*begins anew$") as error:
            training.resume(tmp_path, rows)
        assert "\n" not in str(error.value)
    for state in ({"model": {}, "step": 1}, torch.zeros(3)):
        torch.save(state, file)
        with pytest.raises(UserError, match="got one that does not say what it was begun with"):
            training.resume(tmp_path, rows)


def test_batches_hold_every_row_once_an_epoch_in_an_order_the_seed_decides(rows: list[ClonedRow]) -> None:
    def epoch(seed: int) -> list[list[ClonedRow]]:
        return list(islice(batches(rows, 16, seed), 4))

    assert sorted((row for batch in epoch(1) for row in batch), key=hash) == sorted(rows, key=hash)
    assert epoch(1) == epoch(1) != epoch(2)
    two_epochs = list(islice(batches(rows, 16, 1), 8))
    assert two_epochs[4:] != two_epochs[:4]


def test_the_saved_folder_loads_with_the_plain_auto_classes_and_is_small(rows: list[ClonedRow], tmp_path: Path) -> None:
    training, _ = learn(rows, tmp_path, replace(SMALL, steps=2))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert type(model).__name__ == "GPT2LMHeadModel" and model.config.eos_token_id == tokenizer.eos_token_id
    learned, saved = training.policy.model.state_dict(), model.state_dict()
    assert all(torch.equal(learned[name].bfloat16(), saved[name].bfloat16()) for name in learned)
    needed = [file for file in tmp_path.iterdir() if file.name != "warmstart_state.pt"]
    assert {file.suffix for file in needed} == {".json", ".safetensors"}
    assert sum(file.stat().st_size for file in needed) < 10**6


def test_the_default_shape_s_weights_fit_eight_megabytes() -> None:
    model = build_model(WarmstartConfig(), build_tokenizer())
    assert 2 * model.num_parameters() < 7_900_000


def test_rows_longer_than_the_model_are_left_out(rows: list[ClonedRow]) -> None:
    prompt = "P: rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1 "
    long, short = (Example(Task.policy, prompt, "M: " + "e2e4 " * count) for count in (120, 5))
    # P:, 32 men twice, and six more (side, castling, " -", two numbers, a blank); M:, five moves, a blank; end.
    assert [len(row.tokens) for row in tokenise([long, short], build_tokenizer(), SMALL)] == [84]


def test_positions_held_out_or_excluded_are_not_learned_from(
    make_lines: Callable[[int, int], list[str]], tmp_path: Path
) -> None:
    own, excluded = make_lines(8, 6), make_lines(9, 3)
    held_out = read_corpus(default_file("held_out.jsonl"), limit=5).examples
    shipped = [f"{row.prompt}{row.completion}" for row in held_out]
    data, exclude = tmp_path / "data.txt", tmp_path / "exclude.txt"
    data.write_text("\n".join([*own, *excluded, *shipped]) + "\n")
    exclude.write_text("\n".join(excluded) + "\n")
    assert len(read_corpus(data).examples) == 12 + 6 + 5
    kept = _load(WarmstartRunConfig(corpus=[str(data)], exclude=[str(exclude)]))
    forbidden = {
        example_key(row) for path in (exclude, default_file("held_out.jsonl")) for row in read_corpus(path).examples
    }
    assert 10 <= len(kept) <= 12 and not {example_key(row) for row in kept} & forbidden


def test_the_command_makes_a_model_and_goes_on_where_it_stopped(
    corpus: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers_logging.enable_progress_bar()
    shape = ["model.layers=1", "model.width=32", "model.heads=2", "model.batch_size=16", "model.log_every=2"]
    command = ["warmstart", f"corpus=[{corpus.train}]", f"output={tmp_path / 'model'}", *shape]
    command += ["device=cpu", "threads=1", "precision=fp32", "model.steps=4"]
    # Stopped when it has saved.
    with monkeypatch.context() as patch:
        patch.setattr(Warmstart, "_train_step", interrupted_after(Warmstart._train_step, 2))
        assert main([*command, "model.save_every=2"]) == 130
    assert main(command) == 0
    shown, told = capfd.readouterr()
    assert "64 rows of 64 fit" in shown and "going on from step 2" in shown and "step 4/4  loss" in shown
    assert "model shards" not in told
    assert main([*command, "seed=9"]) == 2
    assert capfd.readouterr().err.startswith("rookworld: seed: expected 0, which ")
    assert main([*command, "init_from=/nope"]) == 2
    assert "init_from: model.path: expected a folder" in capfd.readouterr().err
    assert (tmp_path / "model/model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_compiled_blocks_learn_the_same(rows: list[ClonedRow], tmp_path: Path) -> None:
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    _, plain = learn(rows, tmp_path / "plain")
    assert graphs["unique_graphs"] == before
    _, fast = learn(rows, tmp_path / "compiled", replace(SMALL, compile=True))
    assert graphs["unique_graphs"] > before
    assert fast == pytest.approx(plain, rel=1e-3)

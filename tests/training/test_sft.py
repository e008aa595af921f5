"""Supervised fine-tuning lowers the loss, resumes where it stopped, and leaves out held-out positions."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.config import SFTRunConfig
from rookworld_rlvr.app.sft import load_examples
from rookworld_rlvr.errors import TrainingGaveUpError, UserError
from rookworld_rlvr.model.device import Precision
from rookworld_rlvr.model.loading import ModelConfig, load_policy
from rookworld_rlvr.tasks.corpus import example_key, parse_row, read_corpus
from rookworld_rlvr.tasks.types import Example
from rookworld_rlvr.training.data import default_file
from rookworld_rlvr.training.run_files import locked
from rookworld_rlvr.training.sft import SFT, SFTConfig, TokenizedExample, batches, sft_loss, tokenize
from tiny_model.tokenizer import build_tokenizer

CPU = torch.device("cpu")
SMALL = SFTConfig(steps=30, batch_size=16, lr=2e-2, warmup_steps=5, save_every=10, log_every=5)


@pytest.fixture(scope="module")
def start(new_model: Callable[[Path, int], None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an untrained model."""
    folder = tmp_path_factory.mktemp("start")
    new_model(folder, 3)
    return folder


@pytest.fixture(scope="module")
def examples(corpus: Any) -> list[TokenizedExample]:
    labelled: Sequence[Example] = read_corpus(corpus.train).examples
    tokenized = tokenize(labelled, build_tokenizer())
    assert len(tokenized) == len(labelled) == 64
    return tokenized


@pytest.fixture
def make_training(start: Path) -> Callable[..., SFT]:
    def make(
        config: SFTConfig = SMALL, seed: int = 3, path: Path = start, precision: Precision = Precision.fp32
    ) -> SFT:
        return SFT(load_policy(ModelConfig(path=str(path)), CPU, precision), config, seed=seed)

    return make


def losses_of(training: SFT, examples: Sequence[TokenizedExample], folder: Path) -> list[float]:
    folder.mkdir(exist_ok=True)
    training.resume(folder, examples)
    return [metrics["loss"] for metrics in training.run(examples, folder)]


def test_the_loss_falls_on_64_examples_in_30_steps(
    examples: list[TokenizedExample], make_training: Callable[..., SFT], tmp_path: Path
) -> None:
    training = make_training()
    losses = losses_of(training, examples, tmp_path / "model")
    # At first all tokens are about equally likely. The logarithm of their number is 8.25.
    assert len(losses) == 6 and 6.0 < losses[0] < 8.4
    assert losses[0] > losses[2] > losses[-1]
    assert sft_loss(training.policy, examples).item() < losses[0] - 2.0


def test_sft_loss_is_mean_cross_entropy_of_completion_tokens(
    examples: list[TokenizedExample], make_training: Callable[..., SFT]
) -> None:
    policy = make_training().policy
    losses = []
    for example in examples[:3]:
        logits = policy.model(torch.tensor([example.tokens])).logits[0, example.prompt_length - 1 : -1]
        losses.append(cross_entropy(logits, torch.tensor(example.tokens[example.prompt_length :]), reduction="none"))
        assert example.tokens[-1] == policy.tokenizer.eos_token_id
    assert sft_loss(policy, examples[:3]).item() == pytest.approx(torch.cat(losses).mean().item(), abs=1e-5)


def test_interrupted_sft_resumes_to_same_bits(
    examples: list[TokenizedExample], make_training: Callable[..., SFT], tmp_path: Path
) -> None:
    uninterrupted = make_training()
    losses_of(uninterrupted, examples, tmp_path / "uninterrupted")
    interrupted, folder = make_training(), tmp_path / "interrupted"
    folder.mkdir()
    list(islice(interrupted.run(examples, folder), 5))
    assert interrupted.step == 25
    resumed = make_training()
    assert resumed.resume(folder, examples) and resumed.step == 20
    list(resumed.run(examples, folder))
    ours, theirs = resumed.policy.model.state_dict(), uninterrupted.policy.model.state_dict()
    assert resumed.step == 30 and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_fine_tuning_starts_from_the_model_and_keeps_its_tokenizer(
    corpus: Any, small_model: Path, make_training: Callable[..., SFT], tmp_path: Path
) -> None:
    # The model was not trained on these examples, so it has more to learn from them.
    labelled: Sequence[Example] = read_corpus(corpus.held_out).examples
    training = make_training(path=small_model)
    assert training.policy.tokenizer.get_vocab() == AutoTokenizer.from_pretrained(small_model).get_vocab()
    examples = tokenize(labelled, training.policy.tokenizer, training.positions)
    before = sft_loss(training.policy, examples).item()
    list(training.run(examples, tmp_path))
    assert sft_loss(training.policy, examples).item() < before - 0.1
    assert make_training(path=small_model).resume(tmp_path, examples)
    with pytest.raises(UserError, match=r"^model\.path: expected .*, as in the training that is saved in .*, got "):
        make_training().resume(tmp_path, examples)


def test_a_folder_without_a_state_starts_a_new_training(
    examples: list[TokenizedExample], make_training: Callable[..., SFT], tmp_path: Path
) -> None:
    training = make_training()
    assert not training.resume(tmp_path, examples) and training.step == 0


def test_state_of_another_training_is_refused_with_differing_option(
    examples: list[TokenizedExample], make_training: Callable[..., SFT], tmp_path: Path
) -> None:
    config = replace(SMALL, steps=2)
    losses_of(make_training(config), examples, tmp_path)
    others: list[tuple[SFT, list[TokenizedExample], str]] = [
        (make_training(replace(config, steps=3)), examples, "steps: expected 2, "),
        (make_training(replace(config, lr=1e-3)), examples, "lr"),
        (make_training(replace(config, batch_size=8)), examples, "batch_size"),
        (make_training(config, seed=4), examples, "seed: expected 3, "),
        (make_training(config, precision=Precision.bf16), examples, "precision: expected fp32, "),
        (make_training(config), examples[1:], "corpus, exclude: expected 64 rows of "),
        (make_training(config), examples[::-1], "corpus, exclude: expected 64 rows of "),
    ]
    for training, trained_on, option in others:
        with pytest.raises(UserError, match=f"^{option}.*saved in .*, got .*; another output folder starts a new"):
            training.resume(tmp_path, trained_on)
    often = make_training(replace(config, save_every=1, log_every=1))
    assert often.resume(tmp_path, examples) and often.step == 2


def test_damaged_sft_state_is_refused_in_one_line(
    examples: list[TokenizedExample], make_training: Callable[..., SFT], tmp_path: Path
) -> None:
    training = make_training(replace(SMALL, steps=1))
    losses_of(training, examples, tmp_path)
    file = tmp_path / "training_state.pt"
    sound = file.read_bytes()
    other_text = sound.replace(b"precision", b"\xff" * len(b"precision"))
    for damaged in (b"", sound[:1], sound[:5000], sound[:-1], other_text, b"no state at all", b"\0" * 64):
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"expected the state of a training in .*, got .* new training$") as error:
            training.resume(tmp_path, examples)
        assert "\n" not in str(error.value)
    for state in ({"model": {}, "step": 1}, torch.zeros(3)):
        torch.save(state, file)
        with pytest.raises(UserError, match="got a file without a header"):
            training.resume(tmp_path, examples)


def test_epoch_has_every_example_once_in_an_order_set_by_seed(examples: list[TokenizedExample]) -> None:
    def epoch(seed: int) -> list[list[TokenizedExample]]:
        return list(islice(batches(examples, 16, seed), 4))

    assert sorted((example for batch in epoch(1) for example in batch), key=hash) == sorted(examples, key=hash)
    assert epoch(1) == epoch(1) != epoch(2)
    two_epochs = list(islice(batches(examples, 16, 1), 8))
    assert two_epochs[4:] != two_epochs[:4]


def test_saved_folder_loads_with_transformers_auto_classes(
    examples: list[TokenizedExample], make_training: Callable[..., SFT], tmp_path: Path
) -> None:
    training = make_training(replace(SMALL, steps=2))
    losses_of(training, examples, tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert type(model).__name__ == "GPT2LMHeadModel" and model.config.eos_token_id == tokenizer.eos_token_id
    learned, saved = training.policy.model.state_dict(), model.state_dict()
    assert all(torch.equal(learned[name].bfloat16(), saved[name].bfloat16()) for name in learned)


def test_examples_longer_than_model_positions_are_left_out() -> None:
    prompt = "P: rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1 "
    long, short = (Example("policy", prompt, "M: " + "e2e4 " * count) for count in (120, 5))
    # 71 of the prompt: P:, 32 pieces twice, six more. 13 of the completion: M:, five moves of two, a space, the end.
    assert [len(example.tokens) for example in tokenize([long, short], build_tokenizer(), 256)] == [84]


def test_sft_leaves_out_held_out_and_excluded_positions(
    make_lines: Callable[[int, int], list[str]], tmp_path: Path
) -> None:
    own, excluded = make_lines(8, 6), make_lines(9, 3)
    held_out = read_corpus(default_file("held_out.jsonl"), limit=5).examples
    shipped = [f"{row.prompt}{row.completion}" for row in held_out]
    data, exclude = tmp_path / "data.txt", tmp_path / "exclude.txt"
    data.write_text("\n".join([*own, *excluded, *shipped]) + "\n")
    # A row with a malformed completion excludes its position too.
    malformed = [line.partition("M:")[0] + "M: e2e4 e2e4" if line.startswith("P:") else line for line in excluded]
    exclude.write_text("\n".join(malformed) + "\n")
    assert len(read_corpus(data).examples) == 12 + 6 + 5
    kept = load_examples(SFTRunConfig(corpus=[str(data)], exclude=[str(exclude)]))
    rows = [*map(parse_row, excluded), *read_corpus(default_file("held_out.jsonl")).examples]
    forbidden = {example_key(row) for row in rows if isinstance(row, Example)}
    assert len(rows) == 6 + 2048 * 2
    assert 10 <= len(kept) <= 12 and not {example_key(row) for row in kept} & forbidden


@pytest.mark.parametrize("changes", [{"steps": 0}, {"batch_size": 0}, {"lr": 0.0}, {"weight_decay": -1.0}], ids=str)
def test_sft_options_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        SFTConfig(**changes)


def test_the_command_fine_tunes_a_model_and_resumes(
    corpus: Any, start: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers_logging.enable_progress_bar()
    command = ["sft", f"corpus=[{corpus.train}]", f"model.path={start}", f"output={tmp_path / 'model'}"]
    command += ["batch_size=16", "log_every=2", "device=cpu", "threads=1", "precision=fp32", "steps=4"]
    train_step = SFT._train_step

    def interrupted(training: SFT, examples: Sequence[TokenizedExample]) -> float:
        if training.step == 2:
            raise KeyboardInterrupt
        return train_step(training, examples)

    with monkeypatch.context() as patch:
        patch.setattr(SFT, "_train_step", interrupted)
        assert main([*command, "save_every=2"]) == 130
    assert main(command) == 0
    output, errors = capfd.readouterr()
    assert "64 examples of 64" in output and "resuming from step 2" in output and "step 4/4  loss" in output
    assert "model shards" not in errors
    assert main([*command, "seed=9"]) == 2
    assert capfd.readouterr().err.startswith("rookworld: seed: expected 0, ")
    assert main([*command, "model.path=/nope"]) == 2
    assert "model.path: expected a folder" in capfd.readouterr().err
    assert (tmp_path / "model/model.safetensors").is_file()
    # It never writes into the folder of another model.
    assert main([*command, f"output={start}"]) == 2
    assert "got the folder of a model" in capfd.readouterr().err


def test_sft_stops_at_a_loss_that_is_not_finite_and_keeps_the_last_state(
    corpus: Any, start: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    command = ["sft", f"corpus=[{corpus.train}]", f"model.path={start}", f"output={folder}", "batch_size=8"]
    command += ["log_every=1", "save_every=2", "device=cpu", "threads=1", "precision=fp32", "steps=6"]
    train_step = SFT._train_step

    def poisoned(training: SFT, examples: Sequence[TokenizedExample]) -> float:
        loss = train_step(training, examples)
        if training.step == 3:
            training.policy.model.transformer.ln_f.weight.data[0] = torch.nan
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(SFT, "_train_step", poisoned)
        assert main(command) == 4
    error = capfd.readouterr().err
    assert "after 3 steps: expected a finite loss, got nan; the state that was saved last is kept in " in error
    assert error.count("\n") == 1 and "; try lr=2e-05 in another folder" in error
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert all(value.isfinite().all() for value in model.state_dict().values())
    assert torch.load(folder / "training_state.pt", weights_only=True)["step"] == 2
    assert main(command) == 0
    assert "resuming from step 2" in capfd.readouterr().out


@pytest.mark.parametrize("value", [float("inf"), 3.4e38, float("nan")])
def test_sft_does_not_save_weights_that_are_not_finite_or_become_so_by_rounding(
    value: float, examples: list[TokenizedExample], make_training: Callable[..., SFT], tmp_path: Path
) -> None:
    training = make_training(replace(SMALL, steps=2, save_every=1))
    run = training.run(examples, tmp_path)
    train_step = training._train_step

    def grown(batch: Sequence[TokenizedExample]) -> float:
        loss = train_step(batch)
        if training.step == 2:
            training.policy.model.transformer.wpe.weight.data[-1, 0] = value
        return loss

    training._train_step = grown  # type: ignore[method-assign]
    name = "model" if value != 3.4e38 else "rounded"
    with pytest.raises(TrainingGaveUpError, match=f"^after 2 steps: expected finite .* in state.{name}.*wpe.weight;"):
        list(run)
    assert torch.load(tmp_path / "training_state.pt", weights_only=True)["step"] == 1


def test_gradient_that_is_not_finite_ends_sft_before_the_update(
    examples: list[TokenizedExample], make_training: Callable[..., SFT], tmp_path: Path
) -> None:
    training = make_training()
    weight = training.policy.model.transformer.ln_f.weight
    weight.register_hook(lambda grad: grad * torch.nan)
    with pytest.raises(TrainingGaveUpError, match=r"^after 0 steps: .* gradient's norm, got nan; nothing is saved in "):
        list(training.run(examples, tmp_path))
    assert weight.isfinite().all() and list(tmp_path.iterdir()) == []


def test_two_sft_trainings_do_not_share_a_folder(
    corpus: Any, start: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with locked(tmp_path, option="output"):
        given = [
            "sft",
            f"corpus=[{corpus.train}]",
            f"model.path={start}",
            f"output={tmp_path}",
            "device=cpu",
            "steps=1",
        ]
        assert main(given) == 2
    assert "output: expected a run that no other process trains, got " in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []

"""`rookworld sft corpus=[…] model.path=…`: supervised fine-tuning of an existing model, which can be resumed."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from ..errors import UserError, prefixed
from ..files import make_folder
from ..model.device import select_device
from ..model.loading import ModelConfig, load_policy
from ..shell import command, setting
from ..tasks.corpus import exclude_positions, read_corpus
from ..tasks.types import Example
from ..training.data import held_out_positions, positions_of
from ..training.run_files import locked
from ..training.saved_state import STATE_FILE
from ..training.sft import SFT, tokenize
from .build import make_console, print_lines, set_threads, warn_of_weights
from .config import SFTRunConfig
from .hydra_command import run_command


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    return run_command("sft", SFTRunConfig, argv, _sft)


def _sft(config: SFTRunConfig, _raw: DictConfig) -> None:
    set_threads(config.threads)
    labelled = load_examples(config)
    if not config.output.strip():
        raise UserError(f"output: expected a folder, got {config.output!r}")
    folder = Path(config.output).expanduser()
    make_folder(folder, "output")
    with locked(folder, option="output"):
        _train(config, labelled, folder)


def _train(config: SFTRunConfig, labelled: Sequence[Example], folder: Path) -> None:
    """Train a model on the examples, from the state in the folder if there is one."""
    if (folder / "config.json").exists() and not (folder / STATE_FILE).exists():
        wanted = "a new folder, or that of an interrupted training"
        raise UserError(f"output: expected {wanted}, got the folder of a model: {folder}")
    policy = load_policy(ModelConfig(path=config.model.path), select_device(config.device), config.precision)
    warn_of_weights(policy, config.model.path)
    training, console = SFT(policy, config, seed=config.seed), make_console()
    examples = tokenize(labelled, policy.tokenizer, training.positions)
    if not examples:
        raise UserError(f"corpus: expected examples of at most {training.positions} tokens, got longer ones alone")
    print_lines(console, f"{len(examples)} examples of {len(labelled)} fit the model's positions")
    if training.resume(folder, examples):
        print_lines(console, f"resuming from step {training.step} in {folder}")
    for metrics in training.run(examples, folder):
        step, loss, lr = metrics["step"], metrics["loss"], metrics["lr"]
        print_lines(console, f"step {step:.0f}/{config.steps}  loss {loss:.4f}  lr {lr:.1e}")
    print_lines(console, f"model: {folder}; to evaluate it: {command('evaluate', setting('model.path', folder))}")


def load_examples(config: SFTRunConfig) -> list[Example]:
    """Return the labelled examples without held-out and excluded positions. Raises UserError."""
    if not config.corpus:
        raise UserError("corpus: expected files, as corpus=[policy.txt,environment.txt]; got none")
    with prefixed("corpus", UserError):
        examples = [example for source in config.corpus for example in read_corpus(source).examples]
        excluded = held_out_positions() | positions_of(config.exclude)
    kept = list(exclude_positions([example for example in examples if example.completion], excluded))
    if not kept:
        raise UserError("corpus: expected labelled examples of positions that are not held out, got none")
    return kept

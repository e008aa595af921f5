"""`python -m tiny_model [OUT] [quick] [option=value …]`: data, training, export and evaluation; resumable."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from transformers.utils import logging as transformers_logging

from rookworld_rlvr.errors import BAD_INPUT, DONE, GAVE_UP, INTERRUPTED, TrainingGaveUpError, UserError
from rookworld_rlvr.model.device import Device, select_device
from rookworld_rlvr.shell import command, setting, train_command
from rookworld_rlvr.training.run_files import locked

from .config import TrainingConfig
from .data import load_data
from .drawing import DrawnExamples, Examples
from .packed import PackedExamples
from .tokenizer import build_tokenizer
from .training import MODEL_FOLDER, Training

OUTPUT = "outputs/tiny_model"
# Options of a quick run, which goes through all stages in about two minutes and makes a model that plays badly.
QUICK = (
    "rows=300",
    "evaluation_rows=16",
    "training.layers=2",
    "training.width=64",
    "training.heads=2",
    "training.board_layer=1",
    "training.steps=60",
    "training.policy_examples=8",
    "training.environment_examples=8",
    "training.warmup_steps=5",
    "training.average=0.9",
    "training.save_every=20",
    "training.log_every=10",
)


@dataclass(slots=True)
class RecipeConfig:
    """Options of the recipe."""

    rows: int = 500_000
    """Number of positions with an evaluation of every legal move, and number of transitions."""
    depth: int = 4
    """Search depth of Stockfish per position, in plies."""
    processes: int = 2
    """Number of Stockfish processes; it changes the speed, not the data."""
    seed: int = 0
    exclude: list[str] = field(default_factory=list)
    """Files whose positions are left out of training, in addition to the held-out rows that ship with the package."""
    evaluation_rows: int = 2048
    """Number of held-out rows per task in the evaluation."""
    device: Device = Device.auto
    threads: int = 0
    """Number of CPU threads; 0: torch chooses."""
    examples: str = ""
    """File of examples that `python -m tiny_model.make_examples` has made ahead. Then neither data nor Stockfish are
    needed. Empty: each step makes its own examples."""
    training: TrainingConfig = field(default_factory=TrainingConfig)


def main(arguments: Sequence[str]) -> int:
    """Run the stages, which reuse existing data and resume training, and return the exit code."""
    try:
        folder, config = parse(arguments)
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, option="OUT"):
            stages = [("training", train), ("evaluation", evaluate)]
            for name, stage in stages if config.examples else [("data", make_data), *stages]:
                timed(name, stage, folder, config)
    except TrainingGaveUpError as error:
        print(f"tiny_model: {error}", file=sys.stderr)
        return GAVE_UP
    except (UserError, OSError) as error:
        print(f"tiny_model: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("tiny_model: interrupted; the same command resumes", file=sys.stderr)
        return INTERRUPTED
    model = folder / MODEL_FOLDER
    print(f"model: {model}; to train it further: {train_command(setting('model.path', model))}")
    return DONE


def parse(arguments: Sequence[str]) -> tuple[Path, RecipeConfig]:
    """Return the output folder and the options. Raises UserError for an unknown option or a wrong value."""
    words = list(arguments)
    # The name of an option has no separator, which tells it from a folder such as ./seed=1.
    is_folder = bool(words) and words[0] != "quick" and ("=" not in words[0] or "/" in words[0].split("=")[0])
    folder = words.pop(0) if is_folder else OUTPUT
    quick = words[:1] == ["quick"]
    overrides = [*QUICK, *words[1:]] if quick else words
    if wrong := [word for word in overrides if "=" not in word]:
        raise UserError(f"expected [OUT] [quick] [option=value ...], got {wrong[0]!r}")
    try:
        raw = OmegaConf.merge(OmegaConf.structured(RecipeConfig), OmegaConf.from_dotlist(overrides))
        config = OmegaConf.to_object(raw)
    except (OmegaConfBaseException, ValueError) as error:
        raise UserError(str(error).splitlines()[0]) from error
    assert isinstance(config, RecipeConfig)
    return Path(folder).expanduser(), config


def timed(name: str, stage: Callable[[Path, RecipeConfig], None], folder: Path, config: RecipeConfig) -> None:
    """Run a stage and print the seconds that it took."""
    start = time.perf_counter()
    stage(folder, config)
    print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


def make_data(folder: Path, config: RecipeConfig) -> None:
    """Write evaluated positions and transitions, unless the folder has a data card of the same options."""
    data = folder / "data"
    arguments = ["--rows", config.rows, "--depth", config.depth, "--seed", config.seed, "--processes", config.processes]
    card = data / "data_card.json"
    if not card.is_file() or not describes(json.loads(card.read_text(encoding="utf-8")), config):
        rookworld("data", "generate", *arguments, "--out", data)


def describes(card: dict[str, object], config: RecipeConfig) -> bool:
    """Return whether a data card is of these options."""
    policy = card.get("policy")
    return isinstance(policy, dict) and (policy["rows"], card["seed"], card["depth"]) == (
        config.rows, config.seed, config.depth,
    )  # fmt: skip


def drawn_examples(folder: Path, config: RecipeConfig) -> DrawnExamples:
    """Return examples drawn from the folder's data, whose sizes are printed. Raises UserError."""
    positions, transitions = load_data(folder / "data", config.exclude)
    print(f"{len(positions)} positions, {len(transitions)} transitions", flush=True)
    return DrawnExamples(config.training, config.seed, build_tokenizer(), positions, transitions)


def train(folder: Path, config: RecipeConfig) -> None:
    """Train to the last step and export the model with each save."""
    if config.threads:
        torch.set_num_threads(config.threads)
    # The progress bar for a model's shards would be printed between the lines of the steps.
    transformers_logging.disable_progress_bar()
    training = Training(config.training, seed=config.seed, device=select_device(config.device))
    examples: Examples
    if config.examples:
        path = Path(config.examples).expanduser()
        examples = PackedExamples(path, config.training, config.seed, training.tokenizer)
    else:
        examples = drawn_examples(folder, config)
    if training.resume(folder, examples):
        print(f"resuming from step {training.step}", flush=True)
    for metrics in training.run(examples, folder):
        step, lr = metrics.pop("step"), metrics.pop("lr")
        losses = "  ".join(f"{name} {loss:.3f}" for name, loss in metrics.items())
        print(f"step {step:.0f}/{config.training.steps}  {losses}  lr × {lr:.2f}", flush=True)


def evaluate(folder: Path, config: RecipeConfig) -> None:
    """Evaluate the exported model on the held-out rows that ship with the package."""
    files = {"model.path": folder / MODEL_FOLDER, "output": folder / "evaluation.json"}
    options = {"evaluation.rows": config.evaluation_rows, "threads": config.threads, "device": config.device}
    given = [setting(name, path) for name, path in files.items()]
    rookworld("evaluate", *given, *(f"{name}={value}" for name, value in options.items()))


def rookworld(*words: object) -> None:
    """Run a command of `rookworld` in a process of its own. Raises UserError if it fails."""
    print(command(*words), flush=True)
    if code := subprocess.run([sys.executable, "-m", "rookworld_rlvr", *map(str, words)], check=False).returncode:
        raise UserError(f"rookworld {words[0]} ended with exit code {code}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`rookworld warmstart corpus=[…]`: a new model, or one to go on with, by behaviour cloning; resumable."""

from pathlib import Path

from omegaconf import DictConfig

from ..errors import UserError
from ..files import make_folder
from ..model.device import select_device
from ..pretraining.warmstart import Warmstart, tokenise
from ..tasks import Example
from ..tasks.corpus import CorpusError, exclude_positions, read_corpus
from ..training.data import held_out_positions, positions_of
from .config import WarmstartRunConfig
from .hydra_command import run_command
from .wiring import make_console, set_threads


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    return run_command("warmstart", WarmstartRunConfig, argv, _warmstart)


def _warmstart(config: WarmstartRunConfig, _raw: DictConfig) -> None:
    set_threads(config.threads)
    examples = _load(config)
    folder = Path(config.output).expanduser()
    make_folder(folder, "output")
    training = Warmstart(
        config.model,
        seed=config.seed,
        device=select_device(config.device),
        precision=config.precision,
        init_from=config.init_from,
    )
    console = make_console()
    rows = tokenise(examples, training.policy.tokenizer, config.model, training.positions)
    console.print(f"{len(rows)} rows of {len(examples)} fit the model's positions", highlight=False)
    if training.resume(folder, rows):
        console.print(f"going on from step {training.step} in {folder}", highlight=False)
    for metrics in training.run(rows, folder):
        console.print(
            f"step {metrics['step']:.0f}/{config.model.steps}  loss {metrics['loss']:.4f}  lr {metrics['lr']:.1e}",
            highlight=False,
        )
    told = f"model: {folder}; how good it is: rookworld evaluate model.path={folder}"
    console.print(told, highlight=False, markup=False, soft_wrap=True)


def _load(config: WarmstartRunConfig) -> list[Example]:
    """Labelled examples, less every position that is evaluated on. Raises UserError."""
    if not config.corpus:
        raise UserError("corpus: expected files, as corpus=[policy.txt,environment.txt]; got none")
    try:
        examples = [example for source in config.corpus for example in read_corpus(source).examples]
        excluded = held_out_positions() | positions_of(config.exclude)
    except CorpusError as error:
        raise UserError(f"corpus: {error}") from error
    labelled = [example for example in examples if example.completion]
    kept = list(exclude_positions(labelled, excluded))
    if not kept:
        raise UserError("data: expected labelled rows that are not evaluated on, got none")
    return kept

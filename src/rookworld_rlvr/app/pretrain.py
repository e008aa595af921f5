"""`rookworld pretrain verdicts=[…] transitions=[…]`: a new small model; resumable."""

from pathlib import Path

from omegaconf import DictConfig
from transformers.utils import logging as transformers_logging

from ..board.fen import parse_fen, position_key
from ..errors import UserError
from ..files import make_folder
from ..model.device import select_device
from ..pretraining.run import Pretraining
from ..tasks import Example, Task
from ..tasks.corpus import CorpusError, exclude_positions, read_corpus
from ..tasks.move_evals import MoveEvals, read_move_evals
from ..training.data import held_out_positions, positions_of
from .build import make_console, set_threads
from .config import PretrainRunConfig
from .hydra_command import run_command


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    return run_command("pretrain", PretrainRunConfig, argv, _pretrain)


def _pretrain(config: PretrainRunConfig, _raw: DictConfig) -> None:
    set_threads(config.threads)
    # The bar of a model's shards would stand between the lines that tell of steps.
    transformers_logging.disable_progress_bar()
    verdicts, transitions = load(config)
    folder = Path(config.output).expanduser()
    make_folder(folder, "output")
    begun = Path(config.init_from).expanduser() if config.init_from else None
    device = select_device(config.device)
    training = Pretraining(config.model, seed=config.seed, device=device, init_from=begun)
    console = make_console()
    console.print(f"{len(verdicts)} verdicts, {len(transitions)} transitions", highlight=False)
    if training.resume(folder, verdicts, transitions):
        console.print(f"going on from step {training.step} in {folder}", highlight=False)
    for metrics in training.run(verdicts, transitions, folder):
        step, lr = metrics.pop("step"), metrics.pop("lr")
        told = "  ".join(f"{part} {loss:.3f}" for part, loss in metrics.items())
        console.print(f"step {step:.0f}/{config.model.steps}  {told}  lr × {lr:.2f}", highlight=False)
    told = f"model: {folder}; how good it is: rookworld evaluate model.path={folder}"
    console.print(told, highlight=False, markup=False, soft_wrap=True)


def load(config: PretrainRunConfig) -> tuple[list[MoveEvals], list[Example]]:
    """Verdicts, one a position, and labelled `A:` rows, less every position that is evaluated on. Raises UserError."""
    if not config.verdicts or not config.transitions:
        raise UserError("expected files, as verdicts=[move_evals.tsv] transitions=[environment.txt]; got none")
    try:
        excluded = held_out_positions() | positions_of(config.exclude)
        found = {_key(verdict): verdict for source in config.verdicts for verdict in read_move_evals(Path(source))}
        rows = [example for source in config.transitions for example in read_corpus(source).examples]
    except (CorpusError, ValueError, OSError) as error:
        raise UserError(f"verdicts, transitions: {error}") from error
    verdicts = [verdict for key, verdict in found.items() if key not in excluded and verdict.evals_pawns]
    labelled = [row for row in rows if row.completion and row.task is Task.environment]
    transitions = list(exclude_positions(labelled, excluded))
    if not verdicts or not transitions:
        wanted = "verdicts and labelled A: rows that are not evaluated on"
        raise UserError(f"data: expected {wanted}, got {len(verdicts)} and {len(transitions)}")
    return verdicts, transitions


def _key(verdict: MoveEvals) -> str:
    return position_key(parse_fen(verdict.fen))

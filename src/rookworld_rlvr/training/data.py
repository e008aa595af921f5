"""What is trained on and what is held out, split by position before anything else."""

from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from ..tasks import Example, Task
from ..tasks.corpus import CorpusError, example_key, exclude_positions, read_corpus, split_by_position
from ..tasks.live_games import LiveGamesConfig
from ..tasks.sampler import MixtureConfig
from .errors import UserError

DEFAULT = "default"


@dataclass(slots=True)
class DataConfig:
    """Sources: `default` (ships with us), a .txt or .jsonl file, a dataset's folder or its hub name."""

    train: str = DEFAULT
    held_out: str = DEFAULT
    """Rows to evaluate on; empty: held_out_fraction of the training source's positions."""
    held_out_fraction: float = 0.1
    """Used only where held_out is empty."""
    split: str = "train"
    """Which split of a dataset is read; files have none."""
    limit: int | None = None
    """Most rows read of each source."""
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    live: LiveGamesConfig = field(default_factory=LiveGamesConfig)

    def __post_init__(self) -> None:
        if not 0 < self.held_out_fraction < 1:
            raise ValueError(f"data.held_out_fraction: expected between 0 and 1, got {self.held_out_fraction}")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"data.limit: expected 1 or more, or null, got {self.limit}")


@dataclass(frozen=True, slots=True)
class Data:
    """No position of `held_out` is in `train`."""

    train: tuple[Example, ...]
    held_out: tuple[Example, ...]


def load_data(config: DataConfig, *, seed: int) -> Data:
    """Read both sources and keep them apart. Raises UserError where one has no valid row."""
    rows = _read(config.train, "train.txt", config)
    if config.held_out:
        held_out = _read(config.held_out, "held_out.txt", config)
        train = exclude_positions(rows, {example_key(example) for example in held_out})
    else:
        train, held_out = split_by_position(rows, config.held_out_fraction, seed)
    if not train or not held_out:
        raise UserError(f"data: expected training and held-out rows, got {len(train)} and {len(held_out)}")
    wanted = [task for task, share in config.mixture.proportions().items() if share]
    for task in wanted:
        if not any(example.task is task for example in train):
            raise UserError(
                f"data.train: expected rows of task {task}, as data.mixture asks, got none in {config.train}"
            )
    return Data(train, held_out)


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """What is evaluated on, and what must not be."""

    held_out: tuple[Example, ...]
    trained: frozenset[str]
    """The positions of the training source, by identity (`example_key`)."""


def load_evaluation_data(config: DataConfig, *, seed: int) -> EvaluationData:
    """The held-out rows as they stand, and every position of `data.train`, wherever rows are held out by file.

    Raises UserError where a source has no valid row, or none is held out.
    """
    rows = _read(config.train, "train.txt", config)
    if config.held_out:
        train, held_out = rows, _read(config.held_out, "held_out.txt", config)
    else:
        train, held_out = split_by_position(rows, config.held_out_fraction, seed)
    if not held_out:
        raise UserError("data: expected held-out rows, got none")
    return EvaluationData(held_out, frozenset(map(example_key, train)))


def evaluation_rows(held_out: tuple[Example, ...], rows_per_task: int) -> tuple[Example, ...]:
    """The first rows of each task, at most rows_per_task of it."""
    by_task = {task: [row for row in held_out if row.task is task][:rows_per_task] for task in Task}
    return tuple(row for rows in by_task.values() for row in rows)


def default_file(name: str) -> Path:
    """A data file that ships with the package."""
    return Path(str(resources.files("rookworld_rlvr") / "assets" / "data" / name))


def _read(source: str, default_name: str, config: DataConfig) -> tuple[Example, ...]:
    path = default_file(default_name) if source == DEFAULT else source
    try:
        return read_corpus(path, split=config.split, limit=config.limit).examples
    except CorpusError as error:
        raise UserError(f"data: {error}") from error

"""Configurations of the commands. They are composed of dataclasses that are defined beside the code they configure."""

from dataclasses import dataclass, field

from ..evaluation.config import SuitesConfig
from ..evaluation.conversion import ConversionConfig
from ..evaluation.match import MatchRulesConfig
from ..evaluation.selfplay import SelfplayConfig
from ..evaluation.suite import SuiteName
from ..model.device import Device, Precision
from ..model.loading import ModelSourceConfig
from ..rewards.evaluation_cache import DEFAULT
from ..rollout.generator import GeneratorBaseConfig, GeneratorKind
from ..stockfish.engine import EngineProcessConfig
from ..training.config import DataConfig, RunConfig, longest
from ..training.sft import SFTConfig


@dataclass(slots=True)
class BenchConfig:
    """Generators to measure, and the number of rounds."""

    generators: list[GeneratorKind] = field(default_factory=lambda: [GeneratorKind.native, GeneratorKind.hf])
    """Generators to measure in turn, on the same prompts. If hf is one of them, ratios to it are shown."""
    rounds: int = 5
    """Number of measured steps per generator. One more step comes first and is not counted."""
    output: str = ""
    """JSON file for all figures. Empty: figures are only printed."""

    def __post_init__(self) -> None:
        if not self.generators or len(set(self.generators)) < len(self.generators):
            raise ValueError(f"bench.generators: expected one or more, each once, got {list(self.generators)}")
        if self.rounds < 1:
            raise ValueError(f"bench.rounds: expected 1 or more, got {self.rounds}")


@dataclass(slots=True)
class BenchRunConfig(RunConfig):
    """Options of `rookworld bench`: those of a run, and those of the measurement."""

    bench: BenchConfig = field(default_factory=BenchConfig)


@dataclass(slots=True)
class EvaluateConfig:
    """Options of `rookworld evaluate`."""

    suites: list[str] = field(default_factory=list)
    """Suites to evaluate, in this order: tasks of `data.tasks`, of which they are the held-out rows, and suites that
    belong to no task. Empty: the tasks of `data.tasks`."""
    seed: int = 0
    """Seed of the held-out split if data.held_out is empty, and of random choices in games."""
    device: Device = Device.auto
    precision: Precision = Precision.auto
    threads: int = 0
    """Number of CPU threads. 0: torch chooses."""
    move_evals: str = DEFAULT
    """File of move evaluations, written by `rookworld data evals`. `default`: the file that ships with the package.
    Empty: none. A row whose position is not in the file has no win_probability_loss."""
    output: str = ""
    """JSON file for the tables; rows are written to <output>.rows.jsonl. Empty: tables are only printed."""
    evaluation: SuitesConfig = field(default_factory=SuitesConfig)
    model: ModelSourceConfig = field(default_factory=ModelSourceConfig)
    data: DataConfig = field(default_factory=DataConfig)
    generator: GeneratorBaseConfig = field(default_factory=GeneratorBaseConfig)
    stockfish: EngineProcessConfig = field(default_factory=EngineProcessConfig)
    """Engine for evaluation.nodes, for match.opponent=stockfish, and for the adjudication of match games that reach the
    ply limit."""
    selfplay: SelfplayConfig = field(default_factory=SelfplayConfig)
    match: MatchRulesConfig = field(default_factory=MatchRulesConfig)
    conversion: ConversionConfig = field(default_factory=ConversionConfig)

    def __post_init__(self) -> None:
        if len(set(self.suites)) < len(self.suites):
            raise ValueError(f"suites: expected each once, got {list(self.suites)}")
        tasks = self.data.task_objects()
        names = [task.name for task in tasks]
        known = [*names, *SuiteName]
        if unknown := [name for name in self.suites if name not in known]:
            raise ValueError(f"suites: expected {', '.join(known)}, got {unknown[0]}")
        self.suites = self.suites or names
        self.generator.max_new_tokens = self.generator.max_new_tokens or longest(tasks)


@dataclass(slots=True)
class SFTRunConfig(SFTConfig):
    """Options of `rookworld sft`."""

    corpus: list[str] = field(default_factory=list)
    """Files or datasets with labelled examples of both tasks, such as `rookworld data generate` writes."""
    exclude: list[str] = field(default_factory=list)
    """Files whose positions are left out of training, in addition to the held-out rows that ship with the package."""
    output: str = "outputs/sft"
    """Folder of the trained model. An interrupted training resumes from it; other options or rows are then refused."""
    seed: int = 0
    device: Device = Device.auto
    precision: Precision = Precision.auto
    threads: int = 0
    model: ModelSourceConfig = field(default_factory=ModelSourceConfig)

"""The configurations of the commands, composed of the dataclasses beside their owners."""

from dataclasses import dataclass, field

from ..evaluation.conversion import ConversionConfig
from ..evaluation.match import EngineMatchConfig, MatchConfig
from ..evaluation.mate_in_one import MateInOneConfig
from ..evaluation.selfplay import SelfplayConfig
from ..evaluation.suite import SuiteName
from ..model.device import Device, Precision
from ..model.policy import ModelSourceConfig
from ..rewards.evaluation_cache import DEFAULT
from ..rollout.generator import GeneratorBaseConfig, GeneratorKind
from ..stockfish.engine import EngineProcessConfig
from ..training.config import RunConfig, SourceConfig
from ..training.sft import SFTConfig


@dataclass(slots=True)
class BenchConfig:
    """Generators that are measured, and the number of rounds."""

    generators: list[GeneratorKind] = field(default_factory=lambda: [GeneratorKind.static, GeneratorKind.hf])
    """Measured in turn, on the same prompts; ratios are to hf, where it is among them."""
    rounds: int = 5
    """Steps of each generator that count; one more before them does not."""
    output: str = ""
    """A JSON file to write all figures to; empty: the console alone."""

    def __post_init__(self) -> None:
        if not self.generators or len(set(self.generators)) < len(self.generators):
            raise ValueError(f"bench.generators: expected one or more, each once, got {list(self.generators)}")
        if self.rounds < 1:
            raise ValueError(f"bench.rounds: expected 1 or more, got {self.rounds}")


@dataclass(slots=True)
class BenchRunConfig(RunConfig):
    """`rookworld bench`: a run, and how it is measured."""

    bench: BenchConfig = field(default_factory=BenchConfig)


@dataclass(slots=True)
class EvaluateConfig:
    """`rookworld evaluate`."""

    suites: list[SuiteName] = field(default_factory=lambda: [SuiteName.policy, SuiteName.environment])
    """What is evaluated, in this order."""
    seed: int = 0
    """Decides the held-out rows where data.held_out is empty, and what is drawn in games."""
    device: Device = Device.auto
    precision: Precision = Precision.auto
    threads: int = 0
    """CPU threads; 0: torch's own choice."""
    evaluation_rows: int = 2048
    """Held-out rows per task."""
    evaluation_nodes: int = 0
    """Nodes per position of the engine that measures win_probability_loss; 0: `move_evals` does."""
    move_evals: str = DEFAULT
    """A file of move evaluations, as `rookworld data evals` writes it; `default` ships, empty: none. Rows of positions
    it lacks have no win_probability_loss."""
    output: str = ""
    """A JSON file to write the tables to, the rows beside it in <output>.rows.jsonl; empty: the console alone."""
    model: ModelSourceConfig = field(default_factory=ModelSourceConfig)
    data: SourceConfig = field(default_factory=SourceConfig)
    generator: GeneratorBaseConfig = field(default_factory=GeneratorBaseConfig)
    stockfish: EngineProcessConfig = field(default_factory=EngineProcessConfig)
    """Used with evaluation_nodes, and to adjudicate the games of matches that reach the ply limit."""
    mate_in_one: MateInOneConfig = field(default_factory=MateInOneConfig)
    selfplay: SelfplayConfig = field(default_factory=SelfplayConfig)
    engine_match: EngineMatchConfig = field(default_factory=EngineMatchConfig)
    match: MatchConfig = field(default_factory=MatchConfig)
    conversion: ConversionConfig = field(default_factory=ConversionConfig)

    def __post_init__(self) -> None:
        if not self.suites or len(set(self.suites)) < len(self.suites):
            raise ValueError(f"suites: expected one or more, each once, got {[str(name) for name in self.suites]}")
        if self.evaluation_rows < 1:
            raise ValueError(f"evaluation_rows: expected 1 or more, got {self.evaluation_rows}")


@dataclass(slots=True)
class SFTRunConfig(SFTConfig):
    """`rookworld sft`."""

    corpus: list[str] = field(default_factory=list)
    """Corpus files or datasets of both tasks; `rookworld data generate` makes them."""
    exclude: list[str] = field(default_factory=list)
    """Corpus files whose positions must not be learned from, beside the held-out rows that ship with us."""
    output: str = "outputs/sft"
    """The trained model's folder. An interrupted training resumes from it; other options or rows are refused."""
    seed: int = 0
    device: Device = Device.auto
    precision: Precision = Precision.auto
    threads: int = 0
    model: ModelSourceConfig = field(default_factory=ModelSourceConfig)

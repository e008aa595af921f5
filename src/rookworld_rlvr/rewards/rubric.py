"""The reward of a completion: its parts judged, weighed and mapped onto one number.

`total = (1 - quality) × malformed_reward + quality`, where `ladder` says what the quality is.
"""

import copy
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from ..stockfish.engine import Analysis, EngineConfig
from ..tasks import parse_prompt
from ..tasks.types import ParseFailure, PolicyPrompt
from .environment_rewards import (
    EnvironmentRewardConfig,
    EnvironmentTruth,
    score_environment,
    truth_of_environment,
)
from .evaluation_cache import DEFAULT
from .ladder import RUNGS, quality
from .move_values import MoveValues, move_values
from .policy_rewards import PolicyRewardConfig, PolicyTruth, score_policy, truth_of_policy
from .rubric_checks import check_config, weights_of

# A group's completions share a prompt, and a step's prompts fit in easily; an entry takes about 10 kB.
CACHED_PROMPTS = 1024


@dataclass(slots=True)
class RungWeights:
    """Weights of the rungs, above 0. Format little, judgement most."""

    structure: float = 0.1
    """Markers and fields are there, in order, once."""
    parse: float = 0.15
    """Moves are UCI, numbers are numbers, the FEN parses."""
    correctness: float = 0.75
    """Moves are legal, the next state is the true one."""


class MoveSource(StrEnum):
    """Source of the values of legal moves, by which the moves and evals of a `P:` completion are scored."""

    cached = "cached"
    """Move evaluations of the file `rubric.move_evals`; for a position that it lacks, Stockfish if it is installed,
    else the label, else the rules. Metrics count the prompts of each."""
    labels = "labels"
    """The reference completion, where there is one."""
    rules = "rules"
    """None: legality alone is scored, and labels are ignored."""
    engine = "engine"
    """Stockfish; labels are ignored."""


@dataclass(slots=True)
class RubricConfig:
    """All knobs of the reward. Weights are at least 0 and matter relative to their siblings."""

    rungs: RungWeights = field(default_factory=RungWeights)
    """Weights of the three rungs."""
    policy: PolicyRewardConfig = field(default_factory=PolicyRewardConfig)
    """The parts of `P:`."""
    environment: EnvironmentRewardConfig = field(default_factory=EnvironmentRewardConfig)
    """The parts of `A:`."""
    malformed_reward: float = -0.3
    """The total where nothing is recognised; at most 0."""
    warmup_steps: int = 0
    """Steps over which the weight of correctness ramps in linearly; 0: no ramp."""
    warmup_start: float = 0.25
    """Fraction of that weight at step 0, in [0, 1]."""
    source: MoveSource = MoveSource.cached
    move_evals: str = DEFAULT
    """The file of move evaluations for source=cached: `default` ships, empty is none, `rookworld data evals` writes
    one. Its positions also give the evaluation its win_probability_loss, whatever the source."""
    stockfish: EngineConfig = field(default_factory=EngineConfig)
    """Used with source=engine, and with source=cached for positions that the file lacks."""


@dataclass(frozen=True, slots=True)
class Score:
    """A completion, judged."""

    total: float
    """The reward: `malformed_reward` if nothing is recognised, 1.0 if perfect."""
    parts: dict[str, float]
    """Value in [0, 1] of each part that applied, as `rung/part`, before weights and gate."""
    failure: ParseFailure | None
    """What the strict parser said, None for a well-formed answer."""
    source: str = ""
    """Source of the move values of a `P:` completion: `shipped` or `file` (move evaluations), `engine`, `label` or
    `rules`; empty for `A:`."""


class Rubric:
    """A judge of completions. The configuration is read once; later changes to it have no effect."""

    def __init__(self, config: RubricConfig) -> None:
        """Raises ValueError for a knob out of its range."""
        check_config(config)
        if not isinstance(config.source, MoveSource):
            raise ValueError(f"expected rubric.source to be one of {', '.join(MoveSource)}, got {config.source!r}")
        self._config = copy.deepcopy(config)
        self._rungs = weights_of(config.rungs)
        self._policy_weights = _weights(config.policy)
        self._environment_weights = _weights(config.environment)

    def score(
        self,
        prompt: str,
        completion: str,
        label: str | None = None,
        *,
        step: int | None = None,
        analysis: Analysis | None = None,
    ) -> Score:
        """The reward of a completion and its parts.

        `label` is the reference completion's text: for a `P:` prompt it adds the parts that compare with
        it; for an `A:` prompt it is only checked to parse, since python-chess decides where they differ.
        `analysis` is an engine's verdict on the position of a `P:` prompt. It is required if `judge` is engine,
        preferred to the label if `judge` is verdicts, and unused otherwise; see `engine_judge` and `verdict_judge`. The
        label is ignored if `judge` is rules or engine.
        `step` counts from 0 for the warm-up; None means full weights. In mate and stalemate no correctness part of a
        `P:` prompt applies, and only the format is judged.
        Raises PromptError for a malformed prompt, LabelError for a malformed label (both are ValueErrors),
        and ValueError for a negative step, or an analysis that is missing or of another position.
        """
        judge = self._config.source
        truth = _truth(prompt, label if judge in (MoveSource.labels, MoveSource.cached) else None)
        verdict = ""
        if isinstance(truth, PolicyTruth):
            worth = self._worth(prompt, truth, analysis)
            verdict = analysis.origin if worth and analysis else "label" if truth.label else "rules"
            parts, failure = score_policy(completion, truth, self._config.policy, worth)
            value = quality(parts, self._policy_weights, self._rungs_at(step))
        else:
            parts, failure = score_environment(completion, truth, self._config.environment)
            value = quality(parts, self._environment_weights, self._rungs_at(step))
        return Score((1 - value) * self._config.malformed_reward + value, parts, failure, verdict)

    def _worth(self, prompt: str, truth: PolicyTruth, analysis: Analysis | None) -> MoveValues | None:
        """None in mate and stalemate, and where no engine's verdict counts."""
        judge = self._config.source
        if not truth.legal or judge in (MoveSource.labels, MoveSource.rules):
            return None
        if analysis is None:
            if judge is MoveSource.engine:
                raise ValueError(f"rubric.source=engine: expected an engine's analysis, got none for {prompt!r}")
            return None
        worth = move_values(analysis)
        if worth.evals_pawns.keys() != truth.legal:
            raise ValueError(f"expected the analysis of {prompt!r}, got that of {analysis.position!r}")
        return worth

    def _rungs_at(self, step: int | None) -> dict[str, float]:
        if step is not None and step < 0:
            raise ValueError(f"expected a step from 0, got {step}")
        config = self._config
        if step is None or step >= config.warmup_steps:
            return self._rungs
        ramp = config.warmup_start + (1 - config.warmup_start) * step / config.warmup_steps
        return self._rungs | {"correctness": self._rungs["correctness"] * ramp}


def _weights(task: PolicyRewardConfig | EnvironmentRewardConfig) -> dict[str, dict[str, float]]:
    return {
        rung: {f"{rung}/{part}": w for part, w in weights_of(getattr(task, rung)).items()} for rung in RUNGS
    }


@lru_cache(maxsize=CACHED_PROMPTS)
def _truth(prompt: str, label: str | None) -> PolicyTruth | EnvironmentTruth:
    parsed = parse_prompt(prompt)
    if isinstance(parsed, PolicyPrompt):
        return truth_of_policy(parsed, label)
    return truth_of_environment(parsed, label)

"""Reward of a completion: components in three tiers, weighted and combined into one number.

    total = (1 - quality) × malformed_reward + quality
    quality = weighted mean of the tiers, each the weighted mean of its components

Only what the strict parser accepts can reach 1. A completion that the parser refuses has a lower quality than every one
that it accepts, however bad. Its quality is structure × (weight of the first tier + weight of the second × mean quality
of its content). All metrics count it as invalid, and it gains nothing by hiding or replacing required content.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, cast

from ..stockfish.analysis import Analysis
from ..stockfish.engine import EngineOptions
from ..stockfish.move_values import MoveValues, move_values
from ..tasks import Task, all_tasks, task_named, task_of
from ..tasks.chat.reward import ChatRewardConfig
from ..tasks.environment.reward import EnvironmentRewardConfig
from ..tasks.policy.reward import PolicyRewardConfig
from ..tasks.task import Weights
from ..tasks.types import Completion
from .evaluation_cache import DEFAULT
from .score import MoveChoice, Score

TIERS = ("structure", "parse", "correctness")
# More than the prompts of a step, each of which all completions of a group share; an entry takes about 10 kB.
CACHED_PROMPTS = 1024
# Weights are relative. A larger one is a typing error, and without a bound their sums could overflow.
MAX_WEIGHT = 1e6
POSITIVE = (1e-6, MAX_WEIGHT)
SHARE = (0.0, 1.0)
# Closed interval of each option that is not simply a weight, by the option's path.
BOUNDS = {
    "tiers.structure": POSITIVE,
    "tiers.parse": POSITIVE,
    "tiers.correctness": POSITIVE,
    "malformed_reward": (-MAX_WEIGHT, 0.0),
    "policy.halving_loss": POSITIVE,
    "policy.missed_mate": SHARE,
    "chat.halving_loss": POSITIVE,
    "chat.missed_mate": SHARE,
}
# Options that are not numbers, or that check themselves.
UNCHECKED_OPTIONS = ("source", "move_evals", "stockfish")


class MoveSource(StrEnum):
    """Source of the values of legal moves, by which the moves and evals of a completion are scored."""

    cached = "cached"
    """Move evaluations of the file `rubric.move_evals`. For a position that it lacks: Stockfish if it is installed,
    else the label, else the rules. Metrics count the prompts of each source."""
    labels = "labels"
    """The reference completion, if there is one."""
    rules = "rules"
    """None: only legality is scored, and labels are ignored."""
    engine = "engine"
    """Stockfish; labels are ignored."""


@dataclass(slots=True)
class TierWeights:
    """Weights of the tiers, above 0. By default the format has little weight and correctness most of it."""

    structure: float = 0.1
    """Weight of the structure: markers and fields are present, in order and only once."""
    parse: float = 0.15
    """Weight of the syntax: moves are UCI, numbers are numbers, the FEN parses."""
    correctness: float = 0.75
    """Weight of correctness: moves are legal and good, the next state is the true one."""


@dataclass(slots=True)
class RubricConfig:
    """All options of the reward. Weights are at least 0 and matter relative to those of the same group."""

    tiers: TierWeights = field(default_factory=TierWeights)
    """Weights of the three tiers."""
    policy: PolicyRewardConfig = field(default_factory=PolicyRewardConfig)
    """Options of the `P:` components."""
    environment: EnvironmentRewardConfig = field(default_factory=EnvironmentRewardConfig)
    """Options of the `A:` components."""
    chat: ChatRewardConfig = field(default_factory=ChatRewardConfig)
    """Options of the components of answers to chat prompts."""
    malformed_reward: float = -0.3
    """Reward of a completion in which nothing is recognised; at most 0. With 0 rewards range from 0 to 1."""
    source: MoveSource = MoveSource.cached
    move_evals: str = DEFAULT
    """File of move evaluations for source=cached: `default` is the file that ships, empty means none; `rookworld data
    evals` writes one. The evaluation also computes win_probability_loss for its positions, whatever the source."""
    stockfish: EngineOptions = field(default_factory=EngineOptions)
    """Engine for source=engine, and for positions that the file lacks with source=cached."""


class Rubric:
    """Scorer of one completion at a time. It copies its configuration, so later changes to it have no effect."""

    def __init__(self, config: RubricConfig) -> None:
        """Create a rubric. Raises ValueError for an option out of its range."""
        check_config(config)
        if not isinstance(config.source, MoveSource):
            raise ValueError(f"expected rubric.source to be one of {', '.join(MoveSource)}, got {config.source!r}")
        self._config = copy.deepcopy(config)
        self._tiers = weights_of(config.tiers)
        self._weights = {task.name: _by_tier(task.tier_weights(self._options(task))) for task in all_tasks()}

    def score(
        self,
        prompt: str,
        completion: str,
        label: str | None = None,
        *,
        analysis: Analysis | None = None,
        finished: bool = True,
    ) -> Score:
        """Return the reward of a completion and its components.

        `label` is the reference completion's text. For a `P:` prompt it adds the components that compare with it. For
        an `A:` prompt it is only checked to parse, since python-chess decides if they differ. It is ignored with
        source=rules and source=engine.
        `analysis` holds an engine's evaluations of the position of a prompt that asks for a move. It is required with
        source=engine, preferred to the label with source=cached, and ignored otherwise; see `scorer.Scorer`.
        In mate and stalemate no correctness component of such a prompt applies, and only the format is scored.
        `finished` says that the completion ended by itself, which only a chat prompt rewards.
        Raises PromptError for a malformed prompt, LabelError for a malformed label (both are ValueErrors),
        and ValueError for an analysis that is missing or of another position.
        """
        uses_label = self._config.source in (MoveSource.labels, MoveSource.cached)
        task = task_of(prompt)
        query, truth = _query_and_truth(task.name, prompt, label if uses_label else None)
        source, values = "", None
        if task.names_move:
            values = self._values(prompt, truth.legal, analysis)
            source = analysis.origin if analysis and values else "label" if truth.label else "rules"
        written = Completion(completion, finished)
        components, failure = task.score(written, query, truth, values, self._options(task))
        value = quality(components, self._weights[task.name], self._tiers, refused=failure is not None)
        total = (1 - value) * self._config.malformed_reward + value
        return Score(total, components, failure, source, analysis if values else None)

    def move_choice(self, prompt: str, completion: str, analysis: Analysis) -> MoveChoice | None:
        """Return the legal moves where `completion` names one, each with its value as the move that it names.

        None if the completion has no such place; see `Task.before_move`.
        """
        task = task_of(prompt)
        query = task.query(prompt)
        begun = task.before_move(completion, query)
        if begun is None:
            return None
        values, options = move_values(analysis), self._options(task)
        moves = values.evals_pawns
        by_text = {task.move_text(move, query): task.move_value(move, values, options) for move in moves}
        return MoveChoice(begun, by_text, task.after_move(query))

    def _options(self, task: Task) -> Any:
        """Return the options of a task's reward; None for a task that has none in the configuration."""
        return getattr(self._config, task.name, None)

    def _values(self, prompt: str, legal: frozenset[str], analysis: Analysis | None) -> MoveValues | None:
        """Return the move values; None in mate and stalemate, and if no engine's evaluations are used."""
        source = self._config.source
        if not legal or source in (MoveSource.labels, MoveSource.rules):
            return None
        if analysis is None:
            if source is MoveSource.engine:
                raise ValueError(f"rubric.source=engine: expected an engine's analysis, got none for {prompt!r}")
            return None
        values = move_values(analysis)
        if values.evals_pawns.keys() != legal:
            raise ValueError(f"expected the analysis of {prompt!r}, got that of {analysis.position!r}")
        return values


def weights_of(config: Any) -> dict[str, float]:
    """Return the weights of the tiers, or the factors of the groups of components, by name."""
    return {weight.name: float(getattr(config, weight.name)) for weight in fields(config)}


def quality(components: Mapping[str, float], weights: Weights, tiers: Mapping[str, float], *, refused: bool) -> float:
    """Return the quality in [0, 1] of components in [0, 1]: 1 exactly if all are 1, 0 exactly if no structure is found.

    `weights` holds the weights of each tier's components, `tiers` those of the tiers. Components that do not apply are
    absent, and the other weights are renormalised. A tier without an applicable component is left out in the same way.
    `refused` says that the strict parser found a failure. If it is False, the first tier's components must all be 1.
    """
    by_tier = {tier: {name: components[name] for name in weights[tier] if name in components} for tier in TIERS}
    values = {
        tier: mean(applying, weights[tier])
        for tier, applying in by_tier.items()
        if any(weights[tier][name] for name in applying)
    }
    if not refused:
        return mean(values, tiers)
    content = mean({tier: value for tier, value in values.items() if tier != "structure"}, tiers)
    return values["structure"] * mean(dict.fromkeys(values, 0.0) | {"structure": 1.0, "parse": content}, tiers)


def mean(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the mean of `values`, weighted by `weights` of the same names. The sum of these must be above 0."""
    total = sum(weights[name] for name in values)
    return sum(weights[name] * value for name, value in values.items()) / total


def check_config(config: Any) -> None:
    """Raise ValueError for an option that is no finite number in its range, or for a task whose weights are all 0."""
    for path, value in _iter_options(config, ""):
        low, high = BOUNDS.get(path, (0.0, MAX_WEIGHT))
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"expected rubric.{path} to be a number from {low:g} to {high:g}, got {value!r}")
    for task in all_tasks():
        options = getattr(config, task.name, None)
        if options is not None and not sum(weights_of(options.weights).values()):
            raise ValueError(f"expected a weight above 0 among those of rubric.{task.name}.weights, got none")


def _iter_options(config: Any, path: str) -> Iterator[tuple[str, Any]]:
    for option in (option for option in fields(config) if path + option.name not in UNCHECKED_OPTIONS):
        value, here, kind = getattr(config, option.name), path + option.name, cast(type, option.type)
        if is_dataclass(kind):
            if not isinstance(value, kind):
                raise ValueError(f"expected rubric.{here} to be a {kind.__name__}, got {value!r}")
            yield from _iter_options(value, here + ".")
        else:
            yield here, value


def _by_tier(weights: Weights) -> Weights:
    """Return the weights of a task's components under the components' full names, `tier/name`."""
    return {tier: {f"{tier}/{name}": weight for name, weight in weights.get(tier, {}).items()} for tier in TIERS}


@lru_cache(maxsize=CACHED_PROMPTS)
def _query_and_truth(task: str, prompt: str, label: str | None) -> tuple[Any, Any]:
    query = task_named(task).query(prompt)
    return query, task_named(task).truth(query, label)

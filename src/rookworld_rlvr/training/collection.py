"""Collection of a step's groups: sync the sampler, sample and score completions, drop or replace some groups."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import ScorerError
from ..model.sharded import unshard
from ..model.world import World
from ..objective import ObjectiveConfig, ZeroVariance, zero_variance_groups
from ..rewards.score import Scorer
from ..rollout.generator import Generator, GeneratorError, TrainerModelGenerator
from ..rollout.groups import Group, Rollout, sample_groups, score_groups
from ..rollout.sampling import derive_seed
from ..stability.faults import Fault, FaultError, FaultKind, out_of_memory
from ..stockfish.analysis import EngineCounts
from ..tasks.prompt_stream import PromptStream
from ..tasks.types import Example
from .checks import check_rewards

# Maximum number of times per step that zero-variance groups are replaced. Without a limit, a solved or hopeless task,
# whose groups all have zero variance, would never fill the batch.
MAX_REFILLS = 3


@dataclass(slots=True)
class Sampler:
    """Everything that makes scored groups from a model's weights. A run has one."""

    generator: Generator
    scorer: Scorer
    prompts: PromptStream
    tokenizer: PreTrainedTokenizerBase
    world: World
    """Processes that sample together; each takes its share of the prompts."""
    temperature: float
    """Sampling temperature."""
    seed: int
    """Seed of the run. With step and number of the group it gives the seed of each group's samples."""

    @contextmanager
    def synced(self, model: PreTrainedModel) -> Iterator[None]:
        """Sync the model's weights to the generator before the block. Raises GeneratorError.

        The weights of a model in shards are gathered first. They stay gathered during the block if the generator uses
        the trainer's own model, and are released before the block if it has a copy.
        """
        with ExitStack() as gathered:
            gathered.enter_context(unshard(model))
            self.world.barrier(lambda: self.generator.sync(model), "weights")
            if not isinstance(self.generator, TrainerModelGenerator):
                gathered.close()
            yield


class RolloutError(FaultError):
    """Fault of the generator, the scorer or a reward, with everything that was sampled before it."""

    def __init__(self, error: FaultError, rollout: Rollout) -> None:
        super().__init__(error.fault, error.batch)
        self.rollout = rollout


def collect(sampler: Sampler, model: PreTrainedModel, objective: ObjectiveConfig, *, step: int) -> Rollout:
    """Sync the model's weights to the sampler, then sample and score the groups of `step`.

    The step trains on the rollout's `kept` groups: prompts_per_step, or fewer if zero-variance groups are dropped.
    Raises FaultError if the sync fails, RolloutError if the generator or the scorer fails or a reward is not finite.
    """
    try:
        with sampler.synced(model):
            return _collect(sampler, objective, step)
    except GeneratorError as error:
        raise FaultError(Fault(FaultKind.generator, "weights", str(error))) from error


def _collect(sampler: Sampler, objective: ObjectiveConfig, step: int) -> Rollout:
    """Sample and score groups, with zero-variance groups kept, dropped or replaced as configured."""
    rollout, wanted, treatment = Rollout(), objective.prompts_per_step, objective.collection.zero_variance
    for _ in range(1 + (MAX_REFILLS if treatment is ZeroVariance.refill else 0)):
        missing = wanted - len(rollout.kept().groups)
        if not missing:
            break
        examples = sampler.prompts.draw(missing)
        try:
            more = _sample(sampler, objective, examples, step=step, first=len(rollout.groups))
        except FaultError as error:
            raise RolloutError(error, rollout + Rollout(unscored=tuple(examples))) from error
        try:
            check_rewards(more.rewards_PG)
        except FaultError as error:
            raise RolloutError(error, more) from error
        if treatment is not ZeroVariance.keep:
            more = more.keeping(~zero_variance_groups(more.rewards_PG))
        rollout = rollout + more
    return rollout


@dataclass(frozen=True, slots=True)
class _Share:
    """Groups that one rank sampled and scored, with the seconds and the engines' work that this took."""

    groups: list[Group]
    generate_s: float
    score_s: float
    engine: EngineCounts | None


def _sample(
    sampler: Sampler, objective: ObjectiveConfig, examples: Sequence[Example], *, step: int, first: int
) -> Rollout:
    """Sample and score groups, each rank its share of the prompts. `first` is the number of the first group."""
    world = sampler.world
    seeds = [derive_seed(sampler.seed, step, first + number) for number in range(len(examples))]
    shares = world.all_gather(
        lambda: _own_share(sampler, objective, world.share(examples), world.share(seeds)), "completions"
    )
    own, engines = shares[world.rank], [share.engine for share in shares if share.engine is not None]
    return Rollout.of(
        [shares[i % world.size].groups[i // world.size] for i in range(len(examples))],
        engine=sum(engines, start=EngineCounts()) if engines else None,
        times_s={"generate": own.generate_s, "score": own.score_s},
    )


def _own_share(
    sampler: Sampler, objective: ObjectiveConfig, examples: Sequence[Example], seeds: Sequence[int]
) -> _Share:
    """Sample and score this rank's groups. The scorer's engines search positions during sampling. Raises FaultError."""
    scorer, tokenizer = sampler.scorer, sampler.tokenizer
    engine_before, started = scorer.engine_counts(), time.perf_counter()
    try:
        scorer.prepare([example.prompt for example in examples])
        sampled = sample_groups(
            sampler.generator,
            tokenizer,
            examples,
            group_size=objective.group_size,
            temperature=sampler.temperature,
            seeds=seeds,
        )
        generated = time.perf_counter()
        groups = score_groups(sampled, tokenizer, examples, scorer=scorer, all_moves=objective.all_moves_coef > 0)
    except GeneratorError as error:
        raise FaultError(Fault(FaultKind.generator, "completions", str(error))) from error
    except ScorerError as error:
        raise FaultError(Fault(FaultKind.scorer, "scores", str(error))) from error
    except torch.OutOfMemoryError as error:
        raise out_of_memory("completions", error) from error
    # A scorer starts its engines only at the first position that needs them.
    engine = scorer.engine_counts()
    return _Share(
        groups,
        generate_s=generated - started,
        score_s=time.perf_counter() - generated,
        engine=None if engine is None else engine - (engine_before or EngineCounts()),
    )

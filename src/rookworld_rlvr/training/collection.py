"""Collection of a step's groups: sync the sampler, sample and score completions, drop or replace some groups."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from transformers import PreTrainedModel

from ..model.sharded import unshard
from ..objective import zero_variance_groups
from ..rewards import ScorerError
from ..rollout.generator import GeneratorError, TrainerModelGenerator
from ..rollout.groups import Collected, Group, sample_groups, score_groups
from ..rollout.sampling import derive_seed
from ..stability.faults import Fault, FaultError, FaultKind, out_of_memory
from ..stockfish.pool import EngineCounts
from ..tasks.types import Example
from .checks import check_rewards
from .config import ZeroVariance
from .state import Collection, StepContext, timed

# Maximum number of times per step that zero-variance groups are replaced. Without a limit, a solved or hopeless task,
# whose groups all have zero variance, would never fill the batch.
MAX_REFILLS = 3


class CollectionError(FaultError):
    """Fault of the generator, the scorer or a reward, with everything that was collected before it."""

    def __init__(self, error: FaultError, collection: Collection) -> None:
        super().__init__(error.fault, error.batch)
        self.collection = collection


@contextmanager
def synced_sampler(context: StepContext, sync: Callable[[PreTrainedModel], None] | None = None) -> Iterator[None]:
    """Sync the policy's weights to the sampler before the block, by `sync` (default: `sync_weights`).

    The weights of a model in shards are gathered first. They stay gathered during the block if the sampler uses the
    trainer's own model, and are released before the block if the sampler has a copy.
    """
    with ExitStack() as gathered:
        gathered.enter_context(unshard(context.policy.model))
        if sync is None:
            sync_weights(context, context.policy.model)
        else:
            sync(context.policy.model)
        if not isinstance(context.generator, TrainerModelGenerator):
            gathered.close()
        yield


def sync_weights(context: StepContext, model: PreTrainedModel) -> None:
    """Sync the model's weights to the sampler. Raises FaultError if that fails."""

    def sync() -> None:
        try:
            context.generator.sync(model)
        except GeneratorError as error:
            raise FaultError(Fault(FaultKind.generator, "weights", str(error))) from error

    context.world.barrier(sync, "weights")


def collect(context: StepContext, step: int, *, staleness: int = 0) -> Collection:
    """Sample and score a step's groups: prompts_per_step, or fewer if zero-variance groups are dropped.

    Raises CollectionError if the generator or the scorer fails.
    """
    collection = Collection(step, staleness)
    try:
        collection.collected = _trained_groups(context, collection)
    except FaultError as error:
        raise CollectionError(error, collection) from error
    return collection


def collect_ahead(context: StepContext, step: int) -> Collection:
    """Return the groups that were sampled during the previous step, and start to sample those of the next step.

    The first groups, and groups that were lost by a resume, are sampled now. Raises CollectionError.
    """
    prefetch = context.prefetch
    assert prefetch is not None
    if not prefetch.pending:
        _begin_ahead(context, step, staleness=int(prefetch.holds_older))
    collection = prefetch.take()
    if step + 1 < context.config.steps:
        try:
            _begin_ahead(context, step + 1, staleness=1)
        except FaultError as error:
            raise CollectionError(error, collection) from error
    return collection


def _begin_ahead(context: StepContext, step: int, *, staleness: int) -> None:
    """Start to sample the groups of `step`, from the current weights or, for lost groups, from their older weights."""
    assert context.prefetch is not None
    sync_weights(context, context.prefetch.weights(context.policy.model))
    context.prefetch.begin(partial(collect, context, step, staleness=staleness), context.prompts)


def _trained_groups(context: StepContext, collection: Collection) -> Collected:
    """Return the groups to train on, with zero-variance groups kept, dropped or replaced as configured."""
    objective = context.config.objective
    wanted, config = objective.prompts_per_step, objective.collection
    collected = _sampled(context, context.prompts.draw(wanted), collection)
    if config.zero_variance is ZeroVariance.keep:
        return collected
    collected = collected.select(~zero_variance_groups(collected.rewards_PG))
    rounds = MAX_REFILLS if config.zero_variance is ZeroVariance.refill else 0
    for _ in range(rounds):
        missing = wanted - len(collected.groups)
        if missing:
            more = _sampled(context, context.prompts.draw(missing), collection)
            collected = collected + more.select(~zero_variance_groups(more.rewards_PG))
    return collected


def _sampled(context: StepContext, examples: Sequence[Example], collection: Collection) -> Collected:
    """Sample and score groups, each rank its share of the prompts; add counts and times to `collection`."""
    collection.examples = examples
    first, seed = collection.sampled_groups, context.config.seed
    seeds = [derive_seed(seed, collection.step, first + number) for number in range(len(examples))]
    before, world = context.scorer.engine_counts(), context.world
    groups = world.gather_in_order(
        lambda: _own_groups(context, world.share(examples), world.share(seeds), collection), "completions"
    )
    # Every rank takes part, because a rank starts its engines only at the first position that needs them.
    for counts in world.all_gather(lambda: _engine_counts(context, since=before), "counts of engines"):
        if counts is not None:
            collection.engine = (collection.engine or EngineCounts()) + counts
    collection.sampled_groups += len(groups)
    collection.sampled_completions += len(groups) * context.config.objective.group_size
    collection.sampled_tokens += sum(len(sample.completion.tokens) for group in groups for sample in group.samples)
    collected = Collected.of(groups)
    collection.sampled = collection.sampled + collected if collection.sampled else collected
    try:
        check_rewards(collected.rewards_PG)
    except FaultError:
        collection.collected = collected
        raise
    return collected


def _own_groups(
    context: StepContext, examples: Sequence[Example], seeds: Sequence[int], collection: Collection
) -> list[Group]:
    """Sample and score this rank's groups. The scorer's engines search positions during sampling. Raises FaultError."""
    tokenizer = context.policy.tokenizer
    try:
        context.scorer.prepare([example.prompt for example in examples])
        with timed(collection.times_s, "generate"):
            sampled = sample_groups(
                context.generator,
                tokenizer,
                examples,
                group_size=context.config.objective.group_size,
                temperature=context.temperature,
                seeds=seeds,
            )
        with timed(collection.times_s, "score"):
            return score_groups(
                sampled,
                tokenizer,
                examples,
                scorer=context.scorer,
                all_moves=context.config.objective.all_moves_coef > 0,
            )
    except GeneratorError as error:
        raise FaultError(Fault(FaultKind.generator, "completions", str(error))) from error
    except ScorerError as error:
        raise FaultError(Fault(FaultKind.scorer, "scores", str(error))) from error
    except torch.OutOfMemoryError as error:
        raise out_of_memory("completions", error) from error


def _engine_counts(context: StepContext, *, since: EngineCounts | None) -> EngineCounts | None:
    """Return the work of this rank's engines after the counts `since`, None for their start; None without engines."""
    counts = context.scorer.engine_counts()
    return None if counts is None else counts - (since or EngineCounts())

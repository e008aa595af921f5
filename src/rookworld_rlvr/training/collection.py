"""What a step trains on: groups sampled and judged, the far-off completions rejected, idle groups replaced."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from ..model.batch import Batch
from ..model.policy import TokenTable
from ..objective import AdvantageConfig, used_groups
from ..rewards import ScorerError
from ..rollout.generator import GeneratorError
from ..rollout.groups import Collected, Group, make_batch, sample_groups, score_groups
from ..rollout.sampling import derive_seed
from ..stability.faults import Fault, FaultError, FaultKind
from ..stockfish.pool import EngineCounts
from ..tasks import Example
from .checks import check_logprobs, check_rewards
from .config import ZeroVariance
from .context import StepContext
from .out_of_memory import in_pieces_that_fit, out_of_memory
from .step_report import StepReport
from .timing import timed

# Most times per step that zero-variance groups, or rejected completions, are sampled anew; the prompts of a task that
# is solved, or hopeless, have none of them filled however often they are tried.
MAX_REFILLS = 3


def collect(context: StepContext, report: StepReport) -> Collected:
    """A step's groups. Their number is prompts_per_step, or less where idle groups are dropped.

    Raises FaultError where generator or judge fail.
    """
    config, wanted = context.objective.collection, context.objective.prompts_per_step
    collected = _sample(context, context.prompts.draw(wanted), report)
    if config.zero_variance is ZeroVariance.keep:
        return collected
    advantage = context.objective.advantage
    collected = collected.select(used_P(collected, advantage))
    rounds = MAX_REFILLS if config.zero_variance is ZeroVariance.refill else 0
    for _ in range(rounds):
        missing = wanted - len(collected.groups)
        if missing:
            more = _sample(context, context.prompts.draw(missing), report)
            collected = collected + more.select(used_P(more, advantage))
    return collected


def used_P(collected: Collected, config: AdvantageConfig) -> Tensor:
    """Which groups teach something, bool (P,)."""
    return used_groups(collected.rewards_PG, collected.outcomes_PG, config, valid_PG=collected.valid_PG)


def _sample(context: StepContext, examples: Sequence[Example], report: StepReport) -> Collected:
    """Groups of these prompts; the stream of prompts learns how they went."""
    collected = _judged(context, examples, report)
    if context.objective.collection.kl_cap:
        collected = _reject(context, list(collected.groups), report)
    for group, outcomes_G in zip(collected.groups, collected.outcomes_PG.tolist(), strict=True):
        context.prompts.observe(group.example.task, fmean(outcomes_G))
        context.prompts.play(group.example, [sample.text for sample in group.samples])
    return collected


def _judged(context: StepContext, examples: Sequence[Example], report: StepReport) -> Collected:
    """Sample and judge, each rank its share of the prompts; both are counted and timed."""
    report.asked = examples
    first = report.sampled_groups
    seeds = [derive_seed(context.seed, report.step, first + number) for number in range(len(examples))]
    before = context.scorer.engine_counts()
    groups = context.world.gather_in_order(
        lambda: _own_groups(context, context.world.share(examples), context.world.share(seeds), report), "completions"
    )
    if before is not None:
        for counts in context.world.all_gather(lambda: _engine_counts(context, since=before), "counts of engines"):
            report.add_engine_counts(counts)
    report.sampled_groups += len(groups)
    report.sampled_completions += len(groups) * context.objective.group_size
    collected = Collected.of(groups)
    try:
        check_rewards(collected.rewards_PG)
    except FaultError:
        report.collected = collected
        raise
    return collected


def _own_groups(
    context: StepContext, examples: Sequence[Example], seeds: Sequence[int], report: StepReport
) -> list[Group]:
    """This rank's groups. A judge's engines look at the positions while completions are sampled. Raises FaultError."""
    try:
        context.scorer.prepare([example.prompt for example in examples])
        with timed(report, "generate"):
            sampled = sample_groups(
                context.generator,
                context.policy.tokenizer,
                examples,
                group_size=context.objective.group_size,
                temperature=context.temperature,
                seeds=seeds,
            )
        with timed(report, "score"):
            return score_groups(
                sampled, context.policy.tokenizer, examples, scorer=context.scorer, step=report.schedule_step
            )
    except GeneratorError as error:
        raise FaultError(Fault(FaultKind.generator, "completions", str(error))) from error
    except ScorerError as error:
        raise FaultError(Fault(FaultKind.scorer, "scores", str(error))) from error
    except torch.OutOfMemoryError as error:
        raise out_of_memory("completions", error) from error


def _engine_counts(context: StepContext, *, since: EngineCounts) -> EngineCounts | None:
    """What this rank's engines have done since; None without engines."""
    counts = context.scorer.engine_counts()
    return None if counts is None else counts - since


def _reject(context: StepContext, groups: list[Group], report: StepReport) -> Collected:
    """Put new completions in the place of those beyond the KL cap, and say which are still beyond it."""
    valid_PG = _within_cap(context, groups)
    report.rejected_completions += int((~valid_PG).sum())
    for _ in range(MAX_REFILLS):
        short = [p for p, row in enumerate(valid_PG.tolist()) if not all(row)]
        if not short:
            break
        spare = list(_judged(context, [groups[p].example for p in short], report).groups)
        spare_valid_PG = _within_cap(context, spare)
        report.rejected_completions += int((~spare_valid_PG).sum())
        for p, group, accepted in zip(short, spare, spare_valid_PG.tolist(), strict=True):
            groups[p], valid_PG[p] = _fill(groups[p], valid_PG[p], group, accepted)
    return Collected.of(groups, valid_PG)


def _fill(group: Group, valid_G: Tensor, spare: Group, accepted: list[bool]) -> tuple[Group, Tensor]:
    replacements = iter(sample for sample, good in zip(spare.samples, accepted, strict=True) if good)
    samples, valid = list(group.samples), valid_G.clone()
    for i, good in enumerate(valid_G.tolist()):
        replacement = None if good else next(replacements, None)
        if replacement is not None:
            samples[i], valid[i] = replacement, True
    return replace(group, samples=tuple(samples)), valid


def _within_cap(context: StepContext, groups: Sequence[Group]) -> Tensor:
    """Which completions (P, G) are within the cap, by the mean exact KL over their positions."""
    batch = make_batch(groups, pad_id=context.policy.pad_id, device=context.policy.device)
    table = token_table(context, batch)
    check_logprobs(context, table.logprobs_BT, table.ref_logprobs_BT, batch)
    return (table.mean_kl_B() <= context.objective.collection.kl_cap).reshape(len(groups), -1).cpu()


def token_table(context: StepContext, batch: Batch) -> TokenTable:
    """Log-probs of policy and reference of all the batch's tokens, without a gradient."""

    def attempt() -> TokenTable:
        return context.policy.token_table(
            batch,
            micro_batch_size=context.rows_a_pass(len(batch.tokens_BT)),
            temperature=context.temperature,
            reference=context.references.current,
            world=context.world,
        )

    return in_pieces_that_fit(context, attempt)

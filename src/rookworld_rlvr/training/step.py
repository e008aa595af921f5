"""One GRPO step, from prompts to an updated policy. Read this file from top to bottom.

1. Collect (`collection`): sync the weights to the sampler, sample a group of completions per prompt, score them.
2. Make a batch of the groups and compute the advantages.
3. For each update, run forward and backward passes over its micro-batches: completions (`loss`: surrogate plus KL minus
   entropy bonus), then legal moves (`all_moves`: minus their expected value). Check and clip the gradient, then update.

A step does not log, save or evaluate. It returns a report, and the trainer acts on it. A fault ends the step and is
named in the report; `stability.recovery` decides which action follows.

With one update per batch, the policy's own log-probs, detached, serve as the old log-probs: the ratio is 1, and its
gradient is the policy gradient. With several updates, the old log-probs are computed once, before the first update.
Mismatch weights correct for a sampler that rounds differently or has older weights. The loss is normalised by sizes of
the whole update, so the gradient does not depend on the number of micro-batches.

Several processes (`context.world`) run a step together. Each rank takes its share of the prompts and micro-batches, and
all ranks get the same groups and make the same update. With `distributed=fsdp2` a rank holds only its shards.

Source: GRPO, arXiv 2402.03300. `objective.losses` defines each loss and its normalisation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..model.batch import Batch, micro_batches
from ..model.gradients import backward
from ..model.policy import Policy
from ..model.sharded import full_tensor, reshard
from ..objective import KLForm, LossSizes, group_advantages, sequence_kl
from ..rollout.groups import Collected, make_batch
from ..rollout.sampling import derive_seed
from ..stability.faults import FaultError, StepAbandonedError, out_of_memory
from . import checks
from .all_moves import ROWS_PER_COMPLETION, MoveBatch, expected_value, move_batch
from .collection import CollectionError, collect, collect_ahead, synced_sampler
from .config import RunConfig, Truncated
from .loss import LossPlan, TokenTotals, grpo_loss
from .optim import learning_rate
from .state import Collection, Moment, StepContext, StepReport, timed


def grpo_step(context: StepContext, step: int) -> StepReport:
    """Run step number `step`, counted from 0, and return its report.

    Raises StepAbandonedError if a stop was requested before the step's first update.
    """
    config, schedule_step = context.config, context.schedule_step
    report = StepReport(
        step=step,
        kl_coef=config.kl.coefficient(schedule_step),
        lr=learning_rate(config.optim, schedule_step, config.steps) * context.recovery.lr_scale,
    )
    with timed(report.times_s, "step"):
        try:
            _sample_and_train(context, report)
        except FaultError as error:
            report.fault, report.fault_batch = error.fault, error.batch
            if isinstance(error, CollectionError):
                report.collection = error.collection
            references = context.references
            reshard(context.policy.model, references.current.model, references.original.model)
    report.times_s |= report.collection.times_s
    context.schedule_step += 1
    return report


def _sample_and_train(context: StepContext, report: StepReport) -> None:
    """Collect groups, compute their advantages and make the updates; record them in `report`. Raises FaultError."""
    context.at(Moment.begun, report)
    checks.check_weights(context)
    report.collection = _collect(context, report.step)
    collected = report.collection.collected
    if collected is None or not collected.groups:
        return
    context.at(Moment.collected, report)
    checks.check_rewards(collected.rewards_PG)
    with timed(report.times_s, "train"):
        batch = make_batch(collected.groups, pad_id=context.policy.pad_id, device=context.policy.device)
        old_logprobs_BT = _old_logprobs(context, batch)
        report.advantages_PG = _advantages(context, collected, batch, old_logprobs_BT, report)
        batch = _trained_batch(context, collected, report.advantages_PG, old_logprobs_BT, batch)
        moves = move_batch(collected.groups, context.policy)
        updates_per_pass = max(1, min(context.config.objective.minibatches, len(batch.tokens_BT)))
        step_tokens = batch.trained_tokens() / updates_per_pass
        losses: list[float] = []
        for part in _parts(batch, updates_per_pass, context.config, report.step):
            losses.append(_accumulate(context, part, moves, step_tokens, report))
            report.loss = sum(losses) / len(losses)
            _update(context, part, report)


def _collect(context: StepContext, step: int) -> Collection:
    """Return the step's scored groups. With max_staleness=1 their sampling weights may be one step older."""
    if context.prefetch is not None:
        return collect_ahead(context, step)
    with synced_sampler(context):
        return collect(context, step)


def _old_logprobs(context: StepContext, batch: Batch) -> Tensor | None:
    """Return the policy's log-probs (B, T) before the first update; None if nothing needs them."""
    if context.config.objective.updates == 1 and context.config.kl.form is not KLForm.in_reward:
        return None
    logprobs_BT = _logprobs(context, context.policy, batch)
    checks.check_logprobs(context, logprobs_BT, None, batch)
    return logprobs_BT


def _advantages(
    context: StepContext, collected: Collected, batch: Batch, old_logprobs_BT: Tensor | None, report: StepReport
) -> Tensor:
    """Return the advantages (P, G). With kl.form=in_reward the rewards are first reduced by the KL."""
    rewards_PG = collected.rewards_PG
    if context.config.kl.form is KLForm.in_reward:
        assert old_logprobs_BT is not None
        ref_logprobs_BT = _logprobs(context, context.references.current, batch)
        checks.check_logprobs(context, old_logprobs_BT, ref_logprobs_BT, batch)
        kl_B = sequence_kl(old_logprobs_BT, ref_logprobs_BT, batch.loss_mask_BT)
        rewards_PG = rewards_PG - report.kl_coef * kl_B.reshape(rewards_PG.shape).cpu()
    return group_advantages(rewards_PG, context.config.objective.advantage)


def _logprobs(context: StepContext, policy: Policy, batch: Batch) -> Tensor:
    """Return a policy's log-probs (B, T) of all trained tokens; no gradient."""
    return context.retry_with_smaller_batches(
        lambda: policy.logprob_table(
            batch,
            micro_batch_size=context.examples_per_pass(len(batch.tokens_BT)),
            temperature=context.temperature,
            world=context.world,
        )
    )


def _trained_batch(
    context: StepContext, collected: Collected, advantages_PG: Tensor, old_logprobs_BT: Tensor | None, batch: Batch
) -> Batch:
    """Return the completions to train on, with their advantages and old log-probs."""
    batch = replace(
        batch, advantages_B=advantages_PG.flatten().to(context.policy.device), old_logprobs_BT=old_logprobs_BT
    )
    if context.config.objective.collection.truncated is Truncated.mask:
        batch = batch.select(collected.finished_PG.flatten().to(context.policy.device))
    return batch


def _parts(batch: Batch, updates_per_pass: int, config: RunConfig, step: int) -> Iterator[Batch]:
    """Yield the examples of each update: in each epoch, the whole batch or random parts of it.

    The parts depend only on seed, step and epoch. All ranks need the same parts, and torch's global random state is
    not reliable here: a thread that samples during training may restore an earlier state.
    """
    examples, objective = len(batch.tokens_BT), config.objective
    for epoch in range(objective.epochs if examples else 0):
        if objective.minibatches == 1:
            yield batch
            continue
        random = torch.Generator().manual_seed(derive_seed(config.seed, "parts", step, epoch))
        for part in torch.randperm(examples, generator=random).tensor_split(updates_per_pass):
            yield batch.select(part.to(batch.tokens_BT.device))


def _accumulate(
    context: StepContext, part: Batch, moves: MoveBatch | None, step_tokens: float, report: StepReport
) -> float:
    """Accumulate the gradient of one update in the parameters; return its loss and add its tokens to the report."""
    sizes = LossSizes(
        completions=len(part.tokens_BT),
        tokens=part.trained_tokens(),
        step_tokens=step_tokens,
        max_tokens=context.config.generator.max_new_tokens,
    )
    plan = context.loss_plan(sizes, kl_coef=report.kl_coef, stale=report.collection.staleness > 0)
    part = _examples_with_a_gradient(part, plan)
    total_loss, update_totals = 0.0, TokenTotals()
    for loss, tokens in context.retry_with_smaller_batches(partial(_backward, context, part, moves, plan, report)):
        total_loss += loss
        report.tokens.add(tokens)
        update_totals.add(tokens)
    checks.check_kl(context, part, update_totals)
    return total_loss


def _backward(
    context: StepContext, part: Batch, moves: MoveBatch | None, plan: LossPlan, report: StepReport
) -> list[tuple[float, TokenTotals]]:
    """Sum the gradients of an update's micro-batches in the parameters; return the loss and token totals of each."""
    context.optimizer.zero_grad(set_to_none=True)
    packs, size = context.policy.packs, context.examples_per_pass(len(part.tokens_BT))
    micros = list(micro_batches(part, size, by_prompt=packs))
    if moves is not None:
        micros += micro_batches(moves, size * (ROWS_PER_COMPLETION if packs else 1), by_prompt=packs)
    begin, loss_of = partial(_begin_micro_batch, context, report), partial(_checked_loss, context, plan)
    return backward(begin, loss_of, micros, context.policy, context.world)


def _begin_micro_batch(context: StepContext, report: StepReport) -> None:
    """Call the hooks. Raises StepAbandonedError if a stop was requested before the step's first update.

    With max_staleness=1 a step that has begun is always completed.
    """
    if context.stop_requested() and context.prefetch is None and not report.updates:
        raise StepAbandonedError
    context.at(Moment.micro_batch, report)


def _checked_loss(context: StepContext, plan: LossPlan, micro: Batch) -> tuple[Tensor, TokenTotals]:
    """Return the loss and the token totals of a micro-batch. Raises FaultError if a value is not finite."""
    if isinstance(micro, MoveBatch):
        value, logprobs = expected_value(context.policy, micro, temperature=plan.temperature)
        checks.check_logprobs(context, logprobs, None, micro)
        return -plan.objective.all_moves_coef * value, TokenTotals(expected_value_sum=float(value.detach()))
    result = grpo_loss(context.policy, micro, plan)
    checks.check_logprobs(context, result.logprobs, result.ref_logprobs, micro)
    checks.check_loss(result.loss, micro)
    return result.loss, result.totals


def _examples_with_a_gradient(part: Batch, plan: LossPlan) -> Batch:
    """Remove the examples of advantage 0, unless KL is measured or penalised or there is an entropy bonus.

    The loss is still normalised by the sizes of all examples.
    """
    if plan.reference is not None or plan.objective.entropy_coef:
        return part
    return part.select(part.advantages_B != 0)


def _update(context: StepContext, part: Batch, report: StepReport) -> None:
    """Check the gradient, clip it, step the optimiser and check the weights. Without any gradient, do nothing.

    A fault before the optimiser's step leaves the weights unchanged.
    """
    context.at(Moment.accumulated, report)
    parameters = [p for p in context.policy.model.parameters() if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return
    total_norm = full_tensor(torch.nn.utils.get_total_norm(gradients))
    grad_norm = float(total_norm)
    report.grad_norm = max(report.grad_norm, grad_norm)
    checks.check_gradient(context, grad_norm, part)
    torch.nn.utils.clip_grads_with_norm_(parameters, context.config.optim.max_grad_norm, total_norm)
    for group in context.optimizer.param_groups:
        group["lr"] = report.lr
    weights_before = context.world.barrier(partial(_optimizer_step, context.optimizer, parameters), "an update")
    report.updates += 1
    context.at(Moment.updated, report)
    # In place, to save the memory of another copy of the weights.
    changes = weights_before
    for change, parameter in zip(changes, parameters, strict=True):
        change.sub_(parameter.detach())
    update_norm = float(full_tensor(torch.nn.utils.get_total_norm(changes)))
    checks.check_update(context, update_norm, part)
    report.update_norm += update_norm


def _optimizer_step(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Step the optimiser; return copies of the weights before the step. Raises FaultError if memory runs out.

    Memory may run out in the middle of the step, on one of several ranks, so this fault ends the run on all ranks.
    """
    try:
        before = [parameter.detach().clone() for parameter in parameters]
        optimizer.step()
    except torch.OutOfMemoryError as error:
        raise out_of_memory("update", error) from error
    return before

"""One GRPO step, from prompts to an updated policy. Read this file from top to bottom.

1. Collect (`collection`): sync the weights to the sampler, sample a group of completions per prompt, score them.
2. Make a batch of the groups and compute the advantages.
3. For each minibatch, plan the loss, accumulate its gradient in forward and backward passes over micro-batches of
   completions (`loss`: surrogate plus KL minus entropy bonus) and of legal moves (`all_moves`: minus their expected
   value), then check and clip the gradient and update the weights. One pass computes both where they share a prompt.

A step does not log, save or evaluate. It returns a report, and the trainer acts on it. A fault ends the step and is
named in the report; `stability.recovery` decides which action follows.

With one update per batch, the policy's own log-probs, detached, serve as the old log-probs: the ratio is 1, and its
gradient is the policy gradient. With several updates, the old log-probs are computed once, before the first update.
Mismatch weights correct for a sampler that rounds differently. The loss is normalised by sizes of the whole update, so
the gradient does not depend on the number of micro-batches.

Several processes (`context.world`) run a step together. Each rank takes its share of the prompts and micro-batches, and
all ranks get the same groups and make the same update. With `distributed=fsdp2` a rank holds only its shards.

Source: GRPO, arXiv 2402.03300. `objective.losses` defines each loss and its normalisation.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import ceil
from typing import TypeVar

import torch
from torch import Tensor

from ..model.batch import Batch, TokenBatch, joined, micro_batches
from ..model.device import add_gradients, cores, map_on_cores, release_memory
from ..model.policy import Policy
from ..model.sharded import full_tensor, reshard
from ..objective import KLForm, LossSizes, TokenStatistics, Truncated, group_advantages, sequence_kl
from ..rollout.groups import Rollout, make_batch
from ..rollout.sampling import derive_seed
from ..stability.faults import FaultError, out_of_memory
from . import checks
from .all_moves import ROWS_PER_COMPLETION, MoveBatch, beside, expected_value, move_batch
from .collection import RolloutError, collect
from .loss import LossPlan, MicroLoss, TokenTotals, grpo_loss, planned_statistics
from .optim import learning_rate
from .state import Event, Moment, StepConfig, StepContext, StepReport

# Minimum size of a micro-batch that is made smaller so that no core idles. Smaller sizes were not tried.
LEAST_EXAMPLES = 16
Result = TypeVar("Result")
Micro = TypeVar("Micro")
Loss = tuple[float, TokenTotals]
"""Loss and token totals of a micro-batch."""


def grpo_step(context: StepContext, step: int) -> StepReport:
    """Run step number `step`, counted from 0, and return its report."""
    config, policy, started = context.config, context.policy, time.perf_counter()
    kl_coef = config.kl.coefficient(context.schedule_step)
    moves_temperature = config.objective.moves_temperature(context.schedule_step, config.steps)
    lr = learning_rate(config.optim, context.schedule_step, config.steps) * context.recovery.lr_scale
    rollout, kept, advantages_PG = Rollout(), Rollout(), torch.zeros(0, 0)
    losses, grad_norms, update_norms = list[list[Loss]](), list[float](), list[float]()
    fault: FaultError | None = None
    collected_at: float | None = None
    try:
        context.emit(Moment.begun, Event(step))
        checks.check_weights(policy.model)
        rollout = collect(context.sampler, policy.model, config.objective, step=step)
        context.emit(Moment.collected, Event(step, rollout=rollout))
        kept, collected_at = rollout.kept(), time.perf_counter()
        checks.check_rewards(kept.rewards_PG)
        # The completions of a group may be dropped or masked. Its legal moves are trained all the same.
        moves = move_batch((*kept.groups, *rollout.dropped()), policy)
        if kept.groups or moves is not None:
            batch = _batch(context, kept)
            if kept.groups:
                advantages_PG = _advantages(context, kept, batch, kl_coef=kl_coef)
            batch = _trained_batch(context, kept, batch, advantages_PG)
            for minibatch in _minibatches(batch, config, step):
                event = Event(step, len(update_norms), rollout)
                sizes = _sizes(config, batch, minibatch)
                plan = loss_plan(context, sizes, kl_coef=kl_coef, moves_temperature=moves_temperature)
                losses.append(_accumulate(context, minibatch, moves, plan, event))
                blamed = minibatch if len(minibatch.tokens_BT) or moves is None else moves
                checks.check_kl(_totals(losses[-1:]), kl_limit(config), blamed)
                context.emit(Moment.accumulated, event)
                if (grad_norm := _gradient_norm(policy)) is None:
                    continue
                grad_norms.append(float(grad_norm))
                check_gradient(context, grad_norms[-1], blamed)
                update_norms.append(_update(context, grad_norm, lr, event))
                checks.check_update(policy.model, context.optimizer, update_norms[-1], blamed)
    except FaultError as error:
        fault = error
        if isinstance(error, RolloutError):
            rollout, kept = error.rollout, error.rollout.kept()
        reshard(policy.model, context.references.current.model, context.references.original.model)
    context.schedule_step += 1
    ended = time.perf_counter()
    return StepReport(
        step=step,
        kl_coef=kl_coef,
        moves_temperature=moves_temperature,
        lr=lr,
        rollout=rollout,
        kept=kept,
        advantages_PG=advantages_PG,
        tokens=_totals(losses),
        loss=sum(sum(loss for loss, _ in of_update) for of_update in losses) / max(len(losses), 1),
        grad_norm=max(grad_norms, default=0.0),
        update_norm=sum(update_norms),
        updates=len(update_norms),
        fault=fault.fault if fault else None,
        fault_batch=fault.batch if fault else None,
        times_s={
            **rollout.times_s,
            **({"train": ended - collected_at} if collected_at else {}),
            "step": ended - started,
        },
    )


def _batch(context: StepContext, kept: Rollout) -> Batch:
    """Return the groups as a batch, with the policy's log-probs before the first update if something needs them."""
    config, policy = context.config, context.policy
    batch = make_batch(kept.groups, pad_id=policy.pad_id, device=policy.device)
    if not kept.groups or (config.objective.updates == 1 and config.kl.form is not KLForm.in_reward):
        return batch
    return replace(batch, old_logprobs_BT=_logprobs(context, policy, batch, side="policy"))


def _advantages(context: StepContext, kept: Rollout, batch: Batch, *, kl_coef: float) -> Tensor:
    """Return the advantages (P, G). With kl.form=in_reward the rewards are first reduced by the KL."""
    rewards_PG = kept.rewards_PG
    if context.config.kl.form is KLForm.in_reward:
        assert batch.old_logprobs_BT is not None
        ref_logprobs_BT = _logprobs(context, context.references.current, batch, side="reference")
        kl_B = sequence_kl(batch.old_logprobs_BT, ref_logprobs_BT, batch.loss_mask_BT)
        rewards_PG = rewards_PG - kl_coef * kl_B.reshape(rewards_PG.shape).cpu()
    return group_advantages(rewards_PG, context.config.objective.advantage)


def _logprobs(context: StepContext, policy: Policy, batch: Batch, *, side: str) -> Tensor:
    """Return a policy's log-probs (B, T) of all trained tokens; no gradient. Raises FaultError."""
    size = examples_per_pass(context, len(batch.tokens_BT))
    logprobs_BT = with_smaller_batches(
        context,
        lambda: policy.logprob_table(
            batch,
            micro_batch_size=examples_per_pass(context, len(batch.tokens_BT)),
            temperature=context.temperature,
            world=context.world,
        ),
    )
    checks.check_logprobs(logprobs_BT, policy, batch, side=side, micro_batch_size=size)
    checks.check_sampler_logprobs(batch)
    return logprobs_BT


def _trained_batch(context: StepContext, kept: Rollout, batch: Batch, advantages_PG: Tensor) -> Batch:
    """Return the completions to train on, with their advantages."""
    device = context.policy.device
    batch = replace(batch, advantages_B=advantages_PG.flatten().to(device))
    if context.config.objective.collection.truncated is Truncated.mask:
        batch = batch.select(kept.finished_PG.flatten().to(device))
    return batch


def _updates_per_pass(config: StepConfig, batch: Batch) -> int:
    return max(1, min(config.objective.minibatches, len(batch.tokens_BT)))


def _minibatches(batch: Batch, config: StepConfig, step: int) -> Iterator[Batch]:
    """Yield the examples of each update: in each epoch, the whole batch or random parts of it.

    A batch without an example is one part in each epoch: the update may still train the legal moves. The parts depend
    only on seed, step and epoch, because all ranks need the same ones.
    """
    examples, objective = len(batch.tokens_BT), config.objective
    for epoch in range(objective.epochs):
        if objective.minibatches == 1:
            yield batch
            continue
        random = torch.Generator().manual_seed(derive_seed(config.seed, "parts", step, epoch))
        for rows in torch.randperm(examples, generator=random).tensor_split(_updates_per_pass(config, batch)):
            yield batch.select(rows.to(batch.tokens_BT.device))


def _sizes(config: StepConfig, batch: Batch, minibatch: Batch) -> LossSizes:
    """Return the sizes by which the loss of an update is normalised, whatever its micro-batches.

    They are 1 for an update without completions, which has nothing to normalise.
    """
    return LossSizes(
        completions=len(minibatch.tokens_BT) or 1,
        tokens_per_update=batch.trained_tokens() / _updates_per_pass(config, batch) or 1.0,
        max_tokens=config.generator.max_new_tokens,
    )


def loss_plan(context: StepContext, sizes: LossSizes, *, kl_coef: float, moves_temperature: float = 0.0) -> LossPlan:
    """Return the plan that all micro-batches of an update of these sizes share."""
    config, references = context.config, context.references
    measured = config.kl.form is not KLForm.off
    return LossPlan(
        objective=config.objective,
        kl=config.kl,
        temperature=context.temperature,
        sizes=sizes,
        kl_coef=kl_coef,
        moves_temperature=moves_temperature,
        reference=references.current if measured else None,
        original=references.original if measured and references.moves else None,
    )


def _accumulate(
    context: StepContext, minibatch: Batch, moves: MoveBatch | None, plan: LossPlan, event: Event
) -> list[Loss]:
    """Set the gradients of the parameters to those of one update; return the losses of its micro-batches.

    If memory runs out, it begins again with smaller micro-batches. Raises FaultError.
    """
    policy, by_prompt = context.policy, context.policy.packs
    # Without KL and entropy bonus a completion of advantage 0 has no gradient. The loss is still normalised by all.
    all_needed = plan.reference is not None or plan.objective.entropy_coef > 0
    trained = minibatch if all_needed else minibatch.select(minibatch.advantages_B != 0)

    def call_hooks() -> None:
        call = partial(context.emit, Moment.micro_batch, event)
        # With shards all ranks make a pass together, so the error of a hook must be raised on all before the pass.
        context.world.barrier(call, "a micro-batch's hooks") if policy.sharded else call()

    def of_completions(micro: tuple[Batch, MoveBatch | None]) -> tuple[Tensor, TokenTotals]:
        call_hooks()
        return completions_and_moves_loss(policy, *micro, plan)

    def of_moves(micro: MoveBatch) -> tuple[Tensor, TokenTotals]:
        call_hooks()
        return moves_loss(policy, micro, plan)

    def accumulate() -> list[Loss]:
        context.optimizer.zero_grad(set_to_none=True)
        size = examples_per_pass(context, len(trained.tokens_BT))
        micros = list(micro_batches(trained, size, by_prompt=by_prompt))
        own: list[MoveBatch | None] = [None] * len(micros)
        other = moves
        if moves is not None and by_prompt:
            own, other = beside(micros, moves)
        losses = _backward(context, list(zip(micros, own, strict=True)), of_completions)
        if other is not None:
            rows = size * (ROWS_PER_COMPLETION if by_prompt else 1)
            losses += _backward(context, list(micro_batches(other, rows, by_prompt=by_prompt)), of_moves)
        if not policy.sharded:
            context.world.sum_gradients([p for p in policy.model.parameters() if p.requires_grad])
        return losses

    return with_smaller_batches(context, accumulate)


def completions_and_moves_loss(
    policy: Policy, micro: Batch, moves: MoveBatch | None, plan: LossPlan
) -> tuple[Tensor, TokenTotals]:
    """Return the loss of a micro-batch of completions and of the legal moves of its prompts, from one pass over both.

    Raises FaultError if a log-prob or the loss is not finite.
    """
    if moves is None:
        of_completions, of_moves = None, None
    else:
        of_both = planned_statistics(policy, joined(micro, moves), plan)
        of_completions, of_moves = of_both.split(micro.trained_tokens())
    result = completions_loss(policy, micro, plan, of_completions)
    checks.check_loss(result.loss, micro)
    if moves is None:
        return result.loss, result.totals
    loss, totals = moves_loss(policy, moves, plan, of_moves)
    return result.loss + loss, TokenTotals.total([result.totals, totals])


def completions_loss(
    policy: Policy, micro: Batch, plan: LossPlan, statistics: TokenStatistics | None = None
) -> MicroLoss:
    """Return the loss of a micro-batch of completions. Raises FaultError if a log-prob is not finite."""
    result = grpo_loss(policy, micro, plan, statistics)
    checks.check_logprobs(result.logprobs, policy, micro)
    if result.ref_logprobs is not None and plan.reference is not None:
        checks.check_logprobs(result.ref_logprobs, plan.reference, micro, side="reference")
    checks.check_sampler_logprobs(micro)
    return result


def moves_loss(
    policy: Policy, micro: MoveBatch, plan: LossPlan, statistics: TokenStatistics | None = None
) -> tuple[Tensor, TokenTotals]:
    """Return the loss of a micro-batch of legal moves and its totals. Raises FaultError if a log-prob is not finite."""
    value, entropy, logprobs = expected_value(policy, micro, temperature=plan.temperature, statistics=statistics)
    checks.check_logprobs(logprobs, policy, micro)
    goal = value + plan.moves_temperature * entropy if plan.moves_temperature else value
    loss = -plan.objective.all_moves_coef * goal
    return loss, TokenTotals(expected_value_sum=float(value.detach()), move_entropy_sum=float(entropy.detach()))


def _backward(
    context: StepContext, micros: Sequence[Micro], loss_of: Callable[[Micro], tuple[Tensor, TokenTotals]]
) -> list[Loss]:
    """Add the gradients of micro-batches to those of the parameters; return all losses, in the micro-batches' order.

    Each rank takes its share. On a CPU each core computes a micro-batch of its own, so that gradients are added here:
    threads must not share `Tensor.grad`. A model in shards gathers weights from all ranks in every pass, so all ranks
    make the same number of passes: one that has no micro-batch left repeats the first, with its loss multiplied by 0.
    """
    policy, world = context.policy, context.world
    parameters = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]

    def differentiate(micro: Micro) -> tuple[Loss, tuple[Tensor | None, ...]]:
        loss, totals = loss_of(micro)
        return (loss.item(), totals), torch.autograd.grad(loss, parameters, allow_unused=True)

    def own_share() -> list[Loss]:
        losses = []
        if policy.sharded:
            own = world.share(micros)
            for turn in range(ceil(len(micros) / world.size)):
                micro, weight = (own[turn], 1.0) if turn < len(own) else (micros[0], 0.0)
                loss, totals = world.barrier(partial(loss_of, micro), "a micro-batch")
                (loss * weight).backward()
                losses += [(loss.item(), totals)] if weight else []
        elif cores(policy.device) > 1:
            for result, gradients in map_on_cores(differentiate, world.share(micros), policy.device):
                add_gradients(parameters, gradients)
                losses.append(result)
        else:
            for micro in world.share(micros):
                loss, totals = loss_of(micro)
                loss.backward()
                losses.append((loss.item(), totals))
        return losses

    return world.gather_in_order(own_share, "micro-batches")


def _totals(losses: Sequence[Sequence[Loss]]) -> TokenTotals:
    """Return the token totals of all micro-batches of some updates."""
    return TokenTotals.total(totals for _, totals in chain.from_iterable(losses))


def kl_limit(config: StepConfig) -> float:
    """Return the KL above which an update is a fault, nats per token; 0: none."""
    return config.recovery.kl_limit if config.recovery.enabled else 0.0


def _gradient_norm(policy: Policy) -> Tensor | None:
    """Return the norm of the whole gradient, a scalar; None if no parameter has a gradient."""
    gradients = [parameter.grad for parameter in policy.model.parameters() if parameter.grad is not None]
    return full_tensor(torch.nn.utils.get_total_norm(gradients)) if gradients else None


def check_gradient(context: StepContext, grad_norm: float, minibatch: TokenBatch) -> None:
    """Check that the gradient is finite and, if guards are on, no spike. Raises FaultError."""
    model, config = context.policy.model, context.config
    checks.check_gradient(model, grad_norm, minibatch)
    if config.recovery.enabled:
        floor = config.optim.max_grad_norm
        checks.check_gradient_spike(model, grad_norm, context.guards, minibatch, floor=floor)


def _update(context: StepContext, grad_norm: Tensor, lr: float, event: Event) -> float:
    """Clip the gradient and step the optimiser; return the norm of the change of all weights. Raises FaultError."""
    optimizer = context.optimizer
    parameters = [parameter for parameter in context.policy.model.parameters() if parameter.grad is not None]
    torch.nn.utils.clip_grads_with_norm_(parameters, context.config.optim.max_grad_norm, grad_norm)
    for group in optimizer.param_groups:
        group["lr"] = lr

    def step() -> list[Tensor]:
        # Memory may run out in the middle of the step, on one of several ranks, so this fault ends the run on all.
        try:
            before = [parameter.detach().clone() for parameter in parameters]
            optimizer.step()
        except torch.OutOfMemoryError as error:
            raise out_of_memory("update", error) from error
        return before

    changes = context.world.barrier(step, "an update")
    context.emit(Moment.updated, replace(event, updates=event.updates + 1))
    # In place, to save the memory of another copy of the weights.
    for change, parameter in zip(changes, parameters, strict=True):
        change.sub_(parameter.detach())
    return float(full_tensor(torch.nn.utils.get_total_norm(changes)))


def examples_per_pass(context: StepContext, examples: int) -> int:
    """Return the size of micro-batches for this number of completions, smaller if a core would otherwise idle.

    It is at most `micro_batch_size`. A smaller size means whole groups, at least `LEAST_EXAMPLES` completions in all.
    Several processes always use `micro_batch_size`: all must divide a batch alike, whatever cores they have.
    """
    if context.world.size > 1:
        return context.micro_batch_size
    share = max(LEAST_EXAMPLES, ceil(examples / cores(context.policy.device)))
    group = context.config.objective.group_size
    return min(context.micro_batch_size, ceil(share / group) * group)


def with_smaller_batches(context: StepContext, work: Callable[[], Result]) -> Result:
    """Call `work` and return its result. If memory runs out, call it again with micro-batches of half the size.

    The size stays halved for the rest of the run; the result of an update does not depend on it. Raises FaultError if
    memory runs out with one completion per micro-batch. Raises it at once for a model in shards, because other ranks
    may be in the middle of the pass.
    """
    while True:
        try:
            return work()
        except torch.OutOfMemoryError as error:
            if context.micro_batch_size == 1 or context.policy.sharded:
                raise out_of_memory("micro_batch", error) from error
            context.recovery.halvings += 1
        # Not inside the handler: until it ends, the exception holds the tensors of the failed pass.
        release_memory(context.policy.device)

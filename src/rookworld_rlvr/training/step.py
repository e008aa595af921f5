"""One GRPO step, from examples to an updated policy, top to bottom.

weights to the sampler → examples → groups of completions, scored → batch → advantages → for each update,
for each of its micro-batches: log-probs of policy and reference, surrogate plus KL less entropy, backward
→ guard → clip → update. Nothing here logs, saves or evaluates: the report says what happened, the trainer
acts on it. A fault ends the step and is named in the report; `recovery` decides what is done about it.

With one update for each batch, the policy that is differentiated is also the policy that sampled. Its own log-probs,
detached, are then the old log-probs: the ratio is 1 and its gradient is the policy gradient. With several updates
the old log-probs are computed once, before the first update. The micro-batches are normalised by sizes of the whole
update, so the gradient does not depend on how the update is cut.

Several processes (`context.world`) make one step together: each has its share of the prompts and of the micro-batches,
and all come to the same groups and make the same update; with `distributed=fsdp2` each holds only its shards.

Source: GRPO, arXiv 2402.03300; which loss, and what it is divided by: `objective.losses`.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..model.batch import Batch, micro_batches
from ..model.policy import TokenTable
from ..model.sharded import full_tensor, reshard
from ..objective import KLForm, LossSizes, group_advantages
from ..rollout.groups import Collected, make_batch
from ..stability.faults import FaultError, StepAbandonedError
from . import checks
from .collection import token_table, used_P
from .config import StepConfig, Truncated
from .context import Moment, StepContext
from .gradients import add_up_gradients
from .loss import LossPlan, MicroLoss, TokenTotals, grpo_loss
from .optim import learning_rate
from .out_of_memory import in_pieces_that_fit
from .step_report import StepReport
from .timing import timed


def grpo_step(context: StepContext, step: int) -> StepReport:
    """Step number `step`, counted from 0. Raises StepAbandonedError where a stop was asked for in time."""
    schedule_step = context.clock.schedule_step
    report = StepReport(
        step=step,
        kl_coef=context.kl_controller.coefficient(schedule_step),
        schedule_step=schedule_step,
        entropy_coef=context.objective.entropy_coef,
        lr=learning_rate(context.optim, schedule_step, context.total_steps) * context.recovery.lr_scale,
    )
    with timed(report, "step"):
        try:
            _sample_and_train(context, report)
        except FaultError as error:
            report.fault, report.fault_batch = error.fault, error.batch
            references = context.references
            reshard(context.policy.model, references.current.model, references.original.model)
    report.loss /= max(report.updates, 1)
    context.clock.schedule_step += 1
    return report


def _sample_and_train(context: StepContext, report: StepReport) -> None:
    context.at(Moment.begun, report)
    checks.check_weights(context)
    collected = context.batches.next(context, report)
    if not collected.groups:
        return
    report.collected = collected
    context.at(Moment.collected, report)
    checks.check_rewards(collected.rewards_PG)
    with timed(report, "train"):
        batch = make_batch(collected.groups, pad_id=context.policy.pad_id, device=context.policy.device)
        table = _before_the_first_update(context, batch)
        report.advantages_PG = _advantages(context, collected, table, report)
        batch = _rows_to_train(context, collected, report.advantages_PG, table, batch)
        step_tokens = batch.trained_tokens() / _cuts(len(batch.tokens_BT), context.objective)
        for part in _parts(batch, context.objective):
            _accumulate(context, part, step_tokens, report)
            _update(context, part, report)


def _before_the_first_update(context: StepContext, batch: Batch) -> TokenTable | None:
    """Log-probs of policy and reference before the first update, None where nothing needs them."""
    if context.objective.updates == 1 and context.kl.form is not KLForm.in_reward:
        return None
    table = token_table(context, batch)
    checks.check_logprobs(context, table.logprobs_BT, table.ref_logprobs_BT, batch)
    return table


def _advantages(context: StepContext, collected: Collected, table: TokenTable | None, report: StepReport) -> Tensor:
    """The advantages (P, G) of the groups that count, 0 in others; the report says which count."""
    config, rewards_PG = context.objective.advantage, collected.rewards_PG
    report.used_P = used_P(collected, config)
    if table is not None and context.kl.form is KLForm.in_reward:
        rewards_PG = rewards_PG - report.kl_coef * table.sequence_kl_B().reshape(rewards_PG.shape).cpu()
    return group_advantages(rewards_PG, config, valid_PG=collected.valid_PG, used_P=report.used_P)


def _rows_to_train(
    context: StepContext, collected: Collected, advantages_PG: Tensor, table: TokenTable | None, batch: Batch
) -> Batch:
    """The completions that are trained on, with their advantages and old log-probs."""
    trained_PG = collected.valid_PG
    if context.objective.collection.truncated is Truncated.mask:
        trained_PG = trained_PG & collected.finished_PG
    batch = replace(
        batch,
        advantages_B=advantages_PG.flatten().to(context.policy.device),
        old_logprobs_BT=None if table is None else table.logprobs_BT,
    )
    return batch.select(trained_PG.flatten().to(context.policy.device))


def _parts(batch: Batch, config: StepConfig) -> Iterator[Batch]:
    """What each update is made of: the batch, or random parts of it, `epochs` times over."""
    rows = len(batch.tokens_BT)
    for _ in range(config.epochs if rows else 0):
        if config.minibatches == 1:
            yield batch
            continue
        for part in torch.randperm(rows).tensor_split(_cuts(rows, config)):
            yield batch.select(part.to(batch.tokens_BT.device))


def _cuts(rows: int, config: StepConfig) -> int:
    """Updates a pass: no more than there are rows, and at least one."""
    return max(1, min(config.minibatches, rows))


def _accumulate(context: StepContext, part: Batch, step_tokens: float, report: StepReport) -> None:
    """Add up the gradient of one update, and what is known of its tokens."""
    sizes = LossSizes(
        completions=len(part.tokens_BT),
        tokens=part.trained_tokens(),
        step_tokens=step_tokens,
        max_tokens=context.max_tokens,
    )
    plan = context.loss_plan(sizes, kl_coef=report.kl_coef, entropy_coef=report.entropy_coef)
    part = _rows_with_a_gradient(context, part, plan)
    report.tokens, report.loss = in_pieces_that_fit(context, lambda: _add_micro_batches(context, part, plan, report))
    checks.check_kl(context, part, report)


def _add_micro_batches(
    context: StepContext, part: Batch, plan: LossPlan, report: StepReport
) -> tuple[TokenTotals, float]:
    """The report's token totals and loss with this update's added, whose gradient is left in the parameters."""
    context.optimizer.zero_grad(set_to_none=True)
    micros = list(micro_batches(part, context.rows_a_pass(len(part.tokens_BT)), by_prompt=context.policy.packs))
    begin = partial(_begin_micro_batch, context, report)
    loss_of = partial(_checked_loss, context, plan)
    tokens, loss = replace(report.tokens), report.loss
    for its_tokens, its_loss in add_up_gradients(begin, loss_of, micros, context.policy, context.world):
        tokens.add(its_tokens)
        loss += its_loss
    return tokens, loss


def _begin_micro_batch(context: StepContext, report: StepReport) -> None:
    """Call the hooks. Raises StepAbandonedError where a stop was asked for before the step's first update."""
    if context.stop_requested() and context.batches.abandons and not report.updates:
        raise StepAbandonedError
    context.at(Moment.micro_batch, report)


def _checked_loss(context: StepContext, plan: LossPlan, micro: Batch) -> MicroLoss:
    """The loss of a micro-batch, checked."""
    found = grpo_loss(context.policy, micro, plan)
    checks.check_logprobs(context, found.logprobs, found.ref_logprobs, micro)
    checks.check_loss(found.loss, micro)
    return found


def _rows_with_a_gradient(context: StepContext, part: Batch, plan: LossPlan) -> Batch:
    """Leave out the rows of advantage 0, unless KL or entropy is trained or measured on them.

    The loss is still divided by the sizes of all rows.
    """
    if plan.reference is not None or plan.entropy_coef:
        return part
    return part.select(part.advantages_B != 0)


def _update(context: StepContext, part: Batch, report: StepReport) -> None:
    """Guard, clip, step, guard; nothing where no row had a gradient. A fault before the step leaves the weights."""
    context.at(Moment.accumulated, report)
    parameters = [p for p in context.policy.model.parameters() if p.grad is not None]
    if not parameters:
        return
    total_norm = full_tensor(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    grad_norm = float(total_norm)
    report.grad_norm = max(report.grad_norm, grad_norm)
    checks.check_gradient(context, grad_norm, part)
    torch.nn.utils.clip_grads_with_norm_(parameters, context.optim.max_grad_norm, total_norm)
    for group in context.optimizer.param_groups:
        group["lr"] = report.lr
    moved = [parameter.detach().clone() for parameter in parameters]
    context.optimizer.step()
    report.updates += 1
    context.at(Moment.updated, report)
    for before, parameter in zip(moved, parameters, strict=True):
        before.sub_(parameter.detach())
    update_norm = float(full_tensor(torch.nn.utils.get_total_norm(moved)))
    checks.check_update(context, update_norm, part)
    report.update_norm += update_norm

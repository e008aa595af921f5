"""One GRPO step, from examples to an updated policy, top to bottom.

examples → weights to the sampler → groups of completions, scored → advantages → batch → for each
micro-batch: log-probs of policy and reference, clipped surrogate plus KL, backward → guard → clip →
update. Nothing here logs, saves or evaluates: the report says what happened, the trainer acts on it.

With one update a batch the policy that is differentiated is the one that sampled, so the old log-probs
are its own, detached: the ratio is 1 and its gradient is the policy gradient. The micro-batches are
normalised by the trained tokens of the whole step, so however it is cut the gradient is the same.

Source: GRPO, arXiv 2402.03300; token-level normalisation, arXiv 2503.14476.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..objective import (
    AdvantageConfig,
    ClipConfig,
    clipped_policy_loss,
    group_advantages,
    kl_penalty,
    normalise,
)
from ..rewards import Rubric
from ..rollout.batch import Batch, make_batch, micro_batches
from ..rollout.collect import Group, sample_groups, score_groups
from ..rollout.generator import Generator
from ..tasks.sampler import Sampler
from .kl_control import KLConfig, kl_coefficient
from .optim import OptimConfig, learning_rate
from .policy import Policy, spread
from .recovery import RecoveryState
from .step_report import StepReport, TokenTotals


@dataclass(slots=True)
class StepConfig:
    """How much is sampled in a step, and what is made of it."""

    prompts_per_step: int = 8
    """P: prompts a step."""
    group_size: int = 16
    """G: completions a prompt."""
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    clip: ClipConfig = field(default_factory=ClipConfig)

    def __post_init__(self) -> None:
        if self.prompts_per_step < 1 or self.group_size < 2:
            raise ValueError("objective: expected prompts_per_step from 1 and group_size from 2")


@dataclass(slots=True)
class StepContext:
    """All a step works with. The trainer builds it once."""

    policy: Policy
    reference: Policy
    generator: Generator
    rubric: Rubric
    sampler: Sampler
    optimizer: torch.optim.Optimizer
    objective: StepConfig
    kl: KLConfig
    optim: OptimConfig
    recovery: RecoveryState
    temperature: float
    total_steps: int


def grpo_step(context: StepContext, step: int) -> StepReport:
    """Step number `step`, counted from 0."""
    report = StepReport(step=step, kl_coef=kl_coefficient(context.kl, step))
    with _timed(report, "step"):
        groups = _collect(context, step, report)
        rewards_PG = torch.tensor([[sample.score.total for sample in group.samples] for group in groups])
        advantages_PG = group_advantages(rewards_PG, context.objective.advantage)
        report.groups, report.rewards_PG, report.advantages_PG = groups, rewards_PG, advantages_PG
        with _timed(report, "train"):
            batch = make_batch(groups, advantages_PG, pad_id=context.policy.pad_id, device=context.policy.device)
            _accumulate(context, batch, report)
            _update(context, step, report)
    return report


def _collect(context: StepContext, step: int, report: StepReport) -> list[Group]:
    examples = context.sampler.draw(context.objective.prompts_per_step)
    context.generator.sync(context.policy.model)
    with _timed(report, "generate"):
        sampled = sample_groups(
            context.generator,
            context.policy.tokenizer,
            examples,
            group_size=context.objective.group_size,
            temperature=context.temperature,
        )
    with _timed(report, "score"):
        return score_groups(sampled, context.policy.tokenizer, examples, rubric=context.rubric, step=step)


def _accumulate(context: StepContext, batch: Batch, report: StepReport) -> None:
    """Add up the gradient of the whole batch, one micro-batch's graph at a time."""
    context.optimizer.zero_grad(set_to_none=True)
    denominator = batch.trained_tokens()
    for micro in micro_batches(batch, context.optim.micro_batch_size):
        loss = micro_batch_loss(context, micro, denominator, report)
        loss.backward()
        report.loss += loss.item()


def micro_batch_loss(context: StepContext, micro: Batch, denominator: int, report: StepReport) -> Tensor:
    """This micro-batch's share of the step's loss, a scalar; its token sums go into the report."""
    loss_mask_BT = micro.loss_mask_BT
    statistics = context.policy.statistics(micro, temperature=context.temperature, reference=context.reference)
    assert statistics.ref_logprobs is not None and statistics.kl_exact is not None
    logprobs_BT = spread(statistics.logprobs, loss_mask_BT)
    ref_logprobs_BT = spread(statistics.ref_logprobs, loss_mask_BT)
    old_logprobs_BT = logprobs_BT.detach()
    policy_loss = clipped_policy_loss(
        logprobs_BT,
        old_logprobs_BT,
        advantages_B=micro.advantages_B,
        loss_mask=loss_mask_BT,
        clip=context.objective.clip,
    )
    kl_BT = kl_penalty(
        context.kl.form,
        logprobs_BT,
        ref_logprobs_BT,
        kl_exact=spread(statistics.kl_exact, loss_mask_BT),
        log_ratio=logprobs_BT - old_logprobs_BT,
        loss_mask=loss_mask_BT,
    )
    report.tokens.add(
        TokenTotals.of(
            statistics,
            sampler_logprobs=micro.sampler_logprobs_BT[loss_mask_BT],
            ratio=policy_loss.ratio[loss_mask_BT],
            clipped=policy_loss.clipped[loss_mask_BT],
        )
    )
    return normalise(policy_loss.per_token + report.kl_coef * kl_BT, loss_mask_BT, denominator)


def _update(context: StepContext, step: int, report: StepReport) -> None:
    """Guard, clip, step. A non-finite loss or gradient leaves the weights as they are."""
    report.lr = learning_rate(context.optim, step, context.total_steps) * context.recovery.lr_scale
    parameters = [p for p in context.policy.model.parameters() if p.grad is not None]
    report.grad_norm = float(torch.nn.utils.clip_grad_norm_(parameters, context.optim.max_grad_norm))
    if not math.isfinite(report.loss):
        report.fault = "loss"
    elif not math.isfinite(report.grad_norm):
        report.fault = "gradient"
    if report.fault:
        return
    for group in context.optimizer.param_groups:
        group["lr"] = report.lr
    before = [parameter.detach().clone() for parameter in parameters]
    context.optimizer.step()
    changes = [(p.detach() - old).norm() for p, old in zip(parameters, before, strict=True)]
    report.update_norm = float(torch.stack(changes).norm())


@contextmanager
def _timed(report: StepReport, phase: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    report.times_s[phase] = time.perf_counter() - started

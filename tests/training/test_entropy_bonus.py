"""The entropy bonus in a step of a real model."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rollout.groups import Group
from rookworld_rlvr.training.state import Event, Moment, StepContext
from rookworld_rlvr.training.step import grpo_step
from rookworld_rlvr.training.trainer import Run

COEF, TEMPERATURE = 0.5, 0.7


def mean_entropy(policy: Policy, groups: Sequence[Group]) -> Tensor:
    """Return the mean entropy of the policy at the sampled tokens, nats, from a plain pass of each row."""
    entropies = []
    for group in groups:
        for sample in group.samples:
            done = sample.completion.tokens
            logits = policy.model(torch.tensor([group.prompt_tokens + done])).logits[0, -len(done) - 1 : -1]
            entropies.append(torch.distributions.Categorical(logits=logits / TEMPERATURE).entropy())
    return torch.cat(entropies).mean()


def test_entropy_bonus_climbs_the_entropy_at_sampled_tokens(make_run: Callable[..., Run]) -> None:
    before: list[Tensor] = []

    def check(moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.collected:
            # The rewards are equal, so only the bonus has a gradient.
            event.rewards_PG.fill_(0.5)
        if moment is Moment.accumulated:
            parameters = list(context.policy.model.parameters())
            before.append(mean_entropy(context.policy, event.rollout.groups))
            for parameter, uphill in zip(parameters, torch.autograd.grad(before[0], parameters), strict=True):
                torch.testing.assert_close(parameter.grad, -COEF * uphill, atol=1e-6, rtol=1e-4)

    given = f"generator.temperature={TEMPERATURE}", "kl.coef=0", "generator.max_new_tokens=16"
    context = make_run(f"objective.entropy_coef={COEF}", *given).context
    context.hooks.append(check)
    report = grpo_step(context, 0)
    with torch.no_grad():
        assert mean_entropy(context.policy, report.groups) > before[0]

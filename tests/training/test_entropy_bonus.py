"""The entropy bonus in a step of a real model."""

from collections.abc import Callable

from rookworld_rlvr.rollout.groups import make_batch
from rookworld_rlvr.training.step import grpo_step
from rookworld_rlvr.training.trainer import Run


def test_entropy_bonus_raises_policy_entropy_at_sampled_tokens(make_run: Callable[..., Run]) -> None:
    def entropy(coef: float) -> float:
        # The rewards are equal, so only the bonus has a gradient.
        given = ("generator.temperature=0.7", "kl.coef=0", "generator.max_new_tokens=16")
        context = make_run(f"objective.entropy_coef={coef}", *given).context
        context.hooks.append(lambda _moment, _context, report: report.rewards_PG.fill_(0.5))
        report = grpo_step(context, 0)
        assert (report.update_norm > 0) == (coef > 0)
        batch = make_batch(report.groups, pad_id=context.policy.pad_id, device=context.policy.device)
        return float(context.policy.statistics(batch, temperature=0.7).entropy.mean())

    assert entropy(0.5) > entropy(0.0) + 0.05

"""Value and gradient of every loss, as expectations over all texts of a softmax tree.

They are compared with two references that share no code with the losses. The first is each paper's formula and its
derivative in plain Python, token by token. The second, on-policy, is autograd through the expected reward.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.objective import LOSSES, ClipConfig, LossKind, LossSizes, weighted_sum

ADVANTAGES = [1.0, -0.5, 2.0, 0.0, -1.5, 0.75, -2.5]
# The step has two updates and this one is the shorter, so that the normalisations differ.
SIZES = LossSizes(completions=3, tokens_per_update=6.5, max_tokens=4)
WEIGHTS: dict[LossKind, Callable[[int], float]] = {
    LossKind.grpo: lambda length: 1 / (3 * length),
    LossKind.dr_grpo: lambda length: 1 / (3 * 4),
    LossKind.dapo: lambda length: 1 / 6.5,
    LossKind.cispo: lambda length: 1 / 6.5,
    LossKind.gspo: lambda length: 1 / (3 * length),
}
CLIPS = [
    ClipConfig(low=0.2, high=0.28),
    ClipConfig(low=0.1, high=0.5),
    ClipConfig(low=1.0, high=math.inf),
]


def expected_loss(kind: LossKind, policy: Any, old: Any, clip: ClipConfig) -> tuple[float, Tensor]:
    """Return the loss expected over the old policy's texts, and its gradient by the logits."""
    loss_mask, loss = policy.loss_mask_BT, LOSSES[kind]
    terms = loss.surrogate(
        policy.logprobs_BT(),
        old.logprobs_BT().detach(),
        advantages_B=torch.tensor(ADVANTAGES, dtype=torch.float64),
        loss_mask=loss_mask,
        clip=clip,
    )
    likely = old.probabilities_B().detach().unsqueeze(-1)
    value = weighted_sum(likely * terms.per_token, loss.token_weights(loss_mask, SIZES), loss_mask)
    (gradient,) = torch.autograd.grad(value, policy.logits)
    return value.item(), gradient


def softmax(row: list[float]) -> list[float]:
    total = sum(math.exp(logit) for logit in row)
    return [math.exp(logit) / total for logit in row]


def clipped_by_hand(ratio: float, advantage: float, clip: ClipConfig) -> tuple[float, float]:
    """Return PPO's clipped loss, written as separate cases, and its derivative by the log-ratio."""
    if advantage > 0 and ratio > 1 + clip.high:
        return -(1 + clip.high) * advantage, 0.0
    if advantage < 0 and ratio < 1 - clip.low:
        return -(1 - clip.low) * advantage, 0.0
    return -ratio * advantage, -ratio * advantage


def terms_by_hand(
    kind: LossKind, news: list[float], olds: list[float], advantage: float, clip: ClipConfig
) -> list[tuple[float, float]]:
    """Return the loss of each token of one text, and the derivative of their *sum* by each token's log-prob."""
    ratios = [new / old for new, old in zip(news, olds, strict=True)]
    if kind is LossKind.gspo:
        sequence_ratio = math.prod(ratios) ** (1 / len(ratios))
        # All tokens have the same term. Its derivative by each log-prob has the factor 1 / length, their sum 1.
        return [clipped_by_hand(sequence_ratio, advantage, clip)] * len(ratios)
    if kind is LossKind.cispo:
        weights = [min(max(ratio, 1 - clip.low), 1 + clip.high) for ratio in ratios]
        return [(-w * advantage * math.log(new), -w * advantage) for w, new in zip(weights, news, strict=True)]
    return [clipped_by_hand(ratio, advantage, clip) for ratio in ratios]


def loss_by_hand(kind: LossKind, policy: Any, old: Any, clip: ClipConfig) -> tuple[float, list[list[float]]]:
    new_rows = [softmax(row) for row in policy.logits.tolist()]
    old_rows = [softmax(row) for row in old.logits.tolist()]
    value, gradient = 0.0, [[0.0] * 3 for _ in range(3)]
    for first in range(3):
        for second in range(3) if first else [None]:
            text = [(0, first)] + ([] if second is None else [(first, second)])
            index = 0 if second is None else 1 + 3 * (first - 1) + second
            news = [new_rows[state][token] for state, token in text]
            olds = [old_rows[state][token] for state, token in text]
            scale = math.prod(olds) * WEIGHTS[kind](len(text))
            for (state, token), (term, slope) in zip(
                text, terms_by_hand(kind, news, olds, ADVANTAGES[index], clip), strict=True
            ):
                value += scale * term
                for other in range(3):
                    gradient[state][other] += scale * slope * ((other == token) - new_rows[state][other])
    return value, gradient


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("kind", list(LossKind))
def test_off_policy_loss_and_gradient_equal_paper_formula(
    kind: LossKind, clip: ClipConfig, policy: Any, old_policy: Any
) -> None:
    value, gradient = expected_loss(kind, policy, old_policy, clip)
    by_hand, gradient_by_hand = loss_by_hand(kind, policy, old_policy, clip)
    assert value == pytest.approx(by_hand, rel=1e-6)
    torch.testing.assert_close(gradient, torch.tensor(gradient_by_hand, dtype=torch.float64), rtol=1e-6, atol=1e-9)
    assert gradient.abs().max() > 0.001


@pytest.mark.parametrize("kind", list(LossKind))
def test_on_policy_loss_and_gradient_equal_paper_formula(kind: LossKind, policy: Any) -> None:
    value, gradient = expected_loss(kind, policy, policy, ClipConfig())
    by_hand, gradient_by_hand = loss_by_hand(kind, policy, policy, ClipConfig())
    assert value == pytest.approx(by_hand, rel=1e-6)
    torch.testing.assert_close(gradient, torch.tensor(gradient_by_hand, dtype=torch.float64), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", list(LossKind))
def test_each_clip_bound_binds_for_some_but_not_all_tokens(kind: LossKind, policy: Any, old_policy: Any) -> None:
    def clipped(clip: ClipConfig) -> Tensor:
        terms = LOSSES[kind].surrogate(
            policy.logprobs_BT(),
            old_policy.logprobs_BT(),
            advantages_B=torch.tensor(ADVANTAGES),
            loss_mask=policy.loss_mask_BT,
            clip=clip,
        )
        assert not terms.ratio.requires_grad
        return terms.clipped[policy.loss_mask_BT]

    usual = CLIPS[0]
    above = clipped(ClipConfig(low=1.0, high=usual.high))
    below = clipped(ClipConfig(low=usual.low, high=math.inf))
    assert all(0 < flags.sum() < flags.numel() for flags in (above, below))
    assert not clipped(CLIPS[2]).any()


def expected_reward_gradient(policy: Any, rewards_B: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad((policy.probabilities_B() * rewards_B).sum(), policy.logits)
    return gradient


@pytest.mark.parametrize(
    ("kind", "divisor"),
    [(LossKind.dr_grpo, 12.0), (LossKind.dapo, 6.5), (LossKind.cispo, 6.5)],
)
def test_length_independent_weights_give_expected_reward_gradient(kind: LossKind, divisor: float, policy: Any) -> None:
    rewards_B = torch.tensor(ADVANTAGES, dtype=torch.float64)
    true = -expected_reward_gradient(policy, rewards_B) / divisor
    torch.testing.assert_close(expected_loss(kind, policy, policy, ClipConfig())[1], true, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", [LossKind.grpo, LossKind.gspo])
def test_mean_per_completion_follows_reward_divided_by_length(kind: LossKind, policy: Any) -> None:
    rewards_B = torch.tensor(ADVANTAGES, dtype=torch.float64)
    lengths_B = policy.loss_mask_BT.sum(-1)
    gradient = expected_loss(kind, policy, policy, ClipConfig())[1]
    biased = -expected_reward_gradient(policy, rewards_B / lengths_B) / 3
    torch.testing.assert_close(gradient, biased, rtol=1e-6, atol=1e-9)
    # Texts of two tokens weigh half as much as the text of one token.
    unbiased = -expected_reward_gradient(policy, rewards_B) / 3
    torch.testing.assert_close(gradient[1:], unbiased[1:] / 2, rtol=1e-6, atol=1e-9)
    assert (gradient[0] - unbiased[0] / 2).norm() > 0.05 * unbiased[0].norm()


def test_unclipped_cispo_equals_dapo_in_gradient_but_not_in_value(policy: Any, old_policy: Any) -> None:
    cispo = expected_loss(LossKind.cispo, policy, old_policy, CLIPS[2])
    dapo = expected_loss(LossKind.dapo, policy, old_policy, CLIPS[2])
    torch.testing.assert_close(cispo[1], dapo[1], rtol=1e-12, atol=1e-15)
    assert abs(cispo[0] - dapo[0]) > 0.01


def test_token_ratio_corrects_loss_of_the_token_but_not_of_its_prefix(policy: Any, old_policy: Any) -> None:
    rewards_B = torch.tensor(ADVANTAGES, dtype=torch.float64)
    true = -expected_reward_gradient(policy, rewards_B) / 12
    got = expected_loss(LossKind.dr_grpo, policy, old_policy, CLIPS[2])[1]
    prefixes = [torch.softmax(tree.logits.detach()[0], -1)[1:] for tree in (policy, old_policy)]
    # After a first token, the gradient is right except for that token's probability: old instead of new.
    correction = (prefixes[1] / prefixes[0]).unsqueeze(-1)
    torch.testing.assert_close(got[1:], true[1:] * correction, rtol=1e-6, atol=1e-9)
    assert (correction - 1).abs().max() > 0.05

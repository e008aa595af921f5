import math

import pytest
import torch

from rookworld_rlvr.objective import ClipConfig, cispo_policy_loss, clipped_policy_loss, gspo_policy_loss

ALL = torch.tensor([[True]])


def one_token(ratio: float, advantage: float, clip: ClipConfig) -> tuple[float, float, bool]:
    """Return the loss, its gradient by the log-prob, and whether it was clipped."""
    logprobs = torch.tensor([[math.log(ratio) - 2.0]], dtype=torch.float64, requires_grad=True)
    old_logprobs = torch.tensor([[-2.0]], dtype=torch.float64)
    advantages_B = torch.tensor([advantage], dtype=torch.float64)
    loss = clipped_policy_loss(logprobs, old_logprobs, advantages_B=advantages_B, loss_mask=ALL, clip=clip)
    loss.per_token.sum().backward()
    assert logprobs.grad is not None
    return loss.per_token.item(), logprobs.grad.item(), bool(loss.clipped.item())


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),
        (1.1, 2.0, -2.2, -2.2, False),
        (1.5, 2.0, -2.4, 0.0, True),
        (0.5, 2.0, -1.0, -1.0, False),
        (1.0, -2.0, 2.0, 2.0, False),
        (0.9, -2.0, 1.8, 1.8, False),
        (1.5, -2.0, 3.0, 3.0, False),
        (0.5, -2.0, 1.6, 0.0, True),
        (1.5, 0.0, 0.0, 0.0, False),
        (0.5, 0.0, 0.0, 0.0, False),
    ],
)
def test_clipped_loss_and_gradient_equal_hand_computed_ones(
    ratio: float, advantage: float, expected: float, gradient: float, clipped: bool
) -> None:
    loss, slope, was_clipped = one_token(ratio, advantage, ClipConfig(low=0.2, high=0.2))
    assert loss == pytest.approx(expected, rel=1e-12)
    assert slope == pytest.approx(gradient, rel=1e-12)
    assert was_clipped is clipped


def test_lower_and_upper_clip_are_independent() -> None:
    wide_above, wide_below = ClipConfig(0.2, 0.6), ClipConfig(0.6, 0.2)
    assert one_token(1.5, 2.0, wide_above) == pytest.approx((-3.0, -3.0, False))
    assert one_token(0.5, -2.0, wide_above) == pytest.approx((1.6, 0.0, True))
    assert one_token(0.5, -2.0, wide_below) == pytest.approx((1.0, 1.0, False))
    assert one_token(1.5, 2.0, wide_below) == pytest.approx((-2.4, 0.0, True))


def test_bounds_at_one_and_infinity_never_bind() -> None:
    off = ClipConfig(low=1.0, high=math.inf)
    assert one_token(1e6, 2.0, off)[2] is False
    assert one_token(1e-6, -2.0, off)[2] is False


@pytest.mark.parametrize("low", [0.0, -0.1, 1.1, math.nan])
def test_a_lower_bound_outside_zero_to_one_is_refused(low: float) -> None:
    with pytest.raises(ValueError, match=r"objective\.clip\.low: expected"):
        ClipConfig(low=low)


@pytest.mark.parametrize("high", [0.0, -0.1, math.nan])
def test_an_upper_bound_not_above_zero_is_refused(high: float) -> None:
    with pytest.raises(ValueError, match=r"objective\.clip\.high: expected"):
        ClipConfig(high=high)


def test_on_policy_ratio_is_one_and_gradient_equals_reinforce() -> None:
    logprobs = torch.tensor([[-0.3, -1.7], [-2.2, -0.1]], requires_grad=True)
    loss = clipped_policy_loss(
        logprobs,
        logprobs.detach().clone(),
        advantages_B=torch.tensor([1.5, -0.5]),
        loss_mask=torch.ones(2, 2, dtype=torch.bool),
        clip=ClipConfig(),
    )
    loss.per_token.sum().backward()
    assert loss.ratio.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert not loss.ratio.requires_grad
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-1.5, -1.5], [0.5, 0.5]]


def test_token_far_above_the_clip_has_zero_gradient_and_no_nan() -> None:
    logprobs = torch.tensor([[0.0]], requires_grad=True)
    loss = clipped_policy_loss(
        logprobs, torch.tensor([[-1000.0]]), advantages_B=torch.tensor([2.0]), loss_mask=ALL, clip=ClipConfig()
    )
    loss.per_token.sum().backward()
    assert loss.per_token.item() == pytest.approx(-2.56)
    assert loss.clipped.item() is True
    assert logprobs.grad is not None and logprobs.grad.item() == 0.0


def test_huge_ratio_with_negative_advantage_gives_large_finite_loss() -> None:
    loss = clipped_policy_loss(
        torch.tensor([[0.0]]),
        torch.tensor([[-1000.0]]),
        advantages_B=torch.tensor([-2.0]),
        loss_mask=ALL,
        clip=ClipConfig(),
    )
    assert loss.per_token.item() == pytest.approx(2 * math.exp(40), rel=1e-5)
    assert loss.clipped.item() is False


def test_default_clip_is_wider_above_than_below() -> None:
    assert ClipConfig() == ClipConfig(low=0.2, high=0.28)
    assert one_token(1.27, 1.0, ClipConfig())[2] is False
    assert one_token(1.29, 1.0, ClipConfig())[2] is True


@pytest.mark.parametrize(("advantage", "ratio"), [(2.0, 5.0), (-2.0, 5.0), (2.0, 0.1), (-2.0, 0.1)])
def test_cispo_clips_the_weight_and_keeps_every_tokens_gradient(advantage: float, ratio: float) -> None:
    logprobs = torch.tensor([[-1.5]], requires_grad=True)
    terms = cispo_policy_loss(
        logprobs,
        logprobs.detach() - math.log(ratio),
        advantages_B=torch.tensor([advantage]),
        loss_mask=ALL,
        clip=ClipConfig(0.2, 0.28),
    )
    terms.per_token.sum().backward()
    weight = 1.28 if ratio > 1 else 0.8
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(-weight * advantage, rel=1e-6)
    assert terms.per_token.item() == pytest.approx(1.5 * weight * advantage, rel=1e-6)
    assert terms.clipped.item() is True
    assert terms.ratio.item() == pytest.approx(ratio, rel=1e-6)


def test_gspo_ratio_is_geometric_mean_of_token_ratios() -> None:
    logprobs = torch.tensor([[-1.0, -2.0, -0.5], [-1.0, -1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    old_logprobs = torch.tensor([[-1.2, -1.9, 7.0], [-2.0, -1.0, -0.5]], dtype=torch.float64)
    loss_mask = torch.tensor([[True, True, False], [True, True, True]])
    terms = gspo_policy_loss(
        logprobs,
        old_logprobs,
        advantages_B=torch.tensor([2.0, 1.0], dtype=torch.float64),
        loss_mask=loss_mask,
        clip=ClipConfig(0.1, 0.1),
    )
    first, second = math.exp((0.2 - 0.1) / 2), math.exp((1.0 - 0.5) / 3)
    assert terms.ratio.flatten().tolist() == pytest.approx([first, first, 1.0] + [second] * 3, rel=1e-12)
    assert terms.clipped.tolist() == [[False] * 3, [True] * 3]
    assert terms.per_token.flatten().tolist() == pytest.approx(
        [-2 * first, -2 * first, 0.0, -1.1, -1.1, -1.1], rel=1e-12
    )
    # The derivative of one of the first completion's two equal terms by either log-prob is half of the term.
    (gradient,) = torch.autograd.grad(terms.per_token[0, 0], logprobs)
    assert gradient.flatten().tolist() == pytest.approx([-first, -first, 0.0, 0.0, 0.0, 0.0], rel=1e-12)

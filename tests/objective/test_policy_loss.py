import math

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.objective import ClipConfig, clipped_policy_loss, normalise

ALL = torch.tensor([[True]])


def one_token(ratio: float, advantage: float, clip: ClipConfig) -> tuple[float, float, bool]:
    """Loss, gradient by the log-prob, and whether it was clipped."""
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
def test_loss_gradient_and_clip_by_hand(
    ratio: float, advantage: float, expected: float, gradient: float, clipped: bool
) -> None:
    loss, slope, was_clipped = one_token(ratio, advantage, ClipConfig(clip_low=0.2, clip_high=0.2))
    assert loss == pytest.approx(expected, rel=1e-12)
    assert slope == pytest.approx(gradient, rel=1e-12)
    assert was_clipped is clipped


def test_each_bound_is_its_own_knob() -> None:
    wide_above, wide_below = ClipConfig(clip_high=0.6), ClipConfig(clip_low=0.6)
    assert one_token(1.5, 2.0, wide_above) == pytest.approx((-3.0, -3.0, False))
    assert one_token(0.5, -2.0, wide_above) == pytest.approx((1.6, 0.0, True))
    assert one_token(0.5, -2.0, wide_below) == pytest.approx((1.0, 1.0, False))
    assert one_token(1.5, 2.0, wide_below) == pytest.approx((-2.4, 0.0, True))


def test_bounds_at_one_and_infinity_never_bind() -> None:
    off = ClipConfig(clip_low=1.0, clip_high=math.inf)
    assert one_token(1e6, 2.0, off)[2] is False
    assert one_token(1e-6, -2.0, off)[2] is False


@pytest.mark.parametrize("low", [0.0, -0.1, 1.1, math.nan])
def test_a_lower_bound_outside_zero_to_one_is_refused(low: float) -> None:
    with pytest.raises(ValueError, match="clip_low"):
        ClipConfig(clip_low=low)


@pytest.mark.parametrize("high", [0.0, -0.1, math.nan])
def test_an_upper_bound_not_above_zero_is_refused(high: float) -> None:
    with pytest.raises(ValueError, match="clip_high"):
        ClipConfig(clip_high=high)


def test_on_policy_the_ratio_is_exactly_one_and_the_gradient_that_of_reinforce() -> None:
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


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_whatever_lies_under_the_mask_is_harmless(poison: float, advantage: float) -> None:
    logprobs = torch.tensor([[-1.0, poison, -2.0]], requires_grad=True)
    old_logprobs = torch.tensor([[-1.0, -1.0, -2.0]])
    loss_mask = torch.tensor([[True, False, True]])
    loss = clipped_policy_loss(
        logprobs,
        old_logprobs,
        advantages_B=torch.tensor([advantage]),
        loss_mask=loss_mask,
        clip=ClipConfig(),
    )
    normalise(loss.per_token, loss_mask, 2).backward()
    assert loss.per_token.tolist() == [[-advantage, 0.0, -advantage]]
    assert loss.ratio.tolist() == [[1.0, 1.0, 1.0]]
    assert loss.clipped.tolist() == [[False, False, False]]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-advantage / 2, 0.0, -advantage / 2]]


def test_a_trained_token_far_above_the_clip_has_a_zero_gradient_and_not_a_nan() -> None:
    logprobs = torch.tensor([[0.0]], requires_grad=True)
    loss = clipped_policy_loss(
        logprobs,
        torch.tensor([[-1000.0]]),
        advantages_B=torch.tensor([2.0]),
        loss_mask=ALL,
        clip=ClipConfig(),
    )
    loss.per_token.sum().backward()
    assert loss.per_token.item() == pytest.approx(-2.4)
    assert loss.clipped.item() is True
    assert logprobs.grad is not None and logprobs.grad.item() == 0.0


def test_a_token_that_ran_away_against_its_advantage_shows_as_a_large_finite_loss() -> None:
    loss = clipped_policy_loss(
        torch.tensor([[0.0]]),
        torch.tensor([[-1000.0]]),
        advantages_B=torch.tensor([-2.0]),
        loss_mask=ALL,
        clip=ClipConfig(),
    )
    assert loss.per_token.item() == pytest.approx(2 * math.exp(40), rel=1e-5)
    assert loss.clipped.item() is False


def test_shapes_that_disagree_are_refused() -> None:
    two_by_three, loss_mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"advantages \(B,\), got \(2, 3\), \(2, 3\) and \(3,\)"):
        clipped_policy_loss(
            two_by_three, two_by_three, advantages_B=torch.zeros(3), loss_mask=loss_mask, clip=ClipConfig()
        )
    with pytest.raises(ValueError, match=r"got \(2, 3\), \(1, 3\) and \(2,\)"):
        clipped_policy_loss(
            two_by_three,
            two_by_three[:1],
            advantages_B=torch.zeros(2),
            loss_mask=loss_mask,
            clip=ClipConfig(),
        )


def step_gradient(cuts: list[slice], logprobs: Tensor) -> tuple[float, Tensor]:
    old_logprobs = logprobs.detach() + torch.tensor(
        [[0.1], [-0.4], [0.0], [0.3], [-0.1]], dtype=torch.float64
    )
    advantages_B = torch.tensor([1.0, -0.5, 2.0, -1.5, 0.25], dtype=torch.float64)
    lengths_B = torch.tensor([4, 1, 3, 0, 2])
    loss_mask = torch.arange(4) < lengths_B.unsqueeze(-1)
    total, denominator = 0.0, int(lengths_B.sum())
    for cut in cuts:
        terms = clipped_policy_loss(
            logprobs[cut],
            old_logprobs[cut],
            advantages_B=advantages_B[cut],
            loss_mask=loss_mask[cut],
            clip=ClipConfig(),
        )
        loss = normalise(terms.per_token, loss_mask[cut], denominator)
        loss.backward()
        total += loss.item()
    assert logprobs.grad is not None
    return total, logprobs.grad


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_micro_batches_add_up_to_one_batch_though_their_lengths_differ(size: int) -> None:
    values = torch.linspace(-3.0, -0.2, 20, dtype=torch.float64).reshape(5, 4)
    whole_loss, whole_gradient = step_gradient([slice(0, 5)], values.clone().requires_grad_())
    cuts = [slice(start, start + size) for start in range(0, 5, size)]
    loss, gradient = step_gradient(cuts, values.clone().requires_grad_())
    assert loss == pytest.approx(whole_loss, rel=1e-14)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-14, atol=0)
    assert whole_gradient.abs().sum() > 0


def test_normalise_divides_the_kept_sum_by_the_whole_steps_tokens() -> None:
    per_token = torch.tensor([[1.0, 2.0, math.nan]])
    assert normalise(per_token, torch.tensor([[True, True, False]]), 6).item() == 0.5
    assert normalise(per_token, torch.tensor([[False, False, False]]), 6).item() == 0.0


@pytest.mark.parametrize("denominator", [0, -1, math.nan])
def test_a_step_without_trained_tokens_is_refused(denominator: float) -> None:
    with pytest.raises(ValueError, match="denominator"):
        normalise(torch.zeros(1, 1), ALL, denominator)

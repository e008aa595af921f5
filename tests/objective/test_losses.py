"""Properties of every loss: hand-computed weights, micro-batches, masks and invalid arguments."""

import math

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.objective import LOSSES, ClipConfig, LossKind, LossSizes, weighted_sum

SIZES = LossSizes(completions=2, tokens_per_update=5.0, max_tokens=8)
# Completions of 4, 1, 3, 0 and 2 trained tokens. The last one has an untrained token between its two.
MASK_BT = torch.tensor(
    [
        [True, True, True, True, False],
        [True, False, False, False, False],
        [True, True, True, False, False],
        [False, False, False, False, False],
        [True, False, True, False, False],
    ]
)
STEP = LossSizes(completions=4, tokens_per_update=12.5, max_tokens=5)


def step_loss(kind: LossKind, cuts: list[slice], logprobs: Tensor) -> tuple[float, Tensor]:
    """Return loss and gradient of the five completions, with one micro-batch for each slice."""
    shift_BT = torch.linspace(-0.7, 0.8, 25, dtype=torch.float64).reshape(5, 5)
    advantages_B = torch.tensor([1.0, -0.5, 2.0, -1.5, 0.25], dtype=torch.float64)
    total, leaf = 0.0, logprobs.clone().requires_grad_()
    for cut in cuts:
        terms = LOSSES[kind].surrogate(
            leaf[cut],
            (logprobs + shift_BT)[cut],
            advantages_B=advantages_B[cut],
            loss_mask=MASK_BT[cut],
            clip=ClipConfig(),
        )
        loss = weighted_sum(terms.per_token, LOSSES[kind].token_weights(MASK_BT[cut], STEP), MASK_BT[cut])
        loss.backward()
        total += loss.item()
    assert leaf.grad is not None
    return total, leaf.grad


@pytest.mark.parametrize("kind", list(LossKind))
def test_every_loss_kind_has_equal_name_and_value_and_a_loss(kind: LossKind) -> None:
    assert kind.name == kind.value
    assert set(LOSSES) == set(LossKind)


@pytest.mark.parametrize(
    ("kind", "long", "short"),
    [
        (LossKind.grpo, 1 / 6, 1 / 2),
        (LossKind.gspo, 1 / 6, 1 / 2),
        (LossKind.dapo, 1 / 5, 1 / 5),
        (LossKind.cispo, 1 / 5, 1 / 5),
        (LossKind.dr_grpo, 1 / 16, 1 / 16),
    ],
)
def test_token_weights_equal_hand_computed_ones(kind: LossKind, long: float, short: float) -> None:
    loss_mask_BT = torch.tensor([[True, True, False, True], [False, True, False, False], [False] * 4])
    weights_BT = LOSSES[kind].token_weights(loss_mask_BT, SIZES)
    expected = torch.tensor([[long, long, 0.0, long], [0.0, short, 0.0, 0.0], [0.0] * 4])
    torch.testing.assert_close(weights_BT, expected)
    assert weights_BT.dtype is torch.float32


@pytest.mark.parametrize("kind", list(LossKind))
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_micro_batches_sum_to_loss_and_gradient_of_full_batch(kind: LossKind, size: int) -> None:
    logprobs = torch.linspace(-3.0, -0.2, 25, dtype=torch.float64).reshape(5, 5)
    whole_loss, whole_gradient = step_loss(kind, [slice(0, 5)], logprobs)
    cuts = [slice(start, start + size) for start in range(0, 5, size)]
    loss, gradient = step_loss(kind, cuts, logprobs)
    assert loss == pytest.approx(whole_loss, rel=1e-12)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-12, atol=0)
    assert whole_gradient.abs().sum() > 0
    assert not whole_gradient[~MASK_BT].any()


@pytest.mark.parametrize("kind", list(LossKind))
def test_loss_is_independent_of_padding_width(kind: LossKind) -> None:
    logprobs = torch.linspace(-3.0, -0.2, 25, dtype=torch.float64).reshape(5, 5)

    def loss(columns: int) -> float:
        terms = LOSSES[kind].surrogate(
            logprobs[:, :columns],
            logprobs[:, :columns] - 0.1,
            advantages_B=torch.linspace(-1, 1, 5),
            loss_mask=MASK_BT[:, :columns],
            clip=ClipConfig(),
        )
        weights_BT = LOSSES[kind].token_weights(MASK_BT[:, :columns], STEP)
        return weighted_sum(terms.per_token, weights_BT, MASK_BT[:, :columns]).item()

    assert loss(4) == pytest.approx(loss(5), rel=1e-12)


@pytest.mark.parametrize("kind", list(LossKind))
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1000.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_masked_out_values_have_no_effect(kind: LossKind, poison: float, advantage: float) -> None:
    loss_mask = torch.tensor([[True, False, True], [False, False, False]])
    logprobs = torch.tensor([[-1.0, poison, -2.0], [poison] * 3], requires_grad=True)
    old_logprobs = torch.tensor([[-1.0, -1.0, -2.0], [-1.0] * 3])
    terms = LOSSES[kind].surrogate(
        logprobs,
        old_logprobs,
        advantages_B=torch.tensor([advantage, advantage]),
        loss_mask=loss_mask,
        clip=ClipConfig(),
    )
    sizes = LossSizes(completions=1, tokens_per_update=2.0, max_tokens=2)
    loss = weighted_sum(terms.per_token, LOSSES[kind].token_weights(loss_mask, sizes), loss_mask)
    loss.backward()
    assert loss.isfinite()
    assert terms.ratio.tolist() == [[1.0] * 3] * 2
    assert terms.clipped.tolist() == [[False] * 3] * 2
    assert not terms.per_token[~loss_mask].any()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-advantage / 2, 0.0, -advantage / 2], [0.0] * 3]


@pytest.mark.parametrize("kind", list(LossKind))
def test_zero_advantage_gives_zero_loss_and_gradient(kind: LossKind) -> None:
    logprobs = torch.tensor([[-0.1, -30.0]], requires_grad=True)
    terms = LOSSES[kind].surrogate(
        logprobs,
        torch.tensor([[-30.0, -0.1]]),
        advantages_B=torch.zeros(1),
        loss_mask=torch.ones(1, 2, dtype=torch.bool),
        clip=ClipConfig(),
    )
    terms.per_token.sum().backward()
    assert not terms.per_token.any() and not terms.clipped.any()
    assert logprobs.grad is not None and not logprobs.grad.any()


@pytest.mark.parametrize("kind", list(LossKind))
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_overflowing_ratio_leaves_loss_and_gradient_finite(kind: LossKind, advantage: float) -> None:
    logprobs = torch.tensor([[0.0, -1000.0]], requires_grad=True)
    for old in (-1000.0, 0.0):
        terms = LOSSES[kind].surrogate(
            logprobs,
            torch.full((1, 2), old),
            advantages_B=torch.tensor([advantage]),
            loss_mask=torch.ones(1, 2, dtype=torch.bool),
            clip=ClipConfig(),
        )
        terms.per_token.sum().backward()
        assert terms.per_token.isfinite().all() and terms.ratio.isfinite().all()
    assert logprobs.grad is not None and logprobs.grad.isfinite().all()


@pytest.mark.parametrize("kind", list(LossKind))
def test_mismatched_shapes_are_refused(kind: LossKind) -> None:
    two_by_three, loss_mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"advantages \(B,\), got \(2, 3\), \(2, 3\) and \(3,\)"):
        LOSSES[kind].surrogate(
            two_by_three, two_by_three, advantages_B=torch.zeros(3), loss_mask=loss_mask, clip=ClipConfig()
        )
    with pytest.raises(ValueError, match=r"got \(2, 3\), \(1, 3\) and \(2,\)"):
        LOSSES[kind].surrogate(
            two_by_three, two_by_three[:1], advantages_B=torch.zeros(2), loss_mask=loss_mask, clip=ClipConfig()
        )


def test_weighted_sum_ignores_non_finite_values_under_the_mask() -> None:
    per_token = torch.tensor([[1.0, 2.0, math.nan]], requires_grad=True)
    weights_BT = torch.tensor([[0.5, 0.25, math.inf]])
    total = weighted_sum(per_token, weights_BT, torch.tensor([[True, True, False]]))
    total.backward()
    assert total.item() == 1.0
    assert per_token.grad is not None and per_token.grad.tolist() == [[0.5, 0.25, 0.0]]


def test_weighted_sum_of_an_empty_mask_is_zero_with_a_zero_gradient() -> None:
    per_token = torch.full((1, 3), math.nan, requires_grad=True)
    total = weighted_sum(per_token, torch.full((1, 3), math.nan), torch.zeros(1, 3, dtype=torch.bool))
    total.backward()
    assert total.item() == 0.0
    assert per_token.grad is not None and per_token.grad.tolist() == [[0.0] * 3]


def test_weighted_sum_refuses_weights_that_would_broadcast() -> None:
    with pytest.raises(ValueError, match=r"expected the values' shape \(1, 3\), got \(2, 3\)"):
        weighted_sum(torch.zeros(2, 3), torch.zeros(1, 3), torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize("name", ["completions", "tokens_per_update", "max_tokens"])
@pytest.mark.parametrize("size", [0, -1, math.nan, math.inf])
def test_loss_sizes_must_be_positive_and_finite(name: str, size: float) -> None:
    sizes = {"completions": 1, "tokens_per_update": 1.0, "max_tokens": 1, name: size}
    with pytest.raises(ValueError, match=f"{name}: expected finite and above 0, got {size}"):
        LossSizes(**sizes)

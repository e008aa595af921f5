import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.objective import keep, masked_exp, masked_max, masked_mean, masked_min, masked_sum

Reduction = Callable[[Tensor, Tensor], Tensor]
REDUCTIONS = [masked_sum, masked_mean, masked_max, masked_min]
VALUES = [[1.0, -2.0, 4.0], [8.0, 16.0, -32.0]]
MASK = torch.tensor([[True, True, False], [True, False, False]])


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [(masked_sum, 7.0), (masked_mean, 7 / 3), (masked_max, 8.0), (masked_min, -2.0)],
)
def test_only_what_is_kept_counts(reduction: Reduction, expected: float) -> None:
    assert reduction(torch.tensor(VALUES), MASK).item() == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        (masked_sum, [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]),
        (masked_mean, [[1 / 3, 1 / 3, 0.0], [1 / 3, 0.0, 0.0]]),
        (masked_max, [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]),
        (masked_min, [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
    ],
)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_under_the_mask_reach_neither_value_nor_gradient(
    reduction: Reduction, expected: list[list[float]], poison: float
) -> None:
    clean = reduction(torch.tensor(VALUES), MASK)
    values = torch.tensor(VALUES).masked_fill(~MASK, poison).requires_grad_()
    result = reduction(values, MASK)
    result.backward()
    assert result.item() == clean.item()
    torch.testing.assert_close(values.grad, torch.tensor(expected))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("fill", [3.0, math.nan])
def test_an_empty_mask_gives_exactly_zero_and_a_zero_gradient(reduction: Reduction, fill: float) -> None:
    values = torch.full((2, 3), fill, requires_grad=True)
    result = reduction(values, torch.zeros(2, 3, dtype=torch.bool))
    result.backward()
    assert result.item() == 0.0
    assert values.grad is not None and values.grad.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_values_at_all_are_an_empty_mask(reduction: Reduction) -> None:
    assert reduction(torch.zeros(0, 4), torch.zeros(0, 4, dtype=torch.bool)).item() == 0.0


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_nan_that_is_kept_is_not_hidden(reduction: Reduction) -> None:
    values = torch.tensor([1.0, math.nan])
    assert math.isnan(reduction(values, torch.tensor([True, True])).item())


def test_masking_before_exp_leaves_a_finite_gradient_where_masking_after_does_not() -> None:
    loss_mask = torch.tensor([True, False])
    before = torch.tensor([0.5, 1000.0], requires_grad=True)
    after = torch.tensor([0.5, 1000.0], requires_grad=True)
    masked_exp(before, loss_mask).sum().backward()
    masked_sum(after.exp(), loss_mask).backward()
    assert before.grad is not None and after.grad is not None
    torch.testing.assert_close(before.grad, torch.tensor([math.exp(0.5), 0.0]))
    assert math.isnan(after.grad[1].item())


def test_masked_exp_is_one_under_the_mask_and_finite_squared_at_its_bound() -> None:
    ratio = masked_exp(torch.tensor([math.log(3.0), 1000.0, math.nan]), torch.tensor([True, True, False]))
    assert ratio[0].item() == pytest.approx(3.0)
    assert ratio[1].item() == pytest.approx(math.exp(40.0), rel=1e-5)
    assert ratio.square().isfinite().all()
    assert ratio[2].item() == 1.0


def test_a_mask_that_is_not_boolean_or_would_broadcast_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected torch.bool, got torch.float32"):
        keep(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"expected the values' shape \(2, 3\), got \(1, 3\)"):
        masked_mean(torch.zeros(2, 3), torch.ones(1, 3, dtype=torch.bool))

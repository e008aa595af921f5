import math

import pytest
import torch

from rookworld_rlvr.objective import keep, masked_exp

VALUES = [[1.0, -2.0, 4.0], [8.0, 16.0, -32.0]]
MASK = torch.tensor([[True, True, False], [True, False, False]])


@pytest.mark.parametrize("poison", [5.0, math.nan, math.inf, -math.inf])
def test_keep_zeroes_masked_values_and_their_gradient(poison: float) -> None:
    values = torch.tensor(VALUES).masked_fill(~MASK, poison).requires_grad_()
    kept = keep(values, MASK)
    assert kept.tolist() == [[1.0, -2.0, 0.0], [8.0, 0.0, 0.0]]
    kept.square().sum().backward()
    assert values.grad is not None and values.grad.tolist() == [[2.0, -4.0, 0.0], [16.0, 0.0, 0.0]]


def test_keep_does_not_hide_unmasked_nan() -> None:
    kept = keep(torch.tensor([1.0, math.nan]), torch.tensor([True, True]))
    assert kept[0].item() == 1.0 and math.isnan(kept[1].item())


def test_masking_before_exp_keeps_gradient_finite_unlike_masking_after() -> None:
    loss_mask = torch.tensor([True, False])
    before = torch.tensor([0.5, 1000.0], requires_grad=True)
    after = torch.tensor([0.5, 1000.0], requires_grad=True)
    masked_exp(before, loss_mask).sum().backward()
    keep(after.exp(), loss_mask).sum().backward()
    assert before.grad is not None and after.grad is not None
    torch.testing.assert_close(before.grad, torch.tensor([math.exp(0.5), 0.0]))
    assert math.isnan(after.grad[1].item())


def test_masked_exp_is_one_under_the_mask_and_capped_at_exp_40() -> None:
    ratio = masked_exp(torch.tensor([math.log(3.0), 1000.0, math.nan]), torch.tensor([True, True, False]))
    assert ratio[0].item() == pytest.approx(3.0)
    assert ratio[1].item() == pytest.approx(math.exp(40.0), rel=1e-5)
    assert ratio.square().isfinite().all()
    assert ratio[2].item() == 1.0


def test_non_boolean_or_broadcasting_mask_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected torch.bool, got torch.float32"):
        keep(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"expected the values' shape \(2, 3\), got \(1, 3\)"):
        keep(torch.zeros(2, 3), torch.ones(1, 3, dtype=torch.bool))

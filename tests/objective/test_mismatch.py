"""Hand-computed weights. Row 1 has the ratios 1.5, 3, 0.25, row 2 has 2 and 1.2."""

import math

import pytest
import torch

from rookworld_rlvr.objective import LossKind, ObjectiveConfig, mismatch_weights

RATIOS = torch.tensor([[1.5, 3.0, 0.25, 9.0], [2.0, 1.2, 9.0, 9.0], [9.0, 9.0, 9.0, 9.0]], dtype=torch.float64)
LOSS_MASK = torch.tensor([[True, True, True, False], [True, True, False, False], [False] * 4])
SAMPLER = torch.full((3, 4), -2.5, dtype=torch.float64)
CAPS = [0.0, 1.9, math.inf]


@pytest.mark.parametrize(
    ("cap", "first", "second"),
    [
        (0.0, [1.0, 1.0, 1.0], [1.0, 1.0]),
        (1.9, [1.5, 1.9, 0.25], [1.9, 1.2]),
        (2.5, [1.5, 2.5, 0.25], [2.0, 1.2]),
        (math.inf, [1.5, 3.0, 0.25], [2.0, 1.2]),
    ],
)
def test_mismatch_weights_equal_hand_computed_ones(cap: float, first: list[float], second: list[float]) -> None:
    expected = torch.tensor([[*first, 1.0], [*second, 1.0, 1.0], [1.0] * 4], dtype=torch.float64)
    torch.testing.assert_close(
        mismatch_weights(SAMPLER + RATIOS.log(), SAMPLER, loss_mask=LOSS_MASK, cap=cap), expected
    )


@pytest.mark.parametrize("cap", CAPS)
def test_equal_logprobs_give_mismatch_weight_of_one(cap: float) -> None:
    same = mismatch_weights(SAMPLER, SAMPLER.clone(), loss_mask=LOSS_MASK, cap=cap)
    assert same.tolist() == [[1.0] * 4] * 3


def test_mismatch_correction_truncates_at_two_by_default_and_can_be_off() -> None:
    assert ObjectiveConfig().mismatch_cap == 2.0
    assert ObjectiveConfig(mismatch_cap=0.0).mismatch_cap == 0.0


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_masked_out_values_have_no_effect(cap: float, poison: float) -> None:
    old, loss_mask = torch.tensor([[-1.0, poison, -2.0]]), torch.tensor([[True, False, True]])
    got = mismatch_weights(old, torch.tensor([[-1.0, -1.0, -2.0]]), loss_mask=loss_mask, cap=cap)
    assert got.tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize(("cap", "weight"), [(2.0, 2.0), (math.inf, math.exp(40))])
def test_overflowing_ratio_is_truncated_at_the_cap_or_at_exp_40(cap: float, weight: float) -> None:
    old, sampler = torch.zeros(1, 3), torch.full((1, 3), -1000.0)
    got = mismatch_weights(old, sampler, loss_mask=torch.ones(1, 3, dtype=torch.bool), cap=cap)
    assert got.flatten().tolist() == pytest.approx([weight] * 3, rel=1e-5)


@pytest.mark.parametrize("cap", CAPS)
def test_mismatch_weights_carry_no_gradient(cap: float) -> None:
    old = SAMPLER.clone().requires_grad_()
    assert not mismatch_weights(old, SAMPLER, loss_mask=LOSS_MASK, cap=cap).requires_grad


def test_uncapped_weights_are_unbiased_for_a_token_but_not_for_its_text() -> None:
    """Compare E_sampler[weight · f] with E_trainer[f] over all four texts of two independent binary tokens."""
    trainer, sampler = torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([[0.5, 0.5], [0.8, 0.2]])
    texts = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    position = torch.arange(2)
    old, drawn = trainer[position, texts].log(), sampler[position, texts].log()
    weights_BT = mismatch_weights(old, drawn, loss_mask=torch.ones(4, 2, dtype=torch.bool), cap=math.inf)
    of_text_B = torch.tensor([1.0, -2.0, 0.5, 3.0])
    for column in range(2):
        of_token_B = torch.tensor([1.0, -2.0])[texts[:, column]]
        for value_B, exact in ((of_token_B, True), (of_text_B, False)):
            true = (old.sum(-1).exp() * value_B).sum()
            got = (drawn.sum(-1).exp() * weights_BT[:, column] * value_B).sum()
            assert (abs(got - true).item() < 1e-6) is exact


@pytest.mark.parametrize("cap", [1.0, 0.5, -1.0, math.nan])
def test_mismatch_cap_must_exceed_one_or_be_zero(cap: float) -> None:
    with pytest.raises(ValueError, match=r"objective\.mismatch_cap: expected above 1, or 0 for off, got"):
        ObjectiveConfig(mismatch_cap=cap)


def test_gspo_refuses_a_correction_of_each_token() -> None:
    with pytest.raises(ValueError, match=r"loss=gspo: expected objective\.mismatch_cap=0, .* got 2\.0"):
        ObjectiveConfig(loss=LossKind.gspo)
    assert ObjectiveConfig(loss=LossKind.gspo, mismatch_cap=0.0).loss is LossKind.gspo


def test_mismatched_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected old and sampler logprobs \(B, T\), got \(3, 4\) and \(3, 2\)"):
        mismatch_weights(SAMPLER, SAMPLER[:, :2], loss_mask=LOSS_MASK, cap=2.0)

"""Hand-computed weights. Row 1 has the ratios 1.5, 3, 0.25 (product 1.125), row 2 has 2 and 1.2 (product 2.4)."""

import math

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.objective import MismatchConfig, MismatchMode, mismatch_weights

RATIOS = torch.tensor([[1.5, 3.0, 0.25, 9.0], [2.0, 1.2, 9.0, 9.0], [9.0, 9.0, 9.0, 9.0]], dtype=torch.float64)
LOSS_MASK = torch.tensor([[True, True, True, False], [True, True, False, False], [False] * 4])
SAMPLER = torch.full((3, 4), -2.5, dtype=torch.float64)


def weights(mode: MismatchMode, cap: float = 1.9) -> Tensor:
    return mismatch_weights(
        SAMPLER + RATIOS.log(), SAMPLER, loss_mask=LOSS_MASK, config=MismatchConfig(mode=mode, cap=cap)
    )


@pytest.mark.parametrize(
    ("mode", "first", "second"),
    [
        (MismatchMode.off, [1.0, 1.0, 1.0], [1.0, 1.0]),
        (MismatchMode.token_truncate, [1.5, 1.9, 0.25], [1.9, 1.2]),
        (MismatchMode.token_mask, [1.5, 0.0, 0.0], [0.0, 1.2]),
        (MismatchMode.sequence_truncate, [1.125] * 3, [1.9] * 2),
        (MismatchMode.sequence_mask, [1.125] * 3, [0.0] * 2),
    ],
)
def test_mismatch_weights_equal_hand_computed_ones(mode: MismatchMode, first: list[float], second: list[float]) -> None:
    expected = torch.tensor([[*first, 1.0], [*second, 1.0, 1.0], [1.0] * 4], dtype=torch.float64)
    torch.testing.assert_close(weights(mode), expected)


@pytest.mark.parametrize(("cap", "kept"), [(1.9, [1.5, 0.0, 0.0]), (3.9, [1.5, 3.0, 0.0]), (4.1, [1.5, 3.0, 0.25])])
def test_icepop_mask_drops_ratios_above_cap_and_below_its_inverse(cap: float, kept: list[float]) -> None:
    config = MismatchConfig(MismatchMode.token_mask, cap=cap)
    factors = mismatch_weights(SAMPLER + RATIOS.log(), SAMPLER, loss_mask=LOSS_MASK, config=config)
    assert factors[0].tolist() == pytest.approx([*kept, 1.0])


def test_sequence_mask_drops_improbable_completions() -> None:
    rare = SAMPLER + torch.tensor(0.3).log()
    config = MismatchConfig(MismatchMode.sequence_mask, cap=2.0)
    factors = mismatch_weights(rare, SAMPLER, loss_mask=LOSS_MASK, config=config)
    assert factors.tolist() == [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0], [1.0] * 4]


@pytest.mark.parametrize("mode", list(MismatchMode))
def test_equal_logprobs_give_mismatch_weight_of_one(mode: MismatchMode) -> None:
    same = mismatch_weights(SAMPLER, SAMPLER.clone(), loss_mask=LOSS_MASK, config=MismatchConfig(mode=mode))
    assert same.tolist() == [[1.0] * 4] * 3


@pytest.mark.parametrize("mode", [MismatchMode.token_truncate, MismatchMode.sequence_truncate])
def test_an_infinite_cap_is_plain_importance_sampling(mode: MismatchMode) -> None:
    product = mode is MismatchMode.sequence_truncate
    assert weights(mode, math.inf)[1, :2].tolist() == pytest.approx([2.4, 2.4] if product else [2.0, 1.2])


def test_default_mismatch_mode_truncates_token_ratios_at_two() -> None:
    assert MismatchConfig() == MismatchConfig(mode=MismatchMode.token_truncate, cap=2.0)


@pytest.mark.parametrize("mode", list(MismatchMode))
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_masked_out_values_have_no_effect(mode: MismatchMode, poison: float) -> None:
    old, loss_mask = torch.tensor([[-1.0, poison, -2.0]]), torch.tensor([[True, False, True]])
    got = mismatch_weights(old, torch.tensor([[-1.0, -1.0, -2.0]]), loss_mask=loss_mask, config=MismatchConfig(mode))
    assert got.tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize(("mode", "weight"), [(MismatchMode.sequence_truncate, 2.0), (MismatchMode.sequence_mask, 0.0)])
def test_overflowing_sequence_ratio_is_truncated_or_masked(mode: MismatchMode, weight: float) -> None:
    old, sampler = torch.zeros(1, 3), torch.full((1, 3), -80.0)
    config = MismatchConfig(mode=mode)
    got = mismatch_weights(old, sampler, loss_mask=torch.ones(1, 3, dtype=torch.bool), config=config)
    assert got.tolist() == [[weight] * 3]


@pytest.mark.parametrize("mode", list(MismatchMode))
def test_mismatch_weights_carry_no_gradient(mode: MismatchMode) -> None:
    old = SAMPLER.clone().requires_grad_()
    assert not mismatch_weights(old, SAMPLER, loss_mask=LOSS_MASK, config=MismatchConfig(mode)).requires_grad


def test_uncapped_sequence_weights_are_unbiased_but_token_weights_not() -> None:
    """Compare E_sampler[weight · f] with E_trainer[f] over all four texts of two independent binary tokens."""
    trainer, sampler = torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([[0.5, 0.5], [0.8, 0.2]])
    texts = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    position = torch.arange(2)
    old, drawn = trainer[position, texts].log(), sampler[position, texts].log()
    reward_B = torch.tensor([1.0, -2.0, 0.5, 3.0])
    true = (old.sum(-1).exp() * reward_B).sum()
    for mode, exact in ((MismatchMode.sequence_truncate, True), (MismatchMode.token_truncate, False)):
        config = MismatchConfig(mode=mode, cap=math.inf)
        weights_BT = mismatch_weights(old, drawn, loss_mask=torch.ones(4, 2, dtype=torch.bool), config=config)
        for column in range(2):
            got = (drawn.sum(-1).exp() * weights_BT[:, column] * reward_B).sum()
            assert (abs(got - true).item() < 1e-6) is exact


@pytest.mark.parametrize("cap", [1.0, 0.5, -1.0, math.nan])
def test_mismatch_cap_must_exceed_one(cap: float) -> None:
    with pytest.raises(ValueError, match="cap: expected above 1"):
        MismatchConfig(cap=cap)


def test_mismatched_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected old and sampler logprobs \(B, T\), got \(3, 4\) and \(3, 2\)"):
        mismatch_weights(SAMPLER, SAMPLER[:, :2], loss_mask=LOSS_MASK, config=MismatchConfig())

"""KL terms against hand-computed values, under masks and with invalid arguments.

`test_kl_table` compares them with the true KL. The pair used here is p = (1/2, 1/4, 1/4) and q = (1/4, 1/4, 1/2):
KL(p‖q) = 1/2 ln 2 - 1/4 ln 2 = 1/4 ln 2, and its gradient by the logits is p·(ln p/q - KL) =
ln 2 · (3/8, -1/16, -5/16). KL(q‖p) has the gradient p - q = (1/4, 0, -1/4).
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.objective import KLConfig, KLForm, KLInputs, kl_k1, kl_k2, kl_k3, kl_penalty

Estimator = Callable[[Tensor, Tensor], Tensor]
LN2 = math.log(2.0)
P = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
Q = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
KL_PQ = 0.25 * LN2
GRADIENT_KL_PQ = [0.375 * LN2, -0.0625 * LN2, -0.3125 * LN2]


def policy_logits() -> Tensor:
    """Return the logits of p, shifted by a constant, as a leaf tensor."""
    return (P.log() + 0.7).requires_grad_()


def expectation(term: Estimator, logits: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
    """Return value and gradient of E[term(logprob, ref_logprob)]. The sampling itself is not differentiated."""
    logprobs = torch.log_softmax(logits, -1)
    value = (logprobs.detach().exp() * term(logprobs, ref.log())).sum()
    (gradient,) = torch.autograd.grad(value, logits)
    return value.detach(), gradient


def penalty(form: KLForm, logprobs: Tensor, ref_logprobs: Tensor, log_ratio: Tensor | None = None) -> Tensor:
    inputs = KLInputs(logprobs, ref_logprobs, torch.zeros_like(logprobs) if log_ratio is None else log_ratio)
    return kl_penalty(form, inputs, loss_mask=torch.ones_like(logprobs, dtype=torch.bool))


def straight_through(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return penalty(KLForm.k2_straight_through, logprobs, ref_logprobs)


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        (kl_k1, KL_PQ, [0.0, 0.0, 0.0]),
        (kl_k2, 0.375 * LN2**2, GRADIENT_KL_PQ),
        (kl_k3, KL_PQ, [0.25, 0.0, -0.25]),
        (straight_through, KL_PQ, GRADIENT_KL_PQ),
    ],
)
def test_kl_value_and_gradient_equal_hand_computed_ones(
    estimator: Estimator, value: float, gradient: list[float]
) -> None:
    got_value, got_gradient = expectation(estimator, policy_logits(), Q)
    assert got_value.item() == pytest.approx(value, abs=1e-12)
    assert got_gradient.tolist() == pytest.approx(gradient, abs=1e-12)


def test_straight_through_has_value_of_k3_and_gradient_of_k2() -> None:
    logprobs = torch.tensor([[-0.1, -5.0], [-2.0, -0.7]], dtype=torch.float64, requires_grad=True)
    ref_logprobs = torch.tensor([[-1.1, -1.0], [-2.0, -0.2]], dtype=torch.float64)
    term = straight_through(logprobs, ref_logprobs)
    term.sum().backward()
    # Δ = -1, 4, 0, 0.5: e^Δ - Δ - 1 and -Δ.
    expected = torch.tensor([[math.exp(-1), math.exp(4) - 5], [0.0, math.exp(0.5) - 1.5]], dtype=torch.float64)
    torch.testing.assert_close(term.detach(), expected, rtol=1e-12, atol=0)
    assert logprobs.grad is not None
    assert logprobs.grad.flatten().tolist() == pytest.approx([1.0, -4.0, 0.0, -0.5], abs=1e-12)


def test_k3_of_tiny_difference_keeps_precision_in_float32() -> None:
    value = kl_k3(torch.tensor([-1e-3]), torch.tensor([0.0])).item()
    assert value == pytest.approx(0.5e-6, rel=2e-3)


@pytest.mark.parametrize("estimator", [kl_k1, kl_k2, kl_k3, straight_through])
def test_kl_of_equal_policies_is_exactly_zero(estimator: Estimator) -> None:
    logprobs = torch.tensor([-0.1, -3.3, -88.0])
    assert estimator(logprobs, logprobs.clone()).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1000.0])
@pytest.mark.parametrize(
    ("form", "value", "gradient"),
    [
        # Δ = -2 and a ratio of 3.
        (KLForm.k2_straight_through, 3 * (math.exp(-2) + 1), 3 * 2.0),
        (KLForm.k3_naive, math.exp(-2) + 1, 1 - math.exp(-2)),
        (KLForm.exact, 0.25, 1.0),
        (KLForm.in_reward, 0.0, 0.0),
        (KLForm.off, 0.0, 0.0),
    ],
)
def test_masked_out_values_have_no_effect(poison: float, form: KLForm, value: float, gradient: float) -> None:
    logprobs = torch.tensor([[-1.0, poison]], requires_grad=True)
    kl_exact = torch.tensor([[0.25, poison]], requires_grad=True)
    inputs = KLInputs(
        logprobs,
        torch.tensor([[-3.0, poison]]),
        log_ratio=torch.tensor([[math.log(3.0), poison]]),
        kl_exact=kl_exact,
    )
    term = kl_penalty(form, inputs, loss_mask=torch.tensor([[True, False]]), token_clamp=5.0)
    (term.sum() + 0.0 * (logprobs[0, 0] + kl_exact[0, 0])).backward()
    assert term.tolist()[0] == pytest.approx([value, 0.0], rel=1e-6)
    leaf = kl_exact if form is KLForm.exact else logprobs
    assert leaf.grad is not None
    assert leaf.grad.tolist()[0] == pytest.approx([gradient, 0.0], rel=1e-6)


def test_kl_importance_ratio_gets_no_gradient() -> None:
    log_ratio = torch.tensor([0.5], requires_grad=True)
    logprobs = torch.tensor([-1.0], requires_grad=True)
    for form in (KLForm.k2_straight_through, KLForm.k3_naive):
        penalty(form, logprobs, torch.tensor([-2.0]), log_ratio).sum().backward()
    assert log_ratio.grad is None


def test_exact_form_without_exact_kl_is_refused() -> None:
    with pytest.raises(ValueError, match="kl_exact: expected a tensor for the form exact, got None"):
        penalty(KLForm.exact, torch.zeros(1), torch.zeros(1))


@pytest.mark.parametrize("token_clamp", [0.0, -1.0, math.nan])
def test_token_clamp_must_be_positive(token_clamp: float) -> None:
    with pytest.raises(ValueError, match="token_clamp: expected above 0"):
        kl_penalty(
            KLForm.k2_straight_through,
            KLInputs(torch.zeros(1), torch.zeros(1), log_ratio=torch.zeros(1)),
            loss_mask=torch.ones(1, dtype=torch.bool),
            token_clamp=token_clamp,
        )


@pytest.mark.parametrize("form", list(KLForm))
def test_only_the_form_off_has_coefficient_zero_at_every_step(form: KLForm) -> None:
    coefficients = [KLConfig(form, coef=0.2, warmup_steps=4).coefficient(step) for step in (0, 1, 4, 9)]
    assert coefficients == pytest.approx([0.0] * 4 if form is KLForm.off else [0.0, 0.05, 0.2, 0.2])

"""Every claim about values and gradients, by enumeration in float64 instead of sampling.

The hand-checked pair is p = (1/2, 1/4, 1/4) and q = (1/4, 1/4, 1/2):
KL(p‖q) = 1/2 ln 2 - 1/4 ln 2 = 1/4 ln 2, and its gradient by the logits is p·(ln p/q - KL) =
ln 2 · (3/8, -1/16, -5/16). KL(q‖p) has the gradient p - q = (1/4, 0, -1/4).
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.objective import KLForm, kl_k1, kl_k2, kl_k3, kl_penalty

Estimator = Callable[[Tensor, Tensor], Tensor]
LN2 = math.log(2.0)
P = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
Q = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
KL_PQ = 0.25 * LN2
GRADIENT_KL_PQ = [0.375 * LN2, -0.0625 * LN2, -0.3125 * LN2]


def policy_logits() -> Tensor:
    """Logits of p, off by a constant, as a leaf."""
    return (P.log() + 0.7).requires_grad_()


def expectation(
    term: Estimator, logits: Tensor, ref: Tensor, sampled_from: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Value and gradient of E[term(logprob, ref_logprob)], the samples themselves not differentiated."""
    logprobs = torch.log_softmax(logits, -1)
    weights = logprobs.detach().exp() if sampled_from is None else sampled_from
    value = (weights * term(logprobs, ref.log())).sum()
    (gradient,) = torch.autograd.grad(value, logits)
    return value.detach(), gradient


def penalty(form: KLForm, logprobs: Tensor, ref_logprobs: Tensor, log_ratio: Tensor | None = None) -> Tensor:
    return kl_penalty(
        form,
        logprobs,
        ref_logprobs,
        kl_exact=None,
        log_ratio=torch.zeros_like(logprobs) if log_ratio is None else log_ratio,
        loss_mask=torch.ones_like(logprobs, dtype=torch.bool),
    )


def straight_through(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    return penalty(KLForm.k2_straight_through, logprobs, ref_logprobs)


def random_pair() -> tuple[Tensor, Tensor, Tensor]:
    """Logits of a policy, an old policy and a reference over seven tokens, far apart."""
    generator = torch.Generator().manual_seed(0)
    logits, old, ref = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.softmax(old, -1), torch.softmax(1.5 * ref, -1)


def true_gradient(logits: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
    """KL(policy‖reference) over all tokens and its gradient, by autograd through torch's own kl_div."""
    logprobs = torch.log_softmax(logits, -1)
    value = torch.nn.functional.kl_div(ref.log(), logprobs, log_target=True, reduction="sum")
    (gradient,) = torch.autograd.grad(value, logits)
    return value.detach(), gradient


@pytest.mark.parametrize("choice", list(KLForm))
def test_each_choice_is_spelled_as_it_is_named(choice: KLForm) -> None:
    assert choice.name == choice.value


@pytest.mark.parametrize(
    ("estimator", "value", "gradient"),
    [
        (kl_k1, KL_PQ, [0.0, 0.0, 0.0]),
        (kl_k2, 0.375 * LN2**2, GRADIENT_KL_PQ),
        (kl_k3, KL_PQ, [0.25, 0.0, -0.25]),
        (straight_through, KL_PQ, GRADIENT_KL_PQ),
    ],
)
def test_expected_value_and_gradient_by_hand(
    estimator: Estimator, value: float, gradient: list[float]
) -> None:
    got_value, got_gradient = expectation(estimator, policy_logits(), Q)
    assert got_value.item() == pytest.approx(value, abs=1e-12)
    assert got_gradient.tolist() == pytest.approx(gradient, abs=1e-12)


def test_k1_and_k3_are_unbiased_and_k2_is_not() -> None:
    logits, _, ref = random_pair()
    true_value, _ = true_gradient(logits, ref)
    values = [expectation(estimator, logits, ref)[0].item() for estimator in (kl_k1, kl_k3, kl_k2)]
    assert values[:2] == pytest.approx([true_value.item()] * 2, abs=1e-10)
    assert abs(values[2] - true_value.item()) > 0.1


def test_k1_in_the_loss_does_nothing_in_expectation() -> None:
    logits, _, ref = random_pair()
    assert expectation(kl_k1, logits, ref)[1].abs().max() < 1e-10


def test_k2_has_exactly_the_gradient_of_kl_policy_reference() -> None:
    logits, _, ref = random_pair()
    torch.testing.assert_close(
        expectation(kl_k2, logits, ref)[1], true_gradient(logits, ref)[1], rtol=0, atol=1e-10
    )


def test_k3_has_the_gradient_of_the_other_direction() -> None:
    logits, _, ref = random_pair()
    gradient = expectation(kl_k3, logits, ref)[1]
    other = torch.softmax(logits.detach(), -1) - ref
    torch.testing.assert_close(gradient, other, rtol=0, atol=1e-10)
    assert torch.cosine_similarity(gradient, true_gradient(logits, ref)[1], dim=0) < 0.9


def test_the_fix_of_hypothesis_h03_is_chi_squared_less_the_kl() -> None:
    def fix(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        return kl_k3(ref_logprobs, logprobs)  # e^-Δ + Δ - 1

    value, gradient = expectation(fix, policy_logits(), Q)
    assert value.item() == pytest.approx(0.375 - KL_PQ, abs=1e-12)  # χ² = 1 + 1/4 + 1/8 - 1
    # By the log-prob e^-Δ - 1 = (1, 0, -1/2), of mean 3/8; neither KL's gradient.
    assert gradient.tolist() == pytest.approx([0.5 - 0.1875, -0.09375, -0.125 - 0.09375], abs=1e-12)


@pytest.mark.parametrize("estimator", [kl_k1, kl_k3])
def test_a_differentiable_ratio_makes_k1_and_k3_exact(estimator: Estimator) -> None:
    def weighted(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        return (logprobs - logprobs.detach()).exp() * estimator(logprobs, ref_logprobs)

    logits, _, ref = random_pair()
    torch.testing.assert_close(
        expectation(weighted, logits, ref)[1], true_gradient(logits, ref)[1], rtol=0, atol=1e-10
    )


@pytest.mark.parametrize(("estimator", "exact"), [(kl_k1, True), (kl_k3, False)])
def test_in_the_reward_k1_is_exact_and_k3_is_not(estimator: Estimator, exact: bool) -> None:
    def in_reward(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        return estimator(logprobs, ref_logprobs).detach() * logprobs

    logits, _, ref = random_pair()
    error = (expectation(in_reward, logits, ref)[1] - true_gradient(logits, ref)[1]).norm()
    assert error < 1e-10 if exact else error > 0.1


def test_straight_through_has_the_value_of_k3_and_the_gradient_of_k2_token_by_token() -> None:
    logprobs = torch.tensor([[-0.1, -5.0], [-2.0, -0.7]], dtype=torch.float64, requires_grad=True)
    ref_logprobs = torch.tensor([[-1.1, -1.0], [-2.0, -0.2]], dtype=torch.float64)
    term = straight_through(logprobs, ref_logprobs)
    term.sum().backward()
    # Δ = -1, 4, 0, 0.5: e^Δ - Δ - 1 and -Δ.
    expected = torch.tensor(
        [[math.exp(-1), math.exp(4) - 5], [0.0, math.exp(0.5) - 1.5]], dtype=torch.float64
    )
    torch.testing.assert_close(term.detach(), expected, rtol=1e-12, atol=0)
    assert logprobs.grad is not None
    assert logprobs.grad.flatten().tolist() == pytest.approx([1.0, -4.0, 0.0, -0.5], abs=1e-12)


def test_off_policy_the_detached_ratio_makes_value_and_gradient_exact() -> None:
    logits, old, ref = random_pair()
    true_value, gradient = true_gradient(logits, ref)

    def weighted(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        return penalty(KLForm.k2_straight_through, logprobs, ref_logprobs, logprobs - old.log())

    got_value, got_gradient = expectation(weighted, logits, ref, sampled_from=old)
    assert got_value.item() == pytest.approx(true_value.item(), abs=1e-10)
    torch.testing.assert_close(got_gradient, gradient, rtol=0, atol=1e-10)
    unweighted = expectation(straight_through, logits, ref, sampled_from=old)[1]
    assert (unweighted - gradient).norm() > 0.1


def test_k3_of_a_tiny_difference_is_half_its_square_and_never_drowned_in_float32() -> None:
    value = kl_k3(torch.tensor([-1e-3]), torch.tensor([0.0])).item()
    assert value == pytest.approx(0.5e-6, rel=2e-3)


@pytest.mark.parametrize("estimator", [kl_k1, kl_k2, kl_k3, straight_through])
def test_equal_policies_give_exactly_zero(estimator: Estimator) -> None:
    logprobs = torch.tensor([-0.1, -3.3, -88.0])
    assert estimator(logprobs, logprobs.clone()).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1000.0])
@pytest.mark.parametrize(
    ("form", "value", "gradient"),
    [
        # Δ = -2 and a ratio of 3.
        (KLForm.k2_straight_through, 3 * (math.exp(-2) + 1), 3 * 2.0),
        (KLForm.ratio_corrected, 3 * (math.exp(-2) + 1), 3 * 2.0),
        (KLForm.k3_naive, math.exp(-2) + 1, 1 - math.exp(-2)),
        (KLForm.exact, 0.25, 1.0),
        (KLForm.in_reward, 0.0, 0.0),
    ],
)
def test_whatever_lies_under_the_mask_is_harmless(poison: float, form: KLForm, value: float, gradient: float) -> None:
    logprobs = torch.tensor([[-1.0, poison]], requires_grad=True)
    kl_exact = torch.tensor([[0.25, poison]], requires_grad=True)
    term = kl_penalty(
        form,
        logprobs,
        torch.tensor([[-3.0, poison]]),
        kl_exact=kl_exact,
        log_ratio=torch.tensor([[math.log(3.0), poison]]),
        loss_mask=torch.tensor([[True, False]]),
        token_clamp=5.0,
    )
    (term.sum() + 0.0 * (logprobs[0, 0] + kl_exact[0, 0])).backward()
    assert term.tolist()[0] == pytest.approx([value, 0.0], rel=1e-6)
    leaf = kl_exact if form is KLForm.exact else logprobs
    assert leaf.grad is not None
    assert leaf.grad.tolist()[0] == pytest.approx([gradient, 0.0], rel=1e-6)


def test_the_weight_gets_no_gradient() -> None:
    log_ratio = torch.tensor([0.5], requires_grad=True)
    logprobs = torch.tensor([-1.0], requires_grad=True)
    for form in (KLForm.k2_straight_through, KLForm.ratio_corrected, KLForm.k3_naive):
        penalty(form, logprobs, torch.tensor([-2.0]), log_ratio).sum().backward()
    assert log_ratio.grad is None


def test_exact_without_the_exact_kl_is_refused() -> None:
    with pytest.raises(ValueError, match="kl_exact: expected a tensor for the form exact, got None"):
        penalty(KLForm.exact, torch.zeros(1), torch.zeros(1))


@pytest.mark.parametrize("token_clamp", [0.0, -1.0, math.nan])
def test_a_token_clamp_that_is_not_above_zero_is_refused(token_clamp: float) -> None:
    with pytest.raises(ValueError, match="token_clamp: expected above 0"):
        kl_penalty(
            KLForm.k2_straight_through,
            torch.zeros(1),
            torch.zeros(1),
            kl_exact=None,
            log_ratio=torch.zeros(1),
            loss_mask=torch.ones(1, dtype=torch.bool),
            token_clamp=token_clamp,
        )

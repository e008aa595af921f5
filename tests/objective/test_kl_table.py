"""Value and gradient of each KL term over one softmax of five tokens, enumerated.

With Δ = ref_logprob - logprob and the true KL(policy‖reference) 0.9959:

| term | value | gradient in the loss |
|---|---|---|
| k1 | 0.9959 | 0 |
| k2 | 1.256 | exact |
| k3 | 0.9959 | of KL(reference‖policy), cosine 0.456 |
| e^-Δ + Δ - 1 | 3.874 = χ² - KL | of neither KL, relative error 5.9 |
| differentiable ratio × k1 or k3 | 0.9959 | exact |
| k1 in the reward | | exact |
| k3 in the reward | | wrong |
| full vocabulary | exact | exact |
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.objective import KLForm, KLInputs, kl_k1, kl_k2, kl_k3, kl_penalty, sequence_kl

Term = Callable[[Tensor, Tensor], Tensor]
POLICY = torch.tensor([-0.0277, 1.6709, -1.1868, 1.75, 0.0], dtype=torch.float64)
REFERENCE = torch.tensor([-4.3602, -0.7269, 1.2142, 0.7712, 0.0], dtype=torch.float64)
OLD = torch.tensor([0.5, 1.2, -1.0, 1.1, 0.3], dtype=torch.float64)
REF = torch.log_softmax(REFERENCE, -1)
TRUE_KL = 0.9959


def true_gradient(reverse: bool = False) -> Tensor:
    """Return ∇KL(policy‖reference), or ∇KL(reference‖policy) if `reverse`, computed by torch's kl_div."""
    logits = POLICY.clone().requires_grad_()
    logprobs = torch.log_softmax(logits, -1)
    pair = (logprobs, REF) if reverse else (REF, logprobs)
    value = torch.nn.functional.kl_div(*pair, log_target=True, reduction="sum")
    return torch.autograd.grad(value, logits)[0]


def enumerated(term: Term, old: Tensor | None = None) -> tuple[float, Tensor]:
    """Return value and gradient of the term, expected over tokens of the policy or of the `old` logits."""
    logits = POLICY.clone().requires_grad_()
    logprobs = torch.log_softmax(logits, -1)
    value = (torch.softmax(POLICY if old is None else old, -1) * term(logprobs, REF)).sum()
    return value.item(), torch.autograd.grad(value, logits)[0]


def penalty(form: KLForm, old: Tensor | None = None) -> Term:
    old_logprobs = torch.log_softmax(POLICY if old is None else old, -1)

    def term(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        inputs = KLInputs(
            logprobs,
            ref_logprobs,
            log_ratio=logprobs - old_logprobs,
            # The exact KL is the same for every drawn token.
            kl_exact=(logprobs.exp() * (logprobs - ref_logprobs)).sum().expand(5),
        )
        return kl_penalty(form, inputs, loss_mask=torch.ones(5, dtype=torch.bool))

    return term


def inverse_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    delta = ref_logprobs - logprobs
    return torch.exp(-delta) + delta - 1


def times_ratio(estimator: Term) -> Term:
    return lambda logprobs, ref: (logprobs - logprobs.detach()).exp() * estimator(logprobs, ref)


def in_reward(estimator: Term) -> Term:
    return lambda logprobs, ref: estimator(logprobs, ref).detach() * logprobs


def relative_error(gradient: Tensor) -> float:
    return ((gradient - true_gradient()).norm() / true_gradient().norm()).item()


@pytest.mark.parametrize(
    ("term", "value", "within"),
    [
        (kl_k1, TRUE_KL, 5e-5),
        (kl_k2, 1.256, 5e-4),
        (kl_k3, TRUE_KL, 5e-5),
        (inverse_k3, 3.874, 5e-4),
        (times_ratio(kl_k1), TRUE_KL, 5e-5),
        (times_ratio(kl_k3), TRUE_KL, 5e-5),
        (penalty(KLForm.k2_straight_through), TRUE_KL, 5e-5),
        (penalty(KLForm.k3_naive), TRUE_KL, 5e-5),
        (penalty(KLForm.exact), TRUE_KL, 5e-5),
    ],
)
def test_expected_kl_values_match_the_table(term: Term, value: float, within: float) -> None:
    assert enumerated(term)[0] == pytest.approx(value, abs=within)


@pytest.mark.parametrize(
    "term",
    [
        kl_k2,
        times_ratio(kl_k1),
        times_ratio(kl_k3),
        in_reward(kl_k1),
        penalty(KLForm.k2_straight_through),
        penalty(KLForm.exact),
    ],
)
def test_kl_terms_marked_exact_have_gradient_of_true_kl(term: Term) -> None:
    torch.testing.assert_close(enumerated(term)[1], true_gradient(), rtol=0, atol=1e-12)


def test_k1_in_loss_has_zero_expected_gradient() -> None:
    assert enumerated(kl_k1)[1].abs().max() < 1e-15


@pytest.mark.parametrize("term", [kl_k3, penalty(KLForm.k3_naive)])
def test_k3_in_loss_has_gradient_of_kl_in_other_direction(term: Term) -> None:
    gradient = enumerated(term)[1]
    torch.testing.assert_close(gradient, true_gradient(reverse=True), rtol=0, atol=1e-12)
    assert torch.cosine_similarity(gradient, true_gradient(), dim=0).item() == pytest.approx(0.456, abs=5e-4)


def test_k3_of_inverse_ratio_is_chi_squared_minus_kl() -> None:
    value, gradient = enumerated(inverse_k3)
    chi_squared = (torch.softmax(POLICY, -1) ** 2 / REF.exp()).sum().item() - 1
    assert value == pytest.approx(chi_squared - enumerated(kl_k1)[0], abs=1e-12)
    assert relative_error(gradient) == pytest.approx(5.9, abs=0.05)
    assert (gradient - true_gradient(reverse=True)).norm() > true_gradient(reverse=True).norm()


def test_ratio_weighted_log_ratio_is_not_kl_on_policy_samples() -> None:
    value, gradient = enumerated(lambda logprobs, ref: (logprobs - ref).exp() * (logprobs - ref))
    # With this weight the term estimates KL(policy‖reference) from samples of the reference. On samples of the policy
    # its expectation is more than ten times as large.
    log_ratio = torch.log_softmax(POLICY, -1) - REF
    from_reference = (REF.exp() * log_ratio.exp() * log_ratio).sum()
    assert from_reference.item() == pytest.approx(TRUE_KL, abs=1e-4)
    assert value > 10 * TRUE_KL
    assert relative_error(gradient) > 1


def test_k3_in_reward_has_wrong_gradient() -> None:
    assert relative_error(enumerated(in_reward(kl_k3))[1]) > 0.5


def test_in_reward_form_adds_no_loss_and_sequence_kl_equals_k1() -> None:
    logprobs = torch.log_softmax(POLICY, -1).unsqueeze(-1).requires_grad_()
    kl_B = sequence_kl(logprobs, REF.unsqueeze(-1), torch.ones(5, 1, dtype=torch.bool))
    assert not kl_B.requires_grad
    torch.testing.assert_close(kl_B, kl_k1(logprobs, REF.unsqueeze(-1)).squeeze(-1).detach())
    assert not penalty(KLForm.in_reward)(logprobs.squeeze(-1), REF).any()


def test_importance_ratio_keeps_off_policy_kl_exact() -> None:
    value, gradient = enumerated(penalty(KLForm.k2_straight_through, OLD), OLD)
    assert value == pytest.approx(TRUE_KL, abs=5e-5)
    torch.testing.assert_close(gradient, true_gradient(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("term", [kl_k2, penalty(KLForm.k3_naive, OLD)])
def test_without_importance_ratio_off_policy_kl_gradient_differs(term: Term) -> None:
    on_policy, off_policy = enumerated(term)[1], enumerated(term, OLD)[1]
    assert (off_policy - on_policy).norm() > 0.1 * on_policy.norm()


def test_full_vocabulary_kl_needs_no_importance_ratio() -> None:
    value, gradient = enumerated(penalty(KLForm.exact, OLD), OLD)
    assert value == pytest.approx(TRUE_KL, abs=5e-5)
    torch.testing.assert_close(gradient, true_gradient(), rtol=0, atol=1e-12)

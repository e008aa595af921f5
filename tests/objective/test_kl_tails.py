"""KL terms of a token far from the reference: overflow, clamps and the linear continuation."""

import math

import pytest
import torch

from rookworld_rlvr.objective import KLForm, KLInputs, kl_k3, kl_penalty

SAMPLED = [KLForm.k2_straight_through, KLForm.k3_naive]
DELTAS = [0.001, 0.5, 2.7, 9.99, 10.01, 16.0, 39.9, 40.1, 88.8, 1000.0, 1e4]


def term_and_gradient(
    form: KLForm,
    delta: float,
    token_clamp: float = math.inf,
    log_ratio: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[float, float]:
    """Return the term of a token `delta` nat below the reference, and its derivative by the log-prob."""
    logprobs = torch.tensor([-delta], dtype=dtype, requires_grad=True)
    inputs = KLInputs(logprobs, torch.zeros(1, dtype=dtype), log_ratio=torch.tensor([log_ratio], dtype=dtype))
    term = kl_penalty(form, inputs, loss_mask=torch.tensor([True]), token_clamp=token_clamp)
    (gradient,) = torch.autograd.grad(term.sum(), logprobs)
    return term.item(), gradient.item()


@pytest.mark.parametrize("token_clamp", [math.inf, 20.0, 5.0, 0.1])
@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("form", SAMPLED)
def test_kl_penalty_is_finite_and_pulls_to_reference_up_to_10000_nat(
    form: KLForm, side: int, token_clamp: float
) -> None:
    for delta in DELTAS:
        for log_ratio in (-1.0, 0.0, 1.0):
            value, gradient = term_and_gradient(form, side * delta, token_clamp, log_ratio)
            assert math.isfinite(value) and value >= 0
            assert math.isfinite(gradient) and gradient * side < 0


@pytest.mark.parametrize("token_clamp", [math.inf, 5.0])
@pytest.mark.parametrize("form", SAMPLED)
def test_kl_value_rises_strictly_with_distance_from_reference(form: KLForm, token_clamp: float) -> None:
    for side in (1, -1):
        values = [term_and_gradient(form, side * delta, token_clamp)[0] for delta in DELTAS]
        assert values == sorted(set(values))


@pytest.mark.parametrize(
    ("delta", "value", "pull"),
    [
        (4.0, math.exp(4) - 5, math.exp(4) - 1),
        (8.0, math.exp(5) - 6 + 3 * (math.exp(5) - 1), math.exp(5) - 1),
        (-4.0, math.exp(-4) + 3, math.exp(-4) - 1),
        (-8.0, math.exp(-5) + 4 - 3 * (math.exp(-5) - 1), math.exp(-5) - 1),
    ],
)
@pytest.mark.parametrize("form", SAMPLED)
def test_kl_term_continues_linearly_beyond_the_clamp(form: KLForm, delta: float, value: float, pull: float) -> None:
    got, gradient = term_and_gradient(form, delta, token_clamp=5.0, dtype=torch.float64)
    assert got == pytest.approx(value, rel=1e-12)
    # A form with k2's gradient has the slope -Δ, which the clamp limits to ±5.
    expected = -pull if form is KLForm.k3_naive else -max(-5.0, min(5.0, delta))
    assert gradient == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", SAMPLED)
@pytest.mark.parametrize("edge", [5.0, -5.0])
def test_value_and_gradient_are_continuous_at_the_clamp(form: KLForm, edge: float) -> None:
    inside = term_and_gradient(form, edge * (1 - 1e-9), token_clamp=5.0, dtype=torch.float64)
    beyond = term_and_gradient(form, edge * (1 + 1e-9), token_clamp=5.0, dtype=torch.float64)
    assert inside == pytest.approx(beyond, rel=1e-6)


def test_unclamped_straight_through_gradient_is_minus_delta() -> None:
    for delta in (2.7, 20.0, 200.0, -200.0):
        assert term_and_gradient(KLForm.k2_straight_through, delta)[1] == pytest.approx(-delta, rel=1e-6)


def test_k3_is_exact_below_40_nat_and_linear_above() -> None:
    logprobs = torch.tensor([-39.0, -40.0, -42.0], dtype=torch.float64)
    expected = [math.exp(39) - 40, math.exp(40) - 41, math.exp(40) - 41 + 2 * (math.exp(40) - 1)]
    assert kl_k3(logprobs, torch.zeros_like(logprobs)).tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("share", [1e-30, 0.5, 1 - 1e-12])
def test_full_vocabulary_kl_and_its_gradient_stay_bounded(share: float) -> None:
    """The policy is (share, 1 - share), and the reference's log-prob of the first token is -10,000."""
    logits = torch.tensor([math.log(share / (1 - share)), 0.0], dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(logits, -1)
    exact = (logprobs.exp() * (logprobs - torch.tensor([-1e4, 0.0], dtype=torch.float64))).sum().reshape(1)
    ref_logprobs = torch.tensor([-1e4], dtype=torch.float64)
    inputs = KLInputs(logprobs[:1], ref_logprobs, log_ratio=torch.zeros(1), kl_exact=exact)
    term = kl_penalty(KLForm.exact, inputs, loss_mask=torch.tensor([True]), token_clamp=1.0)
    (gradient,) = torch.autograd.grad(term.sum(), logits)
    # The KL is 1e4 · share less the entropy, which is at most log 2.
    assert 1e4 * share - math.log(2) <= term.item() <= 1e4 * share and 0 < gradient[0] <= gradient.abs().max() <= 1e4

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from rookworld_rlvr.objective import ReferenceStates, StatisticsOptions, TokenStatistics, token_statistics

B, T, H, V = 2, 5, 3, 11
TEMPERATURE = 0.7


class TiedModel:
    """Model whose hidden states and head share one weight, and a reference with its own weight."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs, self.tokens = torch.randint(V, (2, B, T), generator=generator)
        weight, ref_weight = torch.randn(2, V, H, generator=generator, dtype=dtype)
        self.weight_VH = weight.clone().requires_grad_()
        self.ref_weight_VH = ref_weight.clone().requires_grad_()
        self.weights_BT = torch.randn(3, B, T, generator=generator, dtype=dtype)

    def hidden(self) -> Tensor:
        return self.weight_VH[self.inputs].tanh()

    def ref_hidden(self) -> Tensor:
        return self.ref_weight_VH[self.inputs].tanh()

    def head(self, hidden_NH: Tensor) -> Tensor:
        return hidden_NH @ self.weight_VH.T

    def ref_head(self, hidden_NH: Tensor) -> Tensor:
        return hidden_NH @ self.ref_weight_VH.T

    def chunked(self, chunk_tokens: int, entropy_gradient: bool = True) -> TokenStatistics:
        return token_statistics(
            self.hidden(),
            self.tokens,
            self.head,
            reference=ReferenceStates(self.ref_hidden(), self.ref_head),
            options=StatisticsOptions(TEMPERATURE, entropy_gradient, chunk_tokens=chunk_tokens),
        )

    def whole(self) -> TokenStatistics:
        """Return the statistics computed by torch.distributions from the logits of all positions at once."""
        policy = Categorical(logits=self.head(self.hidden()) / TEMPERATURE)
        reference = Categorical(logits=self.ref_head(self.ref_hidden()).detach() / TEMPERATURE)
        return TokenStatistics(
            logprobs=policy.log_prob(self.tokens),
            entropy=policy.entropy(),
            ref_logprobs=reference.log_prob(self.tokens),
            kl_exact=kl_divergence(policy, reference),
        )

    def gradient(self, statistics: TokenStatistics) -> Tensor:
        assert statistics.kl_exact is not None
        parts = torch.stack([statistics.logprobs, statistics.entropy, statistics.kl_exact])
        (gradient,) = torch.autograd.grad((self.weights_BT * parts).sum(), self.weight_VH)
        return gradient


@pytest.mark.parametrize("chunk_tokens", [1, 3, B * T, 1000])
def test_chunking_changes_neither_values_nor_tied_weight_gradient(chunk_tokens: int) -> None:
    model = TiedModel()
    chunked, whole = model.chunked(chunk_tokens), model.whole()
    assert chunked.kl_exact is not None and whole.kl_exact is not None
    torch.testing.assert_close(chunked.logprobs, whole.logprobs, rtol=0, atol=1e-12)
    torch.testing.assert_close(chunked.entropy, whole.entropy, rtol=0, atol=1e-12)
    torch.testing.assert_close(chunked.kl_exact, whole.kl_exact, rtol=0, atol=1e-12)
    assert chunked.ref_logprobs is not None and whole.ref_logprobs is not None
    torch.testing.assert_close(chunked.ref_logprobs, whole.ref_logprobs, rtol=0, atol=1e-12)
    torch.testing.assert_close(model.gradient(chunked), model.gradient(whole), rtol=0, atol=1e-12)


def test_no_grad_gives_bitwise_equal_logprobs_and_kl() -> None:
    model = TiedModel(torch.float32)
    with torch.no_grad():
        free = model.chunked(3)
    trained = model.chunked(3)
    assert free.kl_exact is not None and trained.kl_exact is not None
    assert not free.logprobs.requires_grad
    assert torch.equal(free.logprobs, trained.logprobs)
    assert torch.equal(free.kl_exact, trained.kl_exact)


def test_head_weight_gets_gradient_when_hidden_states_are_frozen() -> None:
    model = TiedModel()
    frozen = model.hidden().detach()
    loss = token_statistics(frozen, model.tokens, model.head, options=StatisticsOptions(chunk_tokens=3)).logprobs.sum()
    expected = torch.log_softmax(model.head(frozen), -1).gather(-1, model.tokens.unsqueeze(-1)).sum()
    (got,) = torch.autograd.grad(loss, model.weight_VH)
    (wanted,) = torch.autograd.grad(expected, model.weight_VH)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_the_reference_gets_no_gradient() -> None:
    model = TiedModel()
    statistics = model.chunked(3)
    assert statistics.kl_exact is not None
    statistics.kl_exact.sum().backward()
    assert model.ref_weight_VH.grad is None
    assert model.weight_VH.grad is not None


def test_entropy_is_detached_unless_requested() -> None:
    model = TiedModel()
    assert not model.chunked(3, entropy_gradient=False).entropy.requires_grad
    assert model.chunked(3, entropy_gradient=True).entropy.requires_grad


def identity(hidden_NH: Tensor) -> Tensor:
    return hidden_NH


@pytest.mark.parametrize(
    ("temperature", "probability"), [(1.0, 0.75), (0.5, 0.9), (2.0, math.sqrt(3) / (1 + math.sqrt(3)))]
)
def test_temperature_divides_the_logits(temperature: float, probability: float) -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])
    statistics = token_statistics(logits, torch.tensor([1]), identity, options=StatisticsOptions(temperature))
    entropy = -probability * math.log(probability) - (1 - probability) * math.log(1 - probability)
    assert statistics.logprobs.item() == pytest.approx(math.log(probability), abs=1e-6)
    assert statistics.entropy.item() == pytest.approx(entropy, abs=1e-6)
    assert statistics.kl_exact is None


def test_temperature_applies_to_the_reference_too() -> None:
    # At T = 1/2 the odds are squared: 9 to 1 against 1 to 1, KL = 0.9 ln 1.8 + 0.1 ln 0.2.
    statistics = token_statistics(
        torch.tensor([[0.0, math.log(3.0)]]),
        torch.tensor([0]),
        identity,
        reference=ReferenceStates(torch.tensor([[0.0, 0.0]]), lambda hidden_NH: hidden_NH + torch.tensor([7.0, 7.0])),
        options=StatisticsOptions(temperature=0.5),
    )
    assert statistics.kl_exact is not None
    assert statistics.kl_exact.item() == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2), abs=1e-6)


def test_entropy_of_uniform_logits_is_log_of_vocabulary_size() -> None:
    statistics = token_statistics(torch.full((3, V), 42.0), torch.tensor([0, 1, 2]), identity)
    assert statistics.entropy.tolist() == pytest.approx([math.log(V)] * 3, rel=1e-6)
    assert statistics.logprobs.tolist() == pytest.approx([-math.log(V)] * 3, rel=1e-6)


def test_exact_kl_of_policy_to_itself_is_zero() -> None:
    model = TiedModel(torch.float32)
    statistics = token_statistics(
        model.hidden(),
        model.tokens,
        model.head,
        reference=ReferenceStates(model.hidden(), model.head),
        options=StatisticsOptions(chunk_tokens=3),
    )
    assert statistics.kl_exact is not None
    assert statistics.kl_exact.flatten().tolist() == [0.0] * (B * T)


def test_token_of_probability_zero_keeps_kl_and_gradient_finite() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]], requires_grad=True)
    reference = ReferenceStates(torch.tensor([[0.0, math.log(3.0), -math.inf]]), identity)
    options = StatisticsOptions(entropy_gradient=True)
    statistics = token_statistics(logits, torch.tensor([0]), identity, reference=reference, options=options)
    assert statistics.kl_exact is not None
    assert statistics.entropy.item() == pytest.approx(math.log(2), abs=1e-6)
    assert statistics.kl_exact.item() == pytest.approx(0.5 * math.log(4 / 3), abs=1e-6)
    # The largest float would overflow with a weight above 1.
    (8 * statistics.entropy + 8 * statistics.kl_exact + statistics.logprobs).sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert logits.grad[0, 2].item() == 0.0


def test_statistics_are_computed_in_float32_under_bf16_autocast() -> None:
    model = TiedModel(torch.float32)
    seen: list[Tensor] = []

    def head(hidden_NH: Tensor) -> Tensor:
        seen.append(model.head(hidden_NH))
        return seen[-1]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        statistics = token_statistics(
            model.hidden(),
            model.tokens,
            head,
            reference=ReferenceStates(model.hidden(), lambda hidden_NH: head(hidden_NH) * 0.5),
            options=StatisticsOptions(TEMPERATURE),
        )
    assert {logits.dtype for logits in seen} == {torch.bfloat16}
    policy = Categorical(logits=seen[0].detach().float() / TEMPERATURE)
    reference = Categorical(logits=seen[0].detach().float() * 0.5 / TEMPERATURE)
    flat = (statistics.logprobs.flatten(), statistics.entropy.flatten())
    wanted = (policy.log_prob(model.tokens.flatten()), policy.entropy())
    torch.testing.assert_close(flat, wanted, rtol=0, atol=1e-6)
    assert statistics.kl_exact is not None
    torch.testing.assert_close(statistics.kl_exact.flatten(), kl_divergence(policy, reference), rtol=0, atol=1e-6)
    statistics.logprobs.sum().backward()
    assert model.weight_VH.grad is not None and model.weight_VH.grad.abs().sum() > 0


def test_no_tokens_give_empty_statistics() -> None:
    statistics = token_statistics(torch.zeros(0, 4, V), torch.zeros(0, 4, dtype=torch.long), identity)
    assert statistics.logprobs.shape == statistics.entropy.shape == (0, 4)


def test_inconsistent_statistics_arguments_are_refused() -> None:
    hidden, tokens = torch.zeros(2, 3, V), torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"expected hidden's leading shape \(2, 3\), got \(2, 2\)"):
        token_statistics(hidden, tokens[:, :2], identity)
    with pytest.raises(ValueError, match=r"reference: expected leading shape \(2, 3\), got \(1, 3\)"):
        token_statistics(hidden, tokens, identity, reference=ReferenceStates(hidden[:1], identity))
    with pytest.raises(ValueError, match="chunk_tokens: expected at least 1, got 0"):
        StatisticsOptions(chunk_tokens=0)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_temperature_must_be_positive_and_finite(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        StatisticsOptions(temperature)

"""A model with an adapter: its gradient, its merged weights, its reference, and what a sampler gets."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from rookworld_rlvr.model.adapter import (
    adapter_weights,
    has_adapter,
    merged_state_dict,
    named_weights,
    weight_names,
)
from rookworld_rlvr.model.batch import TokenBatch, collate
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.model.weights import averaged, checksum, cpu_state_dict, load_training_state, training_state
from rookworld_rlvr.rollout.vllm_weights import expected_weights, sent_weights
from rookworld_rlvr.stability.reference import ReferenceConfig, References
from rookworld_rlvr.training.optim import OptimConfig, make_optimizer

# Alpha / rank of the family's adapters.
SCALING = 4.0
PROMPT = (5, 9, 7, 12)
ROWS = [(PROMPT, (8, 3, 11)), (PROMPT, (4, 10)), ((6, 5), (9, 9, 2, 3))]


def batch_of(rows: Any, policy: Policy) -> TokenBatch:
    return collate(rows, pad_id=policy.pad_id, device=policy.device)


def logprobs(policy: Policy, batch: TokenBatch | None = None) -> Tensor:
    batch = batch_of(ROWS, policy) if batch is None else batch
    return policy.statistics(batch, temperature=1.0).logprobs


def plain_names(policy: Policy) -> dict[str, tuple[str, str, bool]]:
    """Return names of the factors A and B of each adapted weight by its plain name, and whether GPT-2 transposes it."""
    factors = [name for name in adapter_weights(policy.model) if ".lora_A." in name]
    return {
        name.replace(".lora_A.default", ""): (name, name.replace("lora_A", "lora_B"), "c_" in name) for name in factors
    }


def plain_layers(policy: Policy, plain: Policy) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return parameters of the plain model in which weights are W + scaling · B·A, and the leaves A and B."""
    factors = {name: own.detach().clone().requires_grad_() for name, own in adapter_weights(policy.model).items()}
    parameters = {name: own.detach() for name, own in plain.model.named_parameters()}
    for name, (a, b, transposed) in plain_names(policy).items():
        product = factors[b] @ factors[a] * SCALING
        parameters[name] = parameters[name] + (product.T if transposed else product)
    return parameters, factors


def plain_logits(plain: Policy, parameters: dict[str, Tensor], tokens: tuple[int, ...]) -> Tensor:
    """Return the logits (T, V) of transformers' own pass over one row, without packing or padding."""
    inputs = {"input_ids": torch.tensor([tokens]), "use_cache": False}
    logits: Tensor = functional_call(plain.model, parameters, kwargs=inputs).logits[0]
    return logits


def assert_gradients_are_close(policy: Policy, loss: Tensor, factors: dict[str, Tensor]) -> None:
    """Compare the gradients of A and B with those of the leaves of plain layers. Llama's norms round to float32."""
    rtol, atol = (1e-9, 1e-12) if "GPT2" in type(policy.model).__name__ else (1e-4, 1e-6)
    expected = torch.autograd.grad(loss, list(factors.values()))
    for (name, factor), theirs in zip(adapter_weights(policy.model).items(), expected, strict=True):
        assert factor.grad is not None and factor.grad.abs().max() > 100 * atol, name
        torch.testing.assert_close(factor.grad, theirs, rtol=rtol, atol=atol, msg=lambda text, name=name: name + text)


def in_float64(family: Any) -> tuple[Policy, Policy]:
    policy, plain = family.adapted(), family.load()
    policy.model.double()
    plain.model.double()
    return policy, plain


def test_gradient_of_an_adapter_is_that_of_a_plain_layer_of_the_same_product(family: Any) -> None:
    policy, plain = in_float64(family)
    batch = batch_of(ROWS, policy)
    weights = torch.randn(int(batch.loss_mask_BT.sum()), dtype=torch.float64)
    (logprobs(policy, batch) * weights).sum().backward()
    parameters, factors = plain_layers(policy, plain)
    expected = []
    for prompt, completion in ROWS:
        logits = plain_logits(plain, parameters, prompt + completion)[len(prompt) - 1 : -1]
        expected.append(logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None]).squeeze(-1))
    assert_gradients_are_close(policy, (torch.cat(expected) * weights).sum(), factors)
    frozen = [own for own in policy.model.parameters() if not own.requires_grad]
    assert frozen and all(own.grad is None for own in frozen)


def test_policy_gradient_enumerated_over_all_tokens_is_that_of_plain_layers(family: Any) -> None:
    """The expected reward of one token is a sum over the vocabulary, so its gradient has no sampling error."""
    policy, plain = in_float64(family)
    rewards = torch.randn(policy.model.config.vocab_size, dtype=torch.float64)
    batch = batch_of([(PROMPT, (token,)) for token in range(len(rewards))], policy)
    own = logprobs(policy, batch)
    # The score function: ∇ Σ p·r = Σ p·r·∇ ln p.
    (own * own.detach().exp() * rewards).sum().backward()
    parameters, factors = plain_layers(policy, plain)
    expected = plain_logits(plain, parameters, PROMPT)[-1].softmax(-1) @ rewards
    assert_gradients_are_close(policy, expected, factors)


def test_new_adapter_changes_no_bit_of_the_policy(family: Any) -> None:
    policy, plain = family.adapted(fresh=True), family.load()
    assert policy.packs and has_adapter(policy.model) and not has_adapter(plain.model)
    assert len(adapter_weights(policy.model)) == 2 * family.layers
    assert torch.equal(logprobs(policy), logprobs(plain)) and checksum(policy.model) == checksum(plain.model)
    assert list(weight_names(policy.model)) == [name for name, _ in plain.model.named_parameters()]


def test_only_the_adapter_has_gradients_and_moments(family: Any) -> None:
    policy = family.adapted(fresh=True)
    adapter = adapter_weights(policy.model)
    assert {name for name, own in policy.model.named_parameters() if own.requires_grad} == adapter.keys()
    optimizer = make_optimizer(policy.model.parameters(), OptimConfig())
    frozen = {name: own.clone() for name, own in policy.model.named_parameters() if name not in adapter}
    for _ in range(2):
        logprobs(policy).sum().backward()
        optimizer.step()
    assert len(optimizer.state) == len(adapter)
    assert all(torch.equal(policy.model.get_parameter(name), before) for name, before in frozen.items())
    assert checksum(policy.model) != checksum(family.load().model)


def test_merged_weights_compute_the_same_as_the_adapter(family: Any) -> None:
    policy, plain = family.adapted(), family.load()
    before, ours = logprobs(plain), logprobs(policy)
    assert (ours - before).abs().max() > 0.01
    plain.model.load_state_dict(merged_state_dict(policy.model))
    torch.testing.assert_close(ours, logprobs(plain), rtol=1e-5, atol=2e-5)
    assert checksum(plain.model) == checksum(policy.model)
    saved = cpu_state_dict(policy.model)
    assert saved.keys() == plain.model.state_dict().keys()
    tied = [value for name, value in saved.items() if name in ("lm_head.weight", "transformer.wte.weight")]
    assert all(value.data_ptr() == tied[0].data_ptr() for value in tied)


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_average_with_the_start_scales_the_adapters_product_exactly(family: Any, share: float) -> None:
    policy, references = family.adapted(), References(family.adapted(fresh=True), ReferenceConfig())
    start, trained = dict(references.original.model.named_parameters()), dict(named_weights(policy.model))
    before = {name: value.clone() for name, value in adapter_weights(policy.model).items()}
    with averaged(policy.model, references.original.model, share):
        inside = dict(named_weights(policy.model))
        for name, (a, b, transposed) in plain_names(policy).items():
            product = (1 - share) * SCALING * (before[b] @ before[a])
            # With a half, a power of two, the scaled product has the same digits.
            wanted = start[name] + (product.T if transposed else product)
            torch.testing.assert_close(inside[name], wanted, rtol=0, atol=0 if share == 0.5 else 1e-7)
        for name, value in inside.items():
            torch.testing.assert_close(value, torch.lerp(trained[name], start[name], share), rtol=1e-6, atol=1e-7)
    assert all(torch.equal(adapter_weights(policy.model)[name], value) for name, value in before.items())


def storage(policy: Policy) -> set[int]:
    return {own.data_ptr() for own in policy.model.parameters()}


def test_reference_takes_no_memory_and_equals_the_start(family: Any) -> None:
    policy = family.adapted(fresh=True)
    references = References(policy, ReferenceConfig())
    assert storage(references.original) < storage(policy) and not references.moves
    start = logprobs(references.current)
    assert torch.equal(start, logprobs(policy))
    with torch.no_grad():
        for factor in adapter_weights(policy.model).values():
            factor.add_(0.1)
    assert not torch.equal(start, logprobs(policy)) and torch.equal(start, logprobs(references.current))
    kl = policy.statistics(batch_of(ROWS, policy), temperature=1.0, reference=references.current).kl_exact
    assert kl is not None and kl.min() > 0


def test_refreshed_reference_has_an_adapter_of_its_own(family: Any) -> None:
    policy = family.adapted(fresh=True)
    references, start = References(policy, ReferenceConfig(refresh_every=2)), logprobs(policy).detach()
    own = sum(factor.numel() for factor in adapter_weights(references.current.model).values())
    frozen = {name for name, _ in policy.model.named_parameters()} - adapter_weights(policy.model).keys()
    assert 0 < own == sum(factor.numel() for factor in adapter_weights(policy.model).values())
    assert all(references.current.model.get_parameter(n) is policy.model.get_parameter(n) for n in frozen)
    with torch.no_grad():
        for factor in adapter_weights(policy.model).values():
            factor.add_(0.1)
    moved = logprobs(policy)
    for step, expected in ((1, start), (2, moved)):
        references.maybe_refresh(policy, step=step)
        assert torch.equal(logprobs(references.current), expected)
        assert torch.equal(logprobs(references.original), start)
    frozen_again = References(family.adapted(fresh=True), ReferenceConfig())
    for resumed in (frozen_again, References(family.adapted(fresh=True), ReferenceConfig(refresh_every=2))):
        resumed.load_state_dict(references.state_dict())
        assert torch.equal(logprobs(resumed.current), moved) and torch.equal(logprobs(resumed.original), start)
        assert resumed.moves and resumed.refreshes == 1


def test_training_state_has_the_adapter_alone_and_refuses_another(family: Any) -> None:
    policy = family.adapted()
    state = training_state(policy.model)
    assert state["adapter"].keys() == adapter_weights(policy.model).keys()
    again = family.adapted(fresh=True)
    load_training_state(again.model, state)
    assert checksum(again.model) == checksum(policy.model)
    refusals = {
        "model.lora.rank: expected a state of the whole model, got an adapter": (family.load(), state),
        "model.lora.rank: expected a state of an adapter, got the whole": (again, training_state(family.load().model)),
        "model.lora.rank: expected .* of shape": (family.adapted(rank=5, alpha=20.0), state),
        "model.lora.alpha divided by rank: expected 4.0": (family.adapted(alpha=6.0), state),
        "model.path: expected nope": (again, state | {"base": "nope"}),
    }
    for message, (other, given) in refusals.items():
        with pytest.raises(ValueError, match=message):
            load_training_state(other.model, given)


def test_vllm_gets_merged_weights_under_plain_names(family: Any) -> None:
    policy, plain = family.adapted(), family.load()
    sent = sent_weights(policy.model)
    assert list(sent) == [name for name, _ in plain.model.named_parameters()]
    with torch.no_grad():
        for name, own in plain.model.named_parameters():
            assert own.shape == sent[name].shape and sent[name].dtype == torch.float32
            own.copy_(sent[name])
    for dtype in (torch.float32, torch.bfloat16):
        expected = expected_weights(policy.model, dtype)
        assert expected.names == tuple(sent) and expected.checksum == checksum(policy.model)
        # A sampler holds rounded weights, reads them back, and reports their checksum.
        assert expected.rounded == checksum(plain.model.to(dtype))
        assert expected.checksum_for(expected.rounded) == checksum(policy.model)

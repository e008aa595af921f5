"""Each generator, on the trainer's own model, against full forward passes over one row at a time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rollout.generator import Generator, GeneratorConfig, SampledCompletion

Prompts = list[tuple[int, ...]]
Engine = Callable[..., Generator]
MAX_NEW = 24
# One seed for each prompt.
SEEDS = (3, 1, 4, 1)


def next_logits(policy: Policy, tokens: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        return policy.model.eval()(torch.tensor([tokens]), use_cache=False).logits[0, -1]


def argmax_completion(policy: Policy, prompt: tuple[int, ...]) -> tuple[int, ...]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + MAX_NEW:
        tokens.append(int(next_logits(policy, tokens).argmax()))
        if tokens[-1] == policy.tokenizer.eos_token_id:
            break
    return tuple(tokens[len(prompt) :])


def with_limit(engine: Engine, policy: Policy, limit: int, batch_size: int = 128) -> Generator:
    config = GeneratorConfig(max_new_tokens=limit, batch_size=batch_size)
    return engine(policy.model, config, eos_id=policy.tokenizer.eos_token_id, pad_id=policy.pad_id)


def test_greedy_decoding_equals_argmax_of_full_passes(policy: Policy, generator: Generator, prompts: Prompts) -> None:
    groups = generator.generate(prompts, group_size=1, temperature=0.0)
    assert [done.tokens for [done] in groups] == [argmax_completion(policy, prompt) for prompt in prompts]


def test_a_longer_prompt_beside_it_does_not_shorten_a_completion(engine: Engine, policy: Policy) -> None:
    positions = policy.model.config.max_position_embeddings
    prompts = [(5,) * (positions - length) for length in (12, 2)]
    generator = engine(policy.model, GeneratorConfig(max_new_tokens=MAX_NEW), eos_id=-1, pad_id=0)
    groups = generator.generate(prompts, group_size=1, temperature=1.0, seeds=SEEDS[:2])
    assert [len(done.tokens) for [done] in groups] == [12, 2]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_logprobs_equal_those_of_unpadded_passes(
    policy: Policy, generator: Generator, prompts: Prompts, temperature: float
) -> None:
    groups = generator.generate(prompts, group_size=2, temperature=temperature, seeds=SEEDS)
    for prompt, group in zip(prompts, groups, strict=True):
        for done in group:
            row = torch.tensor([prompt + done.tokens])
            with torch.no_grad():
                logits = policy.model.eval()(row, use_cache=False).logits[0, len(prompt) - 1 : -1]
            expected = torch.log_softmax(logits / temperature, -1)[range(len(done.tokens)), done.tokens]
            torch.testing.assert_close(torch.tensor(done.logprobs), expected, atol=1e-4, rtol=0)


def test_sampling_follows_the_distribution_at_its_temperature(
    engine: Engine, policy: Policy, generator: Generator, prompts: Prompts
) -> None:
    draws, temperature = 1500, 2.0
    [group] = with_limit(engine, policy, 1, batch_size=draws).generate(
        prompts[1:2], group_size=draws, temperature=temperature, seeds=[0]
    )
    drawn = torch.tensor([done.tokens[0] for done in group])
    expected = torch.softmax(next_logits(policy, prompts[1]) / temperature, -1)
    token = int(expected.argmax())
    share, deviation = expected[token].item(), (expected[token] * (1 - expected[token]) / draws).sqrt().item()
    assert 0.02 < share < 0.98
    assert abs((drawn == token).float().mean().item() - share) < 4 * deviation


def test_generation_config_of_the_model_is_ignored_and_unchanged(
    policy: Policy, generator: Generator, prompts: Prompts
) -> None:
    def draw() -> list[tuple[int, ...]]:
        generator.sync(policy.model)
        [group] = generator.generate(prompts[:1], group_size=16, temperature=1.0, seeds=[0])
        return [completion.tokens for completion in group]

    plain = draw()
    own = policy.model.generation_config
    own.min_p, own.typical_p, own.epsilon_cutoff, own.repetition_penalty = 0.9, 0.1, 0.5, 9.0
    assert draw() == plain and len(set(plain)) > 8
    assert policy.model.generation_config is own and own.min_p == 0.9


def test_top_k_of_one_equals_greedy_decoding(generator: Generator, prompts: Prompts) -> None:
    greedy = generator.generate(prompts, group_size=1, temperature=0.0)
    drawn = generator.generate(prompts, group_size=2, temperature=1.0, seeds=SEEDS, top_k=1)
    assert [[done.tokens for done in group] for group in drawn] == [[done.tokens] * 2 for [done] in greedy]


def test_top_k_renormalises_draws_but_records_full_logprobs(engine: Engine, policy: Policy, prompts: Prompts) -> None:
    draws, top_k = 1500, 3
    sampler = with_limit(engine, policy, 1, batch_size=draws)
    [group] = sampler.generate(prompts[1:2], group_size=draws, temperature=2.0, seeds=[0], top_k=top_k)
    whole = torch.softmax(next_logits(policy, prompts[1]) / 2.0, -1)
    likeliest = whole.argsort(descending=True)[:top_k].tolist()
    assert whole[likeliest].sum() < 0.9
    assert {done.tokens[0] for done in group} == set(likeliest)
    for token in likeliest:
        share = (whole[token] / whole[likeliest].sum()).item()
        count = sum(done.tokens[0] == token for done in group)
        assert abs(count / draws - share) < 4 * math.sqrt(share * (1 - share) / draws)
    for done in group[:20]:
        assert done.logprobs[0] == pytest.approx(whole[done.tokens[0]].log().item(), abs=1e-4)


def test_finished_completion_has_one_end_token_in_last_place(engine: Engine, policy: Policy, prompts: Prompts) -> None:
    eos = policy.tokenizer.eos_token_id
    groups = with_limit(engine, policy, 34).generate(prompts, group_size=6, temperature=1.0, seeds=SEEDS)
    samples = [done for group in groups for done in group]
    assert {done.finished for done in samples} == {True, False}
    for done in samples:
        assert done.tokens.count(eos) == int(done.finished)
        assert not done.finished or done.tokens[-1] == eos
        assert len(done.logprobs) == len(done.tokens)


def test_completion_cut_at_the_limit_is_not_finished(engine: Engine, policy: Policy, prompts: Prompts) -> None:
    [[done]] = with_limit(engine, policy, 3).generate(prompts[:1], group_size=1, temperature=0.0)
    assert (len(done.tokens), done.finished) == (3, False)


def test_groups_keep_prompt_order_independent_of_batch_size(engine: Engine, policy: Policy, prompts: Prompts) -> None:
    def greedy(batch_size: int, requests: Prompts) -> list[tuple[int, ...]]:
        groups = with_limit(engine, policy, 8, batch_size).generate(requests, group_size=1, temperature=0.0)
        return [done.tokens for [done] in groups]

    together = greedy(128, prompts)
    assert len(set(together)) == 4
    assert greedy(2, prompts) == greedy(1, prompts) == together
    assert greedy(3, prompts[::-1]) == together[::-1]


def test_group_has_requested_size_and_varied_completions(generator: Generator, prompts: Prompts) -> None:
    groups: list[list[SampledCompletion]] = generator.generate(prompts, group_size=5, temperature=1.0, seeds=SEEDS)
    assert [len(group) for group in groups] == [5, 5, 5, 5]
    assert all(len({done.tokens for done in group}) > 1 for group in groups)


@pytest.mark.parametrize("training", [True, False])
def test_generation_restores_the_training_flag(
    policy: Policy, generator: Generator, prompts: Prompts, training: bool
) -> None:
    policy.model.train(training)
    generator.generate(prompts, group_size=1, temperature=1.0, seeds=SEEDS)
    assert policy.model.training is training
    too_long = (0,) * 10_000
    with pytest.raises(UserError):
        generator.generate([too_long], group_size=1, temperature=1.0, seeds=SEEDS[:1])
    assert policy.model.training is training


def test_dropout_is_off_while_sampling(policy: Policy, generator: Generator, prompts: Prompts) -> None:
    for module in policy.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.9
    policy.model.train()
    first, second = (generator.generate(prompts, group_size=1, temperature=0.0) for _ in range(2))
    assert first == second


def test_completions_depend_only_on_prompt_and_seed(engine: Engine, policy: Policy, prompts: Prompts) -> None:
    def drawn(requests: Prompts, seeds: Sequence[int], batch_size: int = 128) -> list[list[tuple[int, ...]]]:
        sampler = with_limit(engine, policy, MAX_NEW, batch_size)
        groups = sampler.generate(requests, group_size=3, temperature=1.0, seeds=seeds)
        return [[done.tokens for done in group] for group in groups]

    before = torch.get_rng_state()
    together = drawn(prompts, SEEDS)
    assert drawn(prompts[::-1], SEEDS[::-1], batch_size=3) == together[::-1]
    assert [drawn([prompt], [seed]) for prompt, seed in zip(prompts, SEEDS, strict=True)] == [[g] for g in together]
    assert drawn(prompts, (5, 6, 7, 8)) != together
    one, other = drawn([prompts[0]] * 2, (0, 1))
    assert one != other and len(set(one)) > 1
    assert torch.equal(torch.get_rng_state(), before)


def test_sampling_requires_one_seed_per_prompt(generator: Generator, prompts: Prompts) -> None:
    with pytest.raises(ValueError, match="a seed for each of 4 prompts, got 1"):
        generator.generate(prompts, group_size=2, temperature=1.0, seeds=[0])


def test_prompt_must_leave_room_for_at_least_one_token(engine: Engine, policy: Policy) -> None:
    positions = policy.model.config.max_position_embeddings
    generator = with_limit(engine, policy, MAX_NEW)
    with pytest.raises(ValueError, match=f"shorter than the model's {positions} positions, got {positions}"):
        generator.generate([(5,) * positions], group_size=1, temperature=1.0, seeds=[0])
    [[done]] = generator.generate([(5,) * (positions - 1)], group_size=1, temperature=1.0, seeds=[0])
    assert len(done.tokens) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "expected above 0, got 0.0"),
        ({"temperature": float("nan")}, "expected above 0, got nan"),
        ({"max_new_tokens": -1}, "from 0"),
        ({"batch_size": -1}, "batch_size from 0"),
    ],
)
def test_invalid_generator_options_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(GeneratorConfig(), **changes)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_logits_are_sampled_and_recorded_as_nan(
    policy: Policy, generator: Generator, prompts: Prompts, bad: float
) -> None:
    def groups(poisoned_rows: int) -> list[list[SampledCompletion]]:
        def poison(_module: object, _inputs: object, logits: torch.Tensor) -> torch.Tensor:
            logits = logits.clone()
            logits[:poisoned_rows, ..., 5] = bad
            return logits

        handle = policy.model.lm_head.register_forward_hook(poison)
        try:
            return generator.generate(prompts[:1], group_size=3, temperature=1.0, seeds=[0])
        finally:
            handle.remove()

    [sound], [spoilt] = groups(0), groups(1)
    assert spoilt[0].tokens and all(math.isnan(value) for value in spoilt[0].logprobs)
    # The other rows are unchanged apart from rounding, because passes may have other sizes.
    for beside, done in zip(spoilt[1:], sound[1:], strict=True):
        assert beside.tokens == done.tokens and beside.finished == done.finished
        assert beside.logprobs == pytest.approx(done.logprobs, abs=1e-5)
    assert all(math.isfinite(value) for done in sound for value in done.logprobs)

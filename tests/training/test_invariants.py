"""Invariants whose violation is a reinforcement-learning bug that does not crash, checked by real forward passes."""

from collections.abc import Callable
from dataclasses import replace
from threading import current_thread

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig

from rookworld_rlvr.evaluation.completions import evaluate
from rookworld_rlvr.model import loading
from rookworld_rlvr.model.batch import Batch, micro_batches
from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.objective import KLForm, LossKind, LossSizes
from rookworld_rlvr.rollout.groups import Group, Sample, make_batch, sample_groups, score_groups
from rookworld_rlvr.tasks.prompt_stream import PromptStream
from rookworld_rlvr.training.loss import grpo_loss
from rookworld_rlvr.training.metrics import step_metrics
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.state import Event, Moment, StepContext, StepReport
from rookworld_rlvr.training.step import examples_per_pass, grpo_step, loss_plan

MakeRun = Callable[..., Run]
NO_CLIP = "optim.max_grad_norm=1e9"


def collect(context: StepContext, *, temperature: float = 1.0, group_size: int = 4) -> list[Group]:
    examples = context.sampler.prompts.draw(2)
    sampled = sample_groups(
        context.sampler.generator,
        context.policy.tokenizer,
        examples,
        group_size=group_size,
        temperature=temperature,
        seeds=range(2),
    )
    return score_groups(sampled, context.policy.tokenizer, examples, scorer=context.sampler.scorer)


def collate(groups: list[Group], policy: Policy) -> Batch:
    shape = len(groups), len(groups[0].samples)
    advantages_PG = torch.linspace(-1, 1, shape[0] * shape[1]).reshape(shape)
    batch = make_batch(groups, pad_id=policy.pad_id, device=policy.device)
    return replace(batch, advantages_B=advantages_PG.flatten())


def loss_of(context: StepContext, batch: Batch) -> Tensor:
    """Return the loss of the batch as one update of one micro-batch, with a KL coefficient of 0.5."""
    sizes = LossSizes(completions=len(batch.tokens_BT), tokens_per_update=batch.trained_tokens(), max_tokens=48)
    return grpo_loss(context.policy, batch, loss_plan(context, sizes, kl_coef=0.5)).loss


def row_logprobs(policy: Policy, group: Group, i: int, temperature: float) -> Tensor:
    """Return the log-probs of a completion's tokens from a plain pass of its row, without pads, mask or positions."""
    prompt, done = group.prompt_tokens, group.samples[i].completion.tokens
    with torch.no_grad():
        logits = policy.model(torch.tensor([prompt + done])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1)[torch.arange(len(done)), torch.tensor(done)]


def shake(policy: Policy) -> None:
    """Change the weights a little, so that KL and its gradient are not 0."""
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=draw)


def test_kl_is_0_and_ratio_1_before_first_update_and_kl_positive_after(make_run: MakeRun) -> None:
    context = make_run("kl.coef=0.1").context
    batch = collate(collect(context), context.policy)
    sides = (context.policy, context.references.current)
    policy, reference = (side.statistics(batch, temperature=1.0) for side in sides)
    assert (policy.logprobs - reference.logprobs).abs().max() <= 1e-6
    first, second = grpo_step(context, 0).tokens, grpo_step(context, 1).tokens
    assert first.kl_max <= 1e-6 and abs(first.ratio_max - 1) <= 1e-6 and first.kl_exact_sum <= 1e-5
    assert second.kl_max > 1e-4 and second.kl_exact_sum > 1e-3


def test_dropout_is_off_despite_saved_config(
    make_run: MakeRun, small_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert AutoConfig.from_pretrained(small_model).resid_pdrop == 0.1

    def gap() -> float:
        context = make_run().context
        assert context.policy.model.training
        batch = collate(collect(context), context.policy)
        once, again = (context.policy.statistics(batch, temperature=1.0).logprobs for _ in range(2))
        return float((once - again).detach().abs().max())

    assert gap() == 0.0
    monkeypatch.setattr(loading, "DROPOUT", 0.1)
    assert gap() > 0.01


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_padding_changes_no_logprob_and_the_sampler_agrees(make_run: MakeRun, temperature: float, packs: bool) -> None:
    context = make_run("data.tasks=[policy,environment]", packs=packs).context
    groups = collect(context, temperature=temperature)
    batch = collate(groups, context.policy)
    assert batch.attention_BT.min() == 0
    trained = context.policy.statistics(batch, temperature=temperature).logprobs
    alone = torch.cat([row_logprobs(context.policy, group, i, temperature) for group in groups for i in range(4)])
    torch.testing.assert_close(trained.detach(), alone, atol=1e-5, rtol=0)
    sampled = batch.sampler_logprobs_BT[batch.loss_mask_BT]
    torch.testing.assert_close(trained.detach(), sampled, atol=1e-4, rtol=0)


@pytest.mark.parametrize("form", KLForm)
@pytest.mark.parametrize("loss", LossKind)
def test_micro_batches_give_full_batch_gradient_for_every_loss_and_kl_form(
    make_run: MakeRun, loss: LossKind, form: KLForm
) -> None:
    def gradients(micro_batch_size: int) -> tuple[list[Tensor], StepReport]:
        given = ("kl.coef=0.5", "objective.entropy_coef=0.1", f"optim.micro_batch_size={micro_batch_size}", NO_CLIP)
        # gspo refuses corrections by token.
        mismatch = f"objective.mismatch_cap={0 if loss is LossKind.gspo else 2}"
        given += (f"objective.loss={loss}", mismatch, f"kl.form='{form}'", "generator.max_new_tokens=16")
        context = make_run(*given).context
        shake(context.references.current)
        report = grpo_step(context, 0)
        return [parameter.grad for parameter in context.policy.model.parameters()], report

    (whole, one), (cut, many) = gradients(64), gradients(3)
    assert one.fault is None and one.rewards_PG.tolist() == many.rewards_PG.tolist()
    largest = max(float(gradient.abs().max()) for gradient in whole)
    assert largest > 1e-3 and all(gradient.isfinite().all() for gradient in whole)
    for ours, theirs in zip(cut, whole, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6 * max(1.0, largest), rtol=1e-5)
    assert many.loss == pytest.approx(one.loss, abs=1e-6)
    assert many.tokens.count == one.tokens.count
    assert many.tokens.kl_sum == pytest.approx(one.tokens.kl_sum, rel=1e-5)
    assert one.update_norm > 0 and many.update_norm == pytest.approx(one.update_norm, rel=1e-3)


def test_micro_batches_on_two_cores_give_gradient_of_one_core(
    make_run: MakeRun, threads: Callable[[int], None]
) -> None:
    def gradients(count: int) -> tuple[list[Tensor], StepReport, set[str]]:
        context = make_run("kl.coef=0.5", "optim.micro_batch_size=3", "generator.max_new_tokens=16").context
        threads(count)
        names = set[str]()
        shake(context.references.current)
        context.hooks.append(lambda moment, *_: names.add(current_thread().name) if moment == "micro_batch" else None)
        report = grpo_step(context, 0)
        return [parameter.grad for parameter in context.policy.model.parameters()], report, names

    (alone, one, _), (shared, two, names), (again, _, _) = gradients(1), gradients(2), gradients(2)
    assert one.fault is None and names == {"core_0", "core_1"}
    assert one.tokens.count == two.tokens.count and two.loss == pytest.approx(one.loss, abs=1e-6)
    for ours, theirs, repeated in zip(shared, alone, again, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
        assert torch.equal(ours, repeated)


@pytest.mark.parametrize("form", ["k2_straight_through", "exact"])
def test_micro_batch_of_one_row_gives_full_batch_gradient(make_run: MakeRun, form: str) -> None:
    def gradients(micro_batch_size: int) -> list[Tensor]:
        given = (f"kl.form={form}", "kl.coef=0.5", f"optim.micro_batch_size={micro_batch_size}", NO_CLIP)
        context = make_run(*given).context
        shake(context.references.current)
        grpo_step(context, 0)
        return [parameter.grad for parameter in context.policy.model.parameters()]

    for ours, theirs in zip(gradients(1), gradients(64), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_only_states_that_predict_a_sampled_token_get_gradient(make_run: MakeRun) -> None:
    context = make_run("kl.coef=0.5", packs=False).context
    shake(context.references.current)
    batch = collate(collect(context), context.policy)
    states: list[Tensor] = []

    def keep(_module: object, _inputs: object, output: object) -> None:
        states.append(output.last_hidden_state)  # type: ignore[attr-defined]
        states[-1].retain_grad()

    with torch.enable_grad():
        hook = context.policy.model.base_model.register_forward_hook(keep)
        loss = loss_of(context, batch)
        loss.backward()
        hook.remove()
    gradient_BT = states[0].grad.abs().amax(-1)  # type: ignore[union-attr]
    assert (~batch.loss_mask_BT).any() and (gradient_BT[~batch.loss_mask_BT] == 0).all()
    assert (gradient_BT[batch.loss_mask_BT] > 0).float().mean() > 0.95


@pytest.mark.parametrize("packs", [True, False])
def test_pad_token_ids_change_neither_loss_nor_gradient(make_run: MakeRun, packs: bool) -> None:
    context = make_run(packs=packs).context
    shake(context.references.current)
    batch = collate(collect(context), context.policy)
    results = []
    for pad in (context.policy.pad_id, 700):
        tokens_BT = batch.tokens_BT.masked_fill(batch.attention_BT == 0, pad)
        context.optimizer.zero_grad()
        loss = loss_of(context, replace(batch, tokens_BT=tokens_BT))
        loss.backward()
        results.append((loss.item(), context.policy.model.lm_head.weight.grad.clone()))
    assert results[0][0] == results[1][0] and torch.equal(results[0][1], results[1][1])


def test_equal_rewards_give_no_gradient_and_count_as_zero_variance(make_run: MakeRun) -> None:
    run = make_run("generator.temperature=1e-5", "kl.coef=0")
    before = [parameter.clone() for parameter in run.context.policy.model.parameters()]
    report = grpo_step(run.context, 0)
    assert (report.rewards_PG == report.rewards_PG[:, :1]).all()
    assert report.advantages_PG.abs().max() == 0 and report.grad_norm == 0 and report.update_norm == 0
    after = run.context.policy.model.parameters()
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert step_metrics(report, run.context)["group/zero_variance_fraction"] == 1.0
    different = grpo_step(make_run().context, 0)
    assert different.grad_norm > 0 and different.update_norm > 0


def test_trained_tokens_are_sampled_tokens_not_retokenised_text(make_run: MakeRun) -> None:
    context = make_run("generator.max_new_tokens=64").context
    groups = collect(context, temperature=1.5, group_size=8)
    samples = [sample for group in groups for sample in group.samples]
    tokenizer, eos = context.policy.tokenizer, context.policy.tokenizer.eos_token_id
    again = [(*tokenizer(sample.text, add_special_tokens=False).input_ids, eos) for sample in samples]
    assert any(sample.completion.tokens not in (row, row[:-1]) for sample, row in zip(samples, again, strict=True))
    batch = collate(groups, context.policy)
    sampled = [token for sample in samples for token in sample.completion.tokens]
    assert batch.targets_BT()[batch.loss_mask_BT].tolist() == sampled
    assert sampled.count(eos) == sum(sample.completion.finished for sample in samples) > 0


def test_evaluation_leaves_random_state_and_training_mode_unchanged(make_run: MakeRun) -> None:
    run = make_run("evaluation.rows=4")
    before = torch.get_rng_state()
    rows = evaluate(run.context.sampler.generator, run.context.policy.tokenizer, run.data.held_out)
    assert len(rows) == 8
    assert torch.equal(torch.get_rng_state(), before) and run.context.policy.model.training


def test_label_equal_to_a_completion_raises_its_reward(make_run: MakeRun) -> None:
    def step(label: str | None) -> tuple[list[Sample], Tensor]:
        """Run one step on the first row of the policy task, with its own label or the given one."""
        run = make_run("data.tasks=[policy,environment:0]", "objective.prompts_per_step=1", "objective.group_size=16")
        row = next(example for example in run.data.train if example.task == "policy")
        row = replace(row, completion=label or row.completion)
        run.context.sampler.prompts = PromptStream([row], {"policy": 1.0}, 0)
        report = grpo_step(run.context, 0)
        return list(report.groups[0].samples), report.rewards_PG[0]

    samples, rewards = step(None)
    # The best completion whose reward can still rise.
    readable = (i for i in range(16) if not samples[i].score.failure and rewards[i] < 0.9)
    chosen = max(readable, key=lambda i: float(rewards[i]))
    _, rewards_again = step(None)
    others, relabelled = step(samples[chosen].text)
    assert [sample.text for sample in samples] == [sample.text for sample in others]
    assert torch.equal(rewards, rewards_again) and relabelled[chosen] > rewards[chosen] + 0.01


def test_step_makes_better_completion_likelier_and_worse_one_less_likely(make_run: MakeRun) -> None:
    given = ("kl.coef=0", "optim.lr=0.0005", "objective.prompts_per_step=1", "objective.group_size=2")
    context, before = make_run(*given).context, make_run().context.policy
    report = grpo_step(context, 0)
    [group] = report.groups
    better, worse = report.advantages_PG[0].argmax().item(), report.advantages_PG[0].argmin().item()
    assert report.advantages_PG[0, better] > 0 > report.advantages_PG[0, worse]

    def gain(i: int | float) -> float:
        old, new = (row_logprobs(policy, group, int(i), 1.0) for policy in (before, context.policy))
        return float((new - old).sum())

    assert gain(better) > 0 > gain(worse)


def test_micro_batches_have_each_row_once_with_its_trained_tokens(make_run: MakeRun) -> None:
    def rows(batch: Batch) -> list[tuple[float, list[int]]]:
        """Return the advantage of each row, which no other row has, and its trained tokens."""
        parts = zip(batch.advantages_B.tolist(), batch.targets_BT(), batch.loss_mask_BT, strict=True)
        return [(advantage, tokens[trained].tolist()) for advantage, tokens, trained in parts]

    context = make_run().context
    batch = collate(collect(context), context.policy)
    for size in (1, 3, 8):
        for by_prompt in (True, False):
            pieces = micro_batches(batch, size, by_prompt=by_prompt)
            assert sorted(row for micro in pieces for row in rows(micro)) == rows(batch)


def test_micro_batches_shrink_to_use_all_cores_and_keep_gradient_norm(
    make_run: MakeRun, threads: Callable[[int], None]
) -> None:
    def step(cores: int) -> tuple[int, float]:
        context = make_run("objective.prompts_per_step=4", "objective.group_size=8").context
        threads(cores)
        passes: list[Moment] = []
        context.hooks.append(lambda moment, *_: passes.append(moment))
        report = grpo_step(context, 0)
        return passes.count(Moment.micro_batch), report.grad_norm

    (alone, expected), (shared, gradient) = step(1), step(2)
    assert (alone, shared) == (1, 2) and gradient == pytest.approx(expected, rel=1e-4)

    context = make_run("objective.group_size=8", "optim.micro_batch_size=64").context
    for cores, rows, size in ((1, 128, 64), (2, 128, 64), (2, 64, 32), (3, 128, 48), (8, 128, 16), (8, 8, 16)):
        threads(cores)
        assert examples_per_pass(context, rows) == size, (cores, rows)


@pytest.mark.parametrize("packs", [True, False])
def test_kl_off_saves_passes_and_keeps_the_gradient_without_penalty(make_run: MakeRun, packs: bool) -> None:
    def step(form: str) -> tuple[list[Tensor | None], dict[str, float], int, int]:
        given = ("kl.coef=0", "objective.prompts_per_step=3", f"kl.form='{form}'")
        context, passes, trained = make_run(*given, packs=packs).context, [], []
        context.references.current.model.base_model.register_forward_pre_hook(lambda *_: passes.append(1))
        count = context.policy.model.get_output_embeddings().register_forward_pre_hook(
            lambda _, inputs: trained.append(len(inputs[0])) if torch.is_grad_enabled() else None
        )
        # The second group has equal rewards, so its advantages are 0.
        context.hooks.append(lambda _moment, _context, report: report.rewards_PG[1:2].fill_(0.5))
        report = grpo_step(context, 0)
        count.remove()
        assert report.fault is None and report.advantages_PG[1].abs().max() == 0 < report.advantages_PG.abs().max()
        gradient = [parameter.grad for parameter in context.policy.model.parameters()]
        return gradient, step_metrics(report, context), len(passes), sum(trained)

    (gradient, metrics, passes, trained), (others, without, none, fewer) = step("exact"), step("off")
    for ours, theirs in zip(gradient, others, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    assert passes > 0 == none and 0 < fewer < trained
    assert "kl/exact" in metrics and "kl/exact" not in without and "policy/entropy" in without


def test_packed_and_padded_rows_give_equal_loss_and_gradient(make_run: MakeRun) -> None:
    def step(*, packs: bool) -> tuple[list[Tensor | None], float, dict[str, float]]:
        context = make_run("kl.coef=0.1", "optim.micro_batch_size=3", packs=packs).context
        shake(context.references.current)
        report = grpo_step(context, 0)
        gradient = [parameter.grad for parameter in context.policy.model.parameters()]
        return gradient, report.loss, step_metrics(report, context)

    (packed, loss, metrics), (padded, other_loss, others) = step(packs=True), step(packs=False)
    assert loss == pytest.approx(other_loss, abs=1e-6)
    for key in ("kl/exact", "kl/reference", "policy/entropy", "optim/grad_norm", "policy/logprob_mean"):
        assert metrics[key] == pytest.approx(others[key], rel=1e-4)
    for ours, theirs in zip(packed, padded, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


def test_step_loss_is_unchanged_by_fault_in_last_update(make_run: MakeRun) -> None:
    def step(*, fault: bool) -> StepReport:
        context = make_run("objective.minibatches=2").context

        def break_the_second_update(moment: Moment, _context: StepContext, event: Event) -> None:
            if moment is Moment.accumulated and event.updates and fault:
                next(context.policy.model.parameters()).grad.fill_(torch.nan)

        context.hooks.append(break_the_second_update)
        return grpo_step(context, 0)

    whole, ended = step(fault=False), step(fault=True)
    assert (whole.updates, ended.updates) == (2, 1) and ended.fault is not None
    assert ended.loss == whole.loss != 0

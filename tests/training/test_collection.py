"""Completions that a step trains on: zero-variance groups, truncation, filters, several updates, sampler mismatch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.model.weights import checksum
from rookworld_rlvr.model.world import Result, World
from rookworld_rlvr.objective import AdvantageConfig, AdvantageScale, group_advantages
from rookworld_rlvr.rewards import Score
from rookworld_rlvr.rewards.score import MoveChoice, Scorer, ScoreRequest
from rookworld_rlvr.rollout.generator import Generator, GeneratorError, SampledCompletion
from rookworld_rlvr.rollout.groups import Group
from rookworld_rlvr.stability.faults import Fault, FaultKind
from rookworld_rlvr.stockfish.analysis import Analysis, EngineCounts
from rookworld_rlvr.training import collection
from rookworld_rlvr.training.all_moves import MoveBatch, expected_value, move_batch
from rookworld_rlvr.training.health import no_progress_reason
from rookworld_rlvr.training.metrics import step_metrics
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.state import Event, Moment, StepContext, StepReport
from rookworld_rlvr.training.step import grpo_step

MakeRun = Callable[..., Run]
COLLECTION = "objective.collection"
# With equal shares the tasks alternate.
BOTH_TASKS = ("data.tasks=[policy,environment]",)
NO_CLIP = "optim.max_grad_norm=1e9"


@dataclass
class Rescoring:
    """A real scorer whose scores are changed by a function of the request and its index."""

    real: Scorer
    rescore: Callable[[int, ScoreRequest, Score], Score]

    def prepare(self, prompts: Iterable[str]) -> None:
        self.real.prepare(prompts)

    def move_choice(self, prompt: str, completion: str, analysis: Analysis) -> MoveChoice | None:
        return self.real.move_choice(prompt, completion, analysis)

    def engine_counts(self) -> None:
        return None

    def score_all(self, questions: Sequence[ScoreRequest]) -> list[Score]:
        scores = self.real.score_all(questions)
        return [self.rescore(i, *pair) for i, pair in enumerate(zip(questions, scores, strict=True))]

    def close(self) -> None:
        self.real.close()


@dataclass
class Resampling:
    """A real generator whose completions are changed by a function."""

    real: Generator
    change: Callable[[SampledCompletion], SampledCompletion]

    def sync(self, model: nn.Module) -> None:
        self.real.sync(model)

    def weights_checksum(self) -> str:
        return self.real.weights_checksum()

    def generate(self, prompts: Any, **settings: Any) -> list[list[SampledCompletion]]:
        groups = self.real.generate(prompts, **settings)
        return [[self.change(done) for done in completions] for completions in groups]


class TakesNoWeights(Resampling):
    """A real generator whose weight sync fails."""

    def sync(self, model: nn.Module) -> None:
        raise GeneratorError("expected the trainer's weights, the sampler has others")


def rescored(context: StepContext, rescore: Callable[[int, ScoreRequest, Score], Score]) -> StepContext:
    context.sampler.scorer = Rescoring(context.sampler.scorer, rescore)
    return context


def same_for_environment(_i: int, question: ScoreRequest, score: Score) -> Score:
    return replace(score, total=0.5) if question.prompt.startswith("A: ") else score


def shake(policy: Policy, scale: float = 0.02) -> None:
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=draw)


def lengths(report: StepReport) -> Tensor:
    return torch.tensor([[len(sample.completion.tokens) for sample in group.samples] for group in report.groups])


def row_statistics(policy: Policy, group: Group, i: int) -> tuple[Tensor, Tensor]:
    """Return the log-probs of a completion's tokens and of the whole vocabulary, from a plain pass of its row alone."""
    prompt, done = group.prompt_tokens, group.samples[i].completion.tokens
    with torch.no_grad():
        logits = policy.model(torch.tensor([prompt + done])).logits[0, len(prompt) - 1 : -1]
    logprobs_TV = torch.log_softmax(logits, -1)
    return logprobs_TV[torch.arange(len(done)), torch.tensor(done)], logprobs_TV


def tasks(report: StepReport) -> list[str]:
    return [group.example.task for group in report.groups]


@pytest.mark.parametrize(
    ("zero_variance", "trained", "sampled", "replaced"),
    [
        ("keep", ["policy", "environment"], 2, 0.0),
        ("drop", ["policy"], 2, 0.5),
        # The zero-variance group is replaced by a group of the next prompt, which is of the policy task.
        ("refill", ["policy", "policy"], 3, 1 / 3),
    ],
)
def test_zero_variance_group_is_kept_dropped_or_replaced(
    make_run: MakeRun, zero_variance: str, trained: list[str], sampled: int, replaced: float
) -> None:
    given = (f"{COLLECTION}.zero_variance={zero_variance}", "kl.coef=0", *BOTH_TASKS)
    context = rescored(make_run(*given).context, same_for_environment)
    report = grpo_step(context, 0)
    assert tasks(report) == trained and len(report.rollout.groups) == sampled
    assert len(report.rollout.completions()) == 4 * sampled
    assert report.tokens.count == int(lengths(report).sum())
    metrics = step_metrics(report, context)
    assert metrics["group/replaced_fraction"] == pytest.approx(replaced)
    # Rewards and variance are those of all sampled groups, of which one has equal rewards.
    assert metrics["group/zero_variance_fraction"] == pytest.approx(1 / sampled)
    assert metrics["reward/task/environment"] == 0.5 and len(report.reward_by_task()) == 2


@pytest.mark.parametrize("rounds", [0, 2])
def test_refills_are_limited_and_take_next_prompts(
    make_run: MakeRun, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "MAX_REFILLS", rounds)
    run = make_run(f"{COLLECTION}.zero_variance=refill")
    context = rescored(run.context, lambda _i, _question, score: replace(score, total=0.5))
    drawn = make_run().context.sampler.prompts.draw(2 * (1 + rounds) + 2)
    prompted: list[str] = []
    generate = context.sampler.generator.generate

    def note(prompts: Any, **settings: Any) -> Any:
        prompted.extend(context.policy.tokenizer.decode(prompt) for prompt in prompts)
        return generate(prompts, **settings)

    context.sampler.generator.generate = note  # type: ignore[method-assign]
    before = [parameter.clone() for parameter in context.policy.model.parameters()]
    report = grpo_step(context, 0)
    assert len(report.rollout.groups) == 2 * (1 + rounds) and report.groups == () and report.fault is None
    assert [text.split() for text in prompted] == [example.prompt.split() for example in drawn[: 2 * (1 + rounds)]]
    assert no_progress_reason(report) == "no group was kept"
    assert all(torch.equal(*pair) for pair in zip(before, context.policy.model.parameters(), strict=True))
    assert context.sampler.prompts.draw(2) == drawn[-2:]
    assert step_metrics(report, context)["optim/updates"] == 0


def test_truncated_completion_counts_in_group_mean_but_is_not_trained(make_run: MakeRun) -> None:
    def step(truncated: str) -> tuple[StepContext, StepReport]:
        given = ("generator.max_new_tokens=32", "objective.group_size=8", f"{COLLECTION}.truncated={truncated}")
        context = make_run(*given).context
        return context, grpo_step(context, 0)

    (_, scored), (context, masked) = step("score"), step("mask")
    finished_PG = torch.tensor([[s.completion.finished for s in group.samples] for group in masked.groups])
    assert 0 < int(finished_PG.sum()) < 16
    assert torch.equal(masked.advantages_PG, scored.advantages_PG) and masked.advantages_PG[~finished_PG].any()
    assert scored.tokens.count == int(lengths(scored).sum())
    assert masked.tokens.count == int(lengths(masked)[finished_PG].sum())
    assert step_metrics(masked, context)["rollout/truncated_fraction"] == float((~finished_PG).float().mean())


def test_step_makes_no_update_if_all_completions_are_masked(make_run: MakeRun) -> None:
    context = make_run("generator.max_new_tokens=4", f"{COLLECTION}.truncated=mask").context
    before = [parameter.clone() for parameter in context.policy.model.parameters()]
    report = grpo_step(context, 0)
    assert report.fault is None and report.rewards_PG.shape == (2, 4) and report.updates == 0
    assert all(torch.equal(*pair) for pair in zip(before, context.policy.model.parameters(), strict=True))


WITH_VALUES = (
    "rubric.source=cached",
    "data.train=default",
    "data.held_out=default",
    "data.tasks=[policy]",
    "kl.coef=0",
)


def equal_rewards(context: StepContext) -> StepContext:
    return rescored(context, lambda _i, _request, score: replace(score, total=0.5))


@pytest.mark.parametrize("updates", [(), ("objective.epochs=2", "kl.form=in_reward")])
def test_legal_moves_are_trained_if_all_completions_are_masked(make_run: MakeRun, updates: tuple[str, ...]) -> None:
    given = (*WITH_VALUES, "model.path=tiny", "generator.max_new_tokens=12", "optim.lr=0.0001", *updates)
    reports = {}
    for truncated in ("mask", "score"):
        context = make_run(*given, f"{COLLECTION}.truncated={truncated}").context
        reports[truncated] = grpo_step(context, 0)
        assert step_metrics(reports[truncated], context)["rollout/truncated_fraction"] == 1
    masked, scored = reports["mask"], reports["score"]
    assert masked.fault is None and masked.updates == scored.updates == 1 + bool(updates)
    assert masked.tokens.count == 0 < scored.tokens.count and masked.update_norm > 0
    if not updates:
        assert masked.tokens.expected_value_sum == pytest.approx(scored.tokens.expected_value_sum, rel=1e-4)
    assert masked.tokens.expected_value_sum > 0.1 and no_progress_reason(masked) == ""


@pytest.mark.parametrize(("zero_variance", "sampled"), [("drop", 2), ("refill", 4)])
def test_legal_moves_of_dropped_and_replaced_groups_are_trained(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, zero_variance: str, sampled: int
) -> None:
    monkeypatch.setattr(collection, "MAX_REFILLS", 1)
    given = (*WITH_VALUES, "model.path=tiny", "generator.max_new_tokens=12", "optim.lr=1e-4", "objective.minibatches=2")
    context = equal_rewards(make_run(*given, f"{COLLECTION}.zero_variance={zero_variance}").context)
    report = grpo_step(context, 0)
    assert report.fault is None and report.groups == () and len(report.rollout.groups) == sampled
    assert report.updates == 1 and report.update_norm > 0 and no_progress_reason(report) == ""
    wanted = move_batch(report.rollout.groups, make_run(*given).context.policy)
    assert wanted is not None and len(wanted.prompts_B.unique()) == sampled
    value, _, _ = expected_value(make_run(*given).context.policy, wanted, temperature=context.temperature)
    assert report.tokens.expected_value_sum == pytest.approx(float(value.detach()), rel=1e-4)
    assert step_metrics(report, context)["reward/expected_value"] == report.tokens.expected_value_sum


def test_kept_group_behind_a_dropped_one_keeps_its_own_legal_moves(make_run: MakeRun) -> None:
    given = (*WITH_VALUES, "model.path=tiny", "generator.max_new_tokens=12", "optim.lr=0")
    first = make_run(*given).context.sampler.prompts.draw(1)[0].prompt

    def alike(_i: int, request: ScoreRequest, score: Score) -> Score:
        return replace(score, total=0.5) if request.prompt == first else score

    values = {}
    for zero_variance in ("keep", "drop"):
        report = grpo_step(rescored(make_run(*given, f"{COLLECTION}.zero_variance={zero_variance}").context, alike), 0)
        assert len(report.groups) == (2 if zero_variance == "keep" else 1)
        values[zero_variance] = report.tokens.expected_value_sum
    assert values["drop"] == pytest.approx(values["keep"], rel=1e-4) and values["keep"] > 0.1


def test_fault_of_an_update_of_legal_moves_alone_has_their_batch(make_run: MakeRun) -> None:
    given = (*WITH_VALUES, "model.path=tiny", "generator.max_new_tokens=12", f"{COLLECTION}.truncated=mask")
    context = make_run(*given).context

    def spoil(moment: Moment, context: StepContext, _event: Event) -> None:
        if moment is Moment.accumulated:
            gradient = next(p.grad for p in context.policy.model.parameters() if p.grad is not None)
            gradient.fill_(torch.nan)

    context.hooks.append(spoil)
    report = grpo_step(context, 0)
    assert report.fault is not None and report.fault.kind is FaultKind.gradient
    assert isinstance(report.fault_batch, MoveBatch) and len(report.fault_batch.tokens_BT)


def test_kl_in_reward_subtracts_each_completion_kl_from_its_reward(make_run: MakeRun) -> None:
    given = ("kl.form=in_reward", "kl.coef=0.01", "objective.advantage.scale=none", "generator.max_new_tokens=16")
    context = make_run(*given, "optim.lr=0").context
    shake(context.references.current)
    report = grpo_step(context, 0)
    kls = []
    for group in report.groups:
        for i in range(4):
            ours, theirs = (row_statistics(side, group, i)[0] for side in (context.policy, context.references.current))
            kls.append(float((ours - theirs).sum()))
    penalised_PG = report.rewards_PG - 0.01 * torch.tensor(kls).reshape(2, 4)
    expected = group_advantages(penalised_PG, AdvantageConfig(scale=AdvantageScale.none))
    torch.testing.assert_close(report.advantages_PG, expected, atol=1e-5, rtol=0)
    raw = group_advantages(report.rewards_PG, AdvantageConfig(scale=AdvantageScale.none))
    assert (report.advantages_PG - raw).abs().max() > 1e-3
    # The report has the rewards of the scorer, and the loss has no KL term.
    judged = [[sample.score.total for sample in group.samples] for group in report.groups]
    assert report.rewards_PG.tolist() == torch.tensor(judged).tolist() and report.tokens.kl_term_sum == 0


def test_kl_in_reward_gives_advantages_to_groups_of_equal_rewards(make_run: MakeRun) -> None:
    context = make_run("kl.form=in_reward", "kl.coef=1", "generator.max_new_tokens=16", "optim.lr=0").context
    shake(context.references.current)
    context.hooks.append(lambda moment, _, event: event.rewards_PG.fill_(0.5) if moment is Moment.collected else None)
    report = grpo_step(context, 0)
    assert report.advantages_PG.any(-1).all()


def test_second_update_uses_ratio_to_weights_before_first_update(make_run: MakeRun) -> None:
    context = make_run("objective.epochs=2", "generator.max_new_tokens=16", "objective.mismatch_cap=0").context
    states: list[dict[str, Tensor]] = []

    def keep(moment: Moment, context: StepContext, _event: Event) -> None:
        if moment in (Moment.begun, Moment.updated):
            states.append({name: value.clone() for name, value in context.policy.model.state_dict().items()})

    context.hooks.append(keep)
    report = grpo_step(context, 0)
    assert report.updates == 2 and report.tokens.count == 2 * int(lengths(report).sum())
    ratios = []
    for group in report.groups:
        for i in range(4):
            logprobs = []
            for state in states[:2]:
                context.policy.model.load_state_dict(state)
                logprobs.append(row_statistics(context.policy, group, i)[0])
            ratios.append(float((logprobs[1] - logprobs[0]).exp().max()))
    assert max(ratios) > 1.01 and report.tokens.ratio_max == pytest.approx(max(ratios), rel=1e-4)
    assert grpo_step(make_run().context, 0).tokens.ratio_max == 1.0


@pytest.mark.parametrize(("form", "passes"), [("k2_straight_through", True), ("in_reward", True), ("off", False)])
def test_reference_is_computed_unless_kl_is_off(make_run: MakeRun, form: str, passes: bool) -> None:
    given = ("objective.epochs=2", "generator.max_new_tokens=8", "kl.coef=0", f"kl.form='{form}'")
    context = make_run(*given).context
    seen: list[int] = []
    context.references.current.model.base_model.register_forward_pre_hook(lambda *_: seen.append(1))
    report = grpo_step(context, 0)
    assert report.updates == 2 and bool(seen) is passes


def test_large_updates_are_clipped_and_single_update_is_not(make_run: MakeRun) -> None:
    def clipped(*overrides: str) -> float:
        context = make_run("optim.lr=0.02", "generator.max_new_tokens=16", *overrides).context
        return step_metrics(grpo_step(context, 0), context)["policy/clip_fraction"]

    assert 0 < clipped("objective.epochs=3") < 1
    assert clipped() == 0


def test_every_row_is_trained_once_per_epoch(make_run: MakeRun) -> None:
    given = ("objective.epochs=2", "objective.minibatches=3", "optim.micro_batch_size=2", "optim.lr=0.001")
    context = make_run(*given, "generator.max_new_tokens=16", packs=False).context
    trained: list[tuple[int, ...]] = []

    def note(_module: nn.Module, _inputs: Any, named: dict[str, Any]) -> None:
        if torch.is_grad_enabled():
            for row, real in zip(named["input_ids"], named["attention_mask"], strict=True):
                trained.append(tuple(row[real.bool()].tolist()))

    context.policy.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    report = grpo_step(context, 0)
    expected = [group.prompt_tokens + s.completion.tokens for group in report.groups for s in group.samples]
    assert len(expected) == 8 and report.updates == 6
    assert sorted(trained[:8]) == sorted(trained[8:]) == sorted(expected)
    assert trained[:8] != trained[8:]


def test_minibatch_split_depends_only_on_seed_and_step(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[list[int]] = []
    permute = torch.randperm

    def noted(count: int, **named: Any) -> Tensor:
        orders.append(permute(count, **named).tolist())
        return permute(count, **named)

    monkeypatch.setattr(torch, "randperm", noted)
    for seed, step, state in ((0, 0, 5), (0, 0, 6), (0, 1, 6), (1, 0, 6)):
        context = make_run("objective.minibatches=2", "generator.max_new_tokens=8", f"seed={seed}").context
        # A thread that samples during training may restore torch's random state, and ranks may have different ones.
        context.hooks[:] = [lambda moment, *_, state=state: torch.manual_seed(state)]
        grpo_step(context, step)
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert orders[0] == orders[1] and len({*map(tuple, orders)}) == 3


def shifted(context: StepContext, nat: float) -> StepContext:
    """Add `nat` to the log-probs that the sampler reports, so that they differ from the trainer's."""

    def change(done: SampledCompletion) -> SampledCompletion:
        return replace(done, logprobs=tuple(value + nat for value in done.logprobs))

    context.sampler.generator = Resampling(context.sampler.generator, change)
    return context


def test_sampler_mismatch_scales_gradient_and_raw_ratio_is_reported(make_run: MakeRun) -> None:
    def step(nat: float, *overrides: str) -> tuple[StepReport, dict[str, float]]:
        context = make_run("kl.coef=0", NO_CLIP, "generator.max_new_tokens=16", *overrides).context
        report = grpo_step(shifted(context, nat), 0)
        return report, step_metrics(report, context)

    plain, metrics = step(0.0)
    assert metrics["sampler/ratio_raw_max"] == pytest.approx(1.0, abs=1e-4)
    weighed, metrics = step(0.5)
    # The trainer's probability is e^-0.5 times the sampler's, and the gradient has the same factor.
    assert weighed.grad_norm == pytest.approx(0.6065307 * plain.grad_norm, rel=1e-4)
    assert metrics["sampler/ratio_raw_max"] == pytest.approx(1.6487213, rel=1e-4)
    assert metrics["sampler/corrected_fraction"] == 1.0
    truncated, metrics = step(-2.0)
    # The ratio e² is truncated to 2 in the gradient and reported without truncation.
    assert truncated.grad_norm == pytest.approx(2 * plain.grad_norm, rel=1e-4)
    assert metrics["sampler/ratio_raw_max"] == pytest.approx(7.3890561, rel=1e-4)
    off, metrics = step(0.5, "objective.mismatch_cap=0")
    assert metrics["sampler/corrected_fraction"] == 0
    # The plain gradient is weighted too, by ratios that differ from 1 by about 1e-6 because of rounding.
    assert off.grad_norm == pytest.approx(plain.grad_norm, rel=1e-4)
    unshifted, _ = step(0.0, "objective.mismatch_cap=0")
    assert off.grad_norm == unshifted.grad_norm


def test_failed_weight_sync_is_a_fault_before_sampling_and_training(make_run: MakeRun) -> None:
    context = make_run().context
    context.sampler.generator = TakesNoWeights(context.sampler.generator, lambda done: done)
    before = checksum(context.policy.model)
    report = grpo_step(context, 0)
    assert report.fault is not None and report.fault.kind is FaultKind.generator
    assert "the sampler has others" in report.fault.detail
    assert (report.updates, len(report.rollout.completions())) == (0, 0)
    assert checksum(context.policy.model) == before


@dataclass
class NotingWorld(World):
    """World of a single process that records its collectives."""

    met: list[str]

    def all_gather(self, work: Callable[[], Result], what: str) -> list[Result]:
        self.met.append(what)
        return [work()]


def test_rank_joins_same_collectives_with_and_without_engines(make_run: MakeRun) -> None:
    def meetings(*counts: EngineCounts | None) -> tuple[list[str], StepReport]:
        """Return the collectives and the report of a step whose scorer has these counts before and after it."""
        context = make_run("generator.max_new_tokens=8").context
        left, world = iter(counts), NotingWorld([])
        context.world = context.sampler.world = world
        context.sampler.scorer.engine_counts = lambda: next(left)  # type: ignore[method-assign]
        return world.met, grpo_step(context, 0)

    (without, _), (begun, report), (running, _) = (
        meetings(None, None),
        meetings(None, EngineCounts(positions=3)),
        meetings(EngineCounts(positions=3), EngineCounts(positions=5)),
    )
    assert "completions" in without and without == begun == running
    # The step in which the engines start has their counts too.
    assert report.rollout.engine == EngineCounts(positions=3)


def test_out_of_memory_in_optimizer_step_is_a_fault(make_run: MakeRun) -> None:
    context = make_run("generator.max_new_tokens=8").context

    def step() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nsecond line")

    context.optimizer.step = step  # type: ignore[assignment, method-assign]
    report = grpo_step(context, 0)
    assert report.fault == Fault(FaultKind.memory, "update", "CUDA out of memory. Tried to allocate 2 GiB")
    assert report.updates == 0

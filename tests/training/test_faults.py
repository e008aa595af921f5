"""Faults injected into real runs: the recovery action, the diagnosis, and the steps after the fault."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from torch import Tensor, nn

from rookworld_rlvr.app.arguments import conf_folder
from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.hydra_command import EXIT_CODES, store_schema, to_dataclass
from rookworld_rlvr.errors import TrainingGaveUpError
from rookworld_rlvr.model.batch import Batch, micro_batches
from rookworld_rlvr.rewards import Score
from rookworld_rlvr.rewards.score import MoveChoice, Scorer, ScoreRequest
from rookworld_rlvr.rollout.generator import Generator, SampledCompletion
from rookworld_rlvr.stability.faults import DAMAGING, Fault, FaultKind
from rookworld_rlvr.stockfish.analysis import Analysis, EngineCounts
from rookworld_rlvr.training import checks
from rookworld_rlvr.training.checkpoint import STATE_FILE, checkpoint_folder
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.diagnosis import KEEP_FAULTS, SUGGESTIONS, save_fault, write_diagnosis
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.state import Event, Hook, Moment, StepContext, StepReport
from rookworld_rlvr.training.step import grpo_step
from rookworld_rlvr.training.trainer import train as train_run

MakeRun = Callable[..., Run]
BAD_WEIGHT = "transformer.ln_f.weight"
# Faults begin at the fifth step, when the guards have a history and a checkpoint is known to be good.
FIRST, MOST = 4, 3
GIVEN = (
    "evaluation.rows=0",
    "seed=1",
    "checkpoint_every=1",
    # With prompts of one task only, all are sampled together, which takes half the time.
    "data.tasks=[policy,environment:0]",
    "generator.max_new_tokens=8",
    "optim.lr=0.001",
    "optim.min_lr_fraction=1",
    f"recovery.max_consecutive_nans={MOST}",
)


@pytest.fixture(autouse=True)
def short(set_limits: Callable[..., None]) -> None:
    set_limits(GOOD_STEPS=1, RAMP_STEPS=1, HISTORY=2, KEEP_CHECKPOINTS=99)


@dataclass
class Watched:
    """Hook that records the current step and, at the beginning of each step, the weights and the last good step."""

    step: int = -1
    weights: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    last_good: dict[int, int] = field(default_factory=dict)

    def __call__(self, moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.begun:
            self.step = event.step
            state = context.policy.model.state_dict()
            self.weights[event.step] = {name: value.clone() for name, value in state.items()}
            self.last_good[event.step] = context.recovery.last_good_step
        if moment is Moment.collected:
            # The rewards of every group differ, so every good step has an effect, whatever the model sampled.
            event.rewards_PG.add_(torch.linspace(0.0, 0.1, event.rewards_PG.shape[1]))


Injection = Callable[[Run, Callable[[], bool]], None]


def at(moment: Moment, change: Callable[[StepContext, Event], None]) -> Injection:
    """Return an injection by a hook that changes something at one moment of a faulty step."""

    def install(run: Run, faulty: Callable[[], bool]) -> None:
        def hook(now: Moment, context: StepContext, event: Event) -> None:
            if now is moment and faulty():
                change(context, event)

        run.context.hooks.append(hook)

    return install


def bad_logits(value: float) -> Injection:
    """Set one logit of each position by a forward hook on the head, so that sampling and training both see it."""

    def install(run: Run, faulty: Callable[[], bool]) -> None:
        def hook(_module: nn.Module, _inputs: Any, logits: Tensor) -> Tensor | None:
            if not faulty():
                return None
            logits = logits.clone()
            logits[..., 0] = value
            return logits

        run.context.policy.model.lm_head.register_forward_hook(hook)

    return install


def bad_gradient(factor: float) -> Injection:
    def change(context: StepContext, _event: Event) -> None:
        context.policy.model.get_parameter(BAD_WEIGHT).grad.mul_(factor)

    return at(Moment.accumulated, change)


def bad_parameter(context: StepContext, _event: Event) -> None:
    context.policy.model.get_parameter(BAD_WEIGHT).data[0] = torch.nan


def bad_moment(context: StepContext, _event: Event) -> None:
    context.optimizer.state[context.policy.model.get_parameter(BAD_WEIGHT)]["exp_avg"][0] = torch.nan


def bad_reward(value: float) -> Injection:
    def change(_context: StepContext, event: Event) -> None:
        event.rewards_PG[0, 1] = value

    return at(Moment.collected, change)


@dataclass
class SilentGenerator:
    """A real generator that returns nothing while `silent`."""

    real: Generator
    silent: Callable[[], bool]

    def sync(self, model: nn.Module) -> None:
        self.real.sync(model)

    def weights_checksum(self) -> str:
        return self.real.weights_checksum()

    def generate(self, prompts: Sequence[tuple[int, ...]], **settings: Any) -> list[list[SampledCompletion]]:
        return [] if self.silent() else self.real.generate(prompts, **settings)


def silent_generator(run: Run, faulty: Callable[[], bool]) -> None:
    run.context.sampler.generator = SilentGenerator(run.context.sampler.generator, faulty)


@dataclass
class NanScorer:
    """A real scorer whose first score is NaN while `broken`. Equal completions may share this score."""

    real: Scorer
    broken: Callable[[], bool]

    def score_all(self, questions: Sequence[ScoreRequest]) -> list[Score]:
        scores = self.real.score_all(questions)
        return [replace(scores[0], total=float("nan")), *scores[1:]] if self.broken() else scores

    def prepare(self, prompts: Iterable[str]) -> None:
        self.real.prepare(prompts)

    def move_choice(self, prompt: str, completion: str, analysis: Analysis) -> MoveChoice | None:
        return self.real.move_choice(prompt, completion, analysis)

    def engine_counts(self) -> EngineCounts | None:
        return self.real.engine_counts()

    def close(self) -> None:
        self.real.close()


def nan_scorer(run: Run, faulty: Callable[[], bool]) -> None:
    run.context.sampler.scorer = NanScorer(run.context.sampler.scorer, faulty)


INJECTIONS: dict[str, tuple[Injection, FaultKind, str]] = {
    "nan_logits": (bad_logits(torch.nan), FaultKind.logprobs, "policy: output of lm_head"),
    "inf_logits": (bad_logits(torch.inf), FaultKind.logprobs, "policy: output of lm_head"),
    "nan_gradient": (bad_gradient(torch.nan), FaultKind.gradient, f"gradient of {BAD_WEIGHT}"),
    "inf_gradient": (bad_gradient(torch.inf), FaultKind.gradient, f"gradient of {BAD_WEIGHT}"),
    "spike": (bad_gradient(1e6), FaultKind.gradient_spike, f"gradient of {BAD_WEIGHT}"),
    "nan_parameter": (at(Moment.updated, bad_parameter), FaultKind.parameter, BAD_WEIGHT),
    "nan_parameter_before": (at(Moment.begun, bad_parameter), FaultKind.parameter, BAD_WEIGHT),
    "nan_moment": (at(Moment.accumulated, bad_moment), FaultKind.parameter, f"optimizer.exp_avg of {BAD_WEIGHT}"),
    "nan_reward": (bad_reward(torch.nan), FaultKind.reward, "reward[group 0, completion 1]"),
    "inf_reward": (bad_reward(-torch.inf), FaultKind.reward, "reward[group 0, completion 1]"),
    "nan_scorer": (nan_scorer, FaultKind.reward, "reward[group 0, completion 0]"),
    "no_completions": (silent_generator, FaultKind.generator, "completions"),
}
WITHOUT_BATCH = {FaultKind.reward, FaultKind.generator, FaultKind.scorer}


def faulty_run(make_saved_run: MakeRun, injection: Injection, times: int, *overrides: str) -> tuple[Run, Watched]:
    """Return a run with `times` faulty steps, beginning with step FIRST, and three good steps after them."""
    run, watched = make_saved_run(*GIVEN, f"steps={FIRST + times + 3}", *overrides), Watched()
    run.context.hooks.append(watched)
    injection(run, lambda: FIRST <= watched.step < FIRST + times)
    return run, watched


def rows(run: Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def saved_weights(run: Run, step: int) -> dict[str, Tensor]:
    path = checkpoint_folder(run.folder, step) / STATE_FILE
    weights: dict[str, Tensor] = torch.load(path, weights_only=True)["policy"]
    return weights


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """Return True if the weights are equal bit for bit. NaN equals nothing."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def diagnosis(run: Run) -> dict[str, str]:
    """Return the lines of the diagnosis by the words they begin with; the headline has the empty key."""
    headline, *lines = (run.folder / "diagnosis.txt").read_text().splitlines()
    return {"": headline} | {line[:15].strip(): line[16:] for line in reversed(lines)}


def composes(overrides: str) -> RunConfig:
    """Return the configuration with the overrides. Raises if hydra or a dataclass refuses one of them."""
    store_schema("train", RunConfig)
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        config: RunConfig = to_dataclass(compose("train", overrides.split()))
    return config


# After the detection all kinds are treated alike, so one of each treatment stands for them where the fault is single.
@pytest.mark.parametrize(
    ("name", "times"), [("nan_gradient", 1), ("nan_parameter", 1), *((name, 3) for name in INJECTIONS)]
)
def test_fault_skips_or_restores_and_later_steps_have_finite_weights(
    make_saved_run: MakeRun, name: str, times: int
) -> None:
    injection, kind, tensor = INJECTIONS[name]
    run, watched = faulty_run(make_saved_run, injection, times)
    train_run(run)
    lines = rows(run)
    assert [row["recovery/skipped"] for row in lines] == [0] * FIRST + [*range(1, times + 1)] + [times] * 3
    # The first fault is skipped and the second in a row restores. Damaged weights are restored at the first fault.
    restores = [max(0, i + (kind in DAMAGING)) for i in range(times)]
    assert [row["recovery/restores"] for row in lines] == [0] * FIRST + restores + [restores[-1]] * 3
    for i, before in enumerate(restores, FIRST):
        restored = before > (restores[i - FIRST - 1] if i > FIRST else 0)
        good = saved_weights(run, watched.last_good[i + 1]) if restored else watched.weights[i]
        assert equal(watched.weights[i + 1], good)
        assert not restored or watched.last_good[i + 1] == 3
    saved = torch.load(run.folder / f"faults/step-{FIRST + times}.pt")
    assert (saved["fault"]["kind"], saved["fault"]["tensor"]) == (kind, tensor)
    assert all(row["optim/update_norm"] > 0 and row["recovery/ineffective"] == 0 for row in lines[-3:])
    assert all(value.isfinite().all() for value in run.context.policy.model.state_dict().values())
    assert all(value.isfinite().all() for value in saved_weights(run, run.config.steps).values())
    assert json.loads((run.folder / "summary.json").read_text())["stopped"] == "finished"


@pytest.mark.parametrize("name", INJECTIONS)
def test_too_many_faults_stop_run_with_diagnosis_and_replayable_batch(
    make_saved_run: MakeRun, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    injection, kind, tensor = INJECTIONS[name]
    run, _ = faulty_run(make_saved_run, injection, MOST + 1)
    with pytest.raises(TrainingGaveUpError, match=r"4 faults in a row.* see .*diagnosis\.txt") as gave_up:
        train_run(run)
    assert EXIT_CODES[gave_up.type] == 4
    text = diagnosis(run)
    assert text[""].startswith(f"step {FIRST + MOST + 1}: 4 faults in a row, ") and tensor in text[""]
    assert (text["fault"], text["first bad"]) == (kind, tensor) and text["measured"]
    assert {"learning rate", "kl coefficient", "loss", "gradient norm", "recovery"} <= text.keys()
    # A fault found before sampling has no prompts.
    assert text.get("prompt", "")[:3] in ({""} if name == "nan_parameter_before" else {"P: ", "A: "})
    config = composes(text["try"])
    assert "optim.lr" not in text["try"] or 0 < config.optim.lr < run.config.optim.lr
    assert len(rows(run)) == FIRST + MOST + 1 and not (run.folder / "summary.json").exists()

    batch = text["batch"].split(";")[0]
    assert Path(batch) == run.folder / f"faults/step-{FIRST + MOST + 1}.pt"
    assert len(list((run.folder / "faults").iterdir())) == KEEP_FAULTS == 3
    if kind is FaultKind.reward:
        rewards = [sample["reward"] for sample in torch.load(batch)["samples"]]
        spoilt = [place for place, reward in enumerate(rewards) if not math.isfinite(reward)]
        # Equal completions share one score.
        assert tensor == f"reward[group 0, completion {spoilt[0]}]" and (len(spoilt) == 1 or name == "nan_scorer")
        assert len(rewards) == 8 and len(spoilt) < 8
    for line in (run.folder / "rollouts.jsonl").read_text().splitlines():
        # JSON has no NaN.
        json.loads(line, parse_constant=pytest.fail)
    capfd.readouterr()
    assert main(["inspect", batch]) == 0
    shown = capfd.readouterr()
    assert shown.err == "" and f"step {FIRST + MOST + 1}: {kind}: {tensor}: " in shown.out
    if kind in WITHOUT_BATCH or name == "nan_parameter_before":
        assert "nothing to replay" in shown.out
    elif kind is FaultKind.parameter:
        assert "weights: those of the fault" in shown.out and f"again: logprobs (policy: {BAD_WEIGHT}" in shown.out
    elif kind is FaultKind.logprobs:
        # The sampler also saw the bad logits, and its log-probs are in the batch.
        assert "again: logprobs (sampler: log-probs" in shown.out
    else:
        # The injected fault is in neither the weights nor the batch, so the replay does not reproduce it.
        assert "gradient norm" in shown.out and "not again" in shown.out


def test_every_fault_kind_has_a_suggestion_that_hydra_accepts() -> None:
    assert SUGGESTIONS.keys() == set(FaultKind)
    for suggestion in SUGGESTIONS.values():
        given = suggestion.format(lr=2e-4 / 3, kl_coef=0.1)
        assert composes(given) != composes("") or given == "generator.kind=hf"


def test_newest_fault_files_are_kept_even_those_of_earlier_steps(tmp_path: Path) -> None:
    # As after a resume from an earlier checkpoint.
    for step in (62, 63, 64, 54):
        saved = save_fault(tmp_path, StepReport(step, 0.0, fault=Fault(FaultKind.loss, "loss", "")))
        assert saved.is_file()
    assert sorted(path.name for path in saved.parent.iterdir()) == ["step-55.pt", "step-64.pt", "step-65.pt"]


def test_fault_text_has_kind_tensor_and_measurement() -> None:
    fault = Fault(FaultKind.reward, "reward[group 0, completion 1]", "expected a finite number, got nan")
    assert str(fault) == "reward (reward[group 0, completion 1]: expected a finite number, got nan)"
    assert [kind for kind in FaultKind if Fault(kind, "", "").damages_weights] == ["kl_limit", "parameter"]


def test_reference_and_sampler_faults_are_distinguished_from_policy_faults(make_saved_run: MakeRun) -> None:
    def spoil_reference(context: StepContext, _event: Event) -> None:
        context.references.current.model.get_parameter(BAD_WEIGHT).data[0] = torch.nan

    class Forgetful(SilentGenerator):
        """A generator whose log-probs are NaN while `silent`."""

        def generate(self, prompts: Any, **settings: Any) -> Any:
            groups = self.real.generate(prompts, **settings)
            if not self.silent():
                return groups
            return [
                [replace(done, logprobs=(float("nan"),) * len(done.tokens)) for done in completions]
                for completions in groups
            ]

    def forget(run: Run, faulty: Callable[[], bool]) -> None:
        run.context.sampler.generator = Forgetful(run.context.sampler.generator, faulty)

    for injection, tensor in (
        (at(Moment.begun, spoil_reference), f"reference: {BAD_WEIGHT}"),
        (forget, "sampler: log-probs"),
    ):
        run, _ = faulty_run(make_saved_run, injection, 1, "checkpoint_every=99")
        train_run(run)
        fault = torch.load(run.folder / f"faults/step-{FIRST + 1}.pt")["fault"]
        assert (fault["kind"], fault["tensor"]) == ("logprobs", tensor)


@pytest.mark.parametrize("override", ["objective.epochs=2", "kl.form=in_reward"], ids=lambda value: value)
def test_non_finite_logits_are_found_in_passes_before_first_update(make_saved_run: MakeRun, override: str) -> None:
    run, watched = faulty_run(make_saved_run, bad_logits(torch.nan), 1, override)
    train_run(run)
    fault = torch.load(run.folder / f"faults/step-{FIRST + 1}.pt")["fault"]
    assert (fault["kind"], fault["tensor"]) == ("logprobs", "policy: output of lm_head")
    assert equal(watched.weights[FIRST], watched.weights[FIRST + 1])
    assert rows(run)[FIRST]["optim/updates"] == 0 and rows(run)[-1]["optim/update_norm"] > 0


def test_damage_hidden_by_another_fault_is_not_saved(make_saved_run: MakeRun) -> None:
    def two_at_once(run: Run, faulty: Callable[[], bool]) -> None:
        at(Moment.begun, bad_moment)(run, faulty)
        silent_generator(run, faulty)

    run, _ = faulty_run(make_saved_run, two_at_once, 1)
    train_run(run)
    assert [row["recovery/restores"] for row in rows(run)][FIRST:] == [1] * 4
    for step in range(FIRST + 5):
        optimizer = torch.load(checkpoint_folder(run.folder, step) / STATE_FILE, weights_only=True)["optimizer"]
        assert all(value.isfinite().all() for state in optimizer["state"].values() for value in state.values())


@pytest.mark.parametrize("name", ["nan_gradient", "nan_logits", "nan_reward"])
def test_disabled_recovery_only_skips_non_finite_steps(make_saved_run: MakeRun, name: str) -> None:
    run, watched = faulty_run(make_saved_run, INJECTIONS[name][0], 3, "recovery.enabled=false")
    train_run(run)
    last = rows(run)[-1]
    assert (last["recovery/skipped"], last["recovery/restores"], last["recovery/lr_scale"]) == (3, 0, 1)
    assert all(equal(watched.weights[i], watched.weights[FIRST]) for i in range(FIRST, FIRST + 4))
    assert not equal(watched.weights[FIRST + 4], watched.weights[FIRST])


def test_out_of_memory_halves_micro_batch_and_keeps_gradient_norm(make_saved_run: MakeRun) -> None:
    def short_of_memory(most: int) -> Hook:
        def hook(moment: Moment, context: StepContext, _event: Event) -> None:
            if moment is Moment.micro_batch and context.micro_batch_size > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nsecond line")

        return hook

    plain = make_saved_run(*GIVEN, "steps=2", "optim.micro_batch_size=8")
    train_run(plain)
    run = make_saved_run(*GIVEN, "steps=2", "optim.micro_batch_size=8", "name=less")
    run.context.hooks.append(short_of_memory(2))
    train_run(run)
    assert [row["recovery/halvings"] for row in rows(run)] == [2, 2] and rows(run)[-1]["recovery/skipped"] == 0
    # Weights are not compared: Adam makes full-sized steps of gradients that differ only by rounding.
    for key in ("optim/grad_norm", "policy/entropy", "reward/mean"):
        assert rows(run)[0][key] == pytest.approx(rows(plain)[0][key], rel=1e-4), key

    run = make_saved_run(*GIVEN, "steps=2", "optim.micro_batch_size=8", "name=none")
    run.context.hooks.append(short_of_memory(0))
    with pytest.raises(TrainingGaveUpError, match=r"memory \(micro_batch: CUDA out of memory"):
        train_run(run)
    text = (run.folder / "diagnosis.txt").read_text()
    assert "generator.batch_size=16 objective.group_size=4" in text and run.context.recovery.halvings == 3


def test_bad_module_is_found_with_the_halved_micro_batch(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def noted(batch: Batch, size: int, **options: bool) -> list[Batch]:
        sizes.append(size)
        return list(micro_batches(batch, size, **options))

    monkeypatch.setattr(checks, "micro_batches", noted)
    run = make_run("optim.micro_batch_size=8")
    run.context.recovery.halvings = 2
    bad_logits(torch.nan)(run, lambda: True)
    fault = grpo_step(run.context, 0).fault
    assert fault is not None and fault.tensor == "policy: output of lm_head" and sizes == [2]


def test_diagnosis_of_high_kl_suggests_twice_the_coefficient(make_saved_run: MakeRun) -> None:
    run = make_saved_run("kl.coef=0.2", "optim.lr=3e-4")
    report = StepReport(step=0, kl_coef=0.2, fault=Fault(FaultKind.kl_limit, "kl/exact", "9"))
    write_diagnosis(run.folder, run.context, report, reason="too many faults")
    assert diagnosis(run)["try"] == "kl.coef=0.4 optim.lr=1.0e-04"


def test_disabled_recovery_trains_on_spike_and_gives_up_on_damage(make_saved_run: MakeRun) -> None:
    run, watched = faulty_run(make_saved_run, bad_gradient(1e6), 1, "recovery.enabled=false")
    train_run(run)
    assert rows(run)[FIRST]["optim/grad_norm"] > 1e3 and rows(run)[-1]["recovery/skipped"] == 0
    assert not equal(watched.weights[FIRST], watched.weights[FIRST + 1])
    run, _ = faulty_run(make_saved_run, at(Moment.updated, bad_parameter), 1, "recovery.enabled=false", "name=other")
    with pytest.raises(TrainingGaveUpError, match="1 faults in a row, 0 restores"):
        train_run(run)

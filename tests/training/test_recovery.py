"""Recovery: actions compared with values computed by hand, and restores and learning rates in real runs."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.errors import TrainingGaveUpError
from rookworld_rlvr.stability.faults import Fault, FaultKind
from rookworld_rlvr.stability.recovery import Action, RecoveryConfig, RecoveryState, escalate
from rookworld_rlvr.training.checkpoint import STATE_FILE, checkpoint_folder
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.state import Event, Moment, StepContext, StepReport
from rookworld_rlvr.training.step import grpo_step
from rookworld_rlvr.training.trainer import train as train_run

MakeRun = Callable[..., Run]
SetLimits = Callable[..., None]
SMALL, DAMAGE = Fault(FaultKind.reward, "reward", ""), Fault(FaultKind.parameter, "weight", "")
GIVEN = (
    "evaluation.rows=0",
    "checkpoint_every=1",
    "data.tasks=[policy,environment:0]",
    "generator.max_new_tokens=8",
    "optim.lr=0.001",
    "optim.min_lr_fraction=1",
    "recovery.kl_limit=0",
)
# Limits for runs of a few steps, all of whose checkpoints are kept.
SHORT = {"KEEP_CHECKPOINTS": 99, "GOOD_STEPS": 1, "RAMP_STEPS": 1, "HISTORY": 2}


def actions(state: RecoveryState, config: RecoveryConfig, faults: list[Fault | None], step: int = 1) -> list[Action]:
    return [escalate(state, config, step=i, fault=fault) for i, fault in enumerate(faults, step)]


def test_first_fault_skips_second_in_a_row_restores_and_too_many_stop(set_limits: SetLimits) -> None:
    config = RecoveryConfig(max_consecutive_nans=3)
    assert actions(RecoveryState(), config, [SMALL] * 4) == [Action.skip, Action.restore, Action.restore, Action.stop]
    state = RecoveryState()
    alternating = [SMALL, None] * 4
    assert actions(state, config, alternating) == [Action.skip, Action.proceed] * 4
    assert (state.skipped, state.consecutive, state.restores, state.lr_scale) == (4, 0, 0, 1.0)
    set_limits(RESTORE_AFTER=3)
    patient = RecoveryConfig(max_consecutive_nans=9)
    assert actions(RecoveryState(), patient, [SMALL] * 3) == [Action.skip, Action.skip, Action.restore]


def test_damage_restores_at_once_and_stops_without_recovery() -> None:
    assert actions(RecoveryState(), RecoveryConfig(), [DAMAGE]) == [Action.restore]
    off = RecoveryConfig(enabled=False, max_consecutive_nans=3)
    assert actions(RecoveryState(), off, [DAMAGE]) == [Action.stop]
    state = RecoveryState()
    assert actions(state, off, [SMALL] * 4) == [Action.skip] * 3 + [Action.stop]
    assert (state.restores, state.lr_scale) == (0, 1.0)


def test_learning_rate_ramps_back_to_ceiling_lowered_by_each_restore(set_limits: SetLimits) -> None:
    set_limits(GOOD_STEPS=3, RAMP_STEPS=2, MAX_RESTORES=2)
    config = RecoveryConfig(recovery_lr_factor=0.25)
    state = RecoveryState()

    def scales(faults: list[Fault | None]) -> list[float]:
        values = []
        for fault in faults:
            escalate(state, config, step=1, fault=fault)
            values.append(state.lr_scale)
        return values

    # The rate falls to a quarter. After three good steps it rises again by a factor of √4 = 2 per step.
    assert scales([DAMAGE] + [None] * 6) == pytest.approx([0.25] * 4 + [0.5, 1.0, 1.0])
    assert scales([DAMAGE] + [None] * 6) == pytest.approx([0.0625] * 4 + [0.125, 0.25, 0.25])
    # A skipped fault resets the count of good steps and does not change the learning rate.
    assert scales([SMALL, None, None]) == pytest.approx([0.25] * 3)
    assert escalate(state, config, step=1, fault=DAMAGE) is Action.stop


def test_fault_during_ramp_reduces_rate_from_the_lowered_ceiling(set_limits: SetLimits) -> None:
    set_limits(GOOD_STEPS=1, RAMP_STEPS=4)
    state, config = RecoveryState(), RecoveryConfig(recovery_lr_factor=0.5)
    actions(state, config, [DAMAGE, None, None, None])
    assert state.lr_scale == pytest.approx(0.5 * 2**0.5)
    escalate(state, config, step=5, fault=DAMAGE)
    assert (state.lr_scale, state.lr_ceiling) == pytest.approx((0.25, 0.5))


def test_checkpoint_counts_as_good_after_good_steps_without_fault(set_limits: SetLimits) -> None:
    set_limits(GOOD_STEPS=2)
    state, config = RecoveryState(), RecoveryConfig()
    good_steps = []
    for step in range(1, 8):
        escalate(state, config, step=step, fault=SMALL if step == 4 else None)
        state.record_checkpoint(step, None)
        good_steps.append(state.last_good_step)
    # Checkpoint 1 counts as good at step 3. The fault of step 4 resets the count: checkpoint 3 follows at 6, 5 at 7.
    assert good_steps == [0, 0, 1, 1, 1, 3, 5]
    escalate(state, config, step=8, fault=DAMAGE)
    assert state.candidates == [] and state.last_good_step == 5


def test_best_checkpoint_has_the_highest_validation_score() -> None:
    state, bests = RecoveryState(), []
    for step, score in ((1, 0.5), (2, 0.4), (3, None), (4, 0.9)):
        state.record_checkpoint(step, score)
        bests.append((state.best_step, state.best_score))
    assert bests == [(1, 0.5), (1, 0.5), (1, 0.5), (4, 0.9)]


def test_recovery_state_round_trips_through_dict(set_limits: SetLimits) -> None:
    set_limits(GOOD_STEPS=1)
    state, other = RecoveryState(), RecoveryState()
    actions(state, RecoveryConfig(), [DAMAGE, None, SMALL, None])
    state.record_checkpoint(4, 0.25)
    other.load_state_dict(state.state_dict())
    assert asdict(other) == asdict(state) != asdict(RecoveryState())


@pytest.mark.parametrize(
    "changes",
    [
        {"recovery_lr_factor": 0.0},
        {"recovery_lr_factor": 1.5},
        {"max_consecutive_nans": 0},
        {"kl_limit": -1.0},
        {"kl_limit": math.nan},
    ],
    ids=str,
)
def test_recovery_options_out_of_range_are_refused_by_name(changes: dict[str, Any]) -> None:
    [name] = changes
    with pytest.raises(ValueError, match=name):
        RecoveryConfig(**changes)


def rows(run: Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def state_of(run: Run, step: int) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(checkpoint_folder(run.folder, step) / STATE_FILE, weights_only=True)
    return saved


def watch_weights(run: Run) -> dict[int, dict[str, Tensor]]:
    """Return the weights at the beginning of each step; the dict is filled during the run."""
    weights: dict[int, dict[str, Tensor]] = {}

    def hook(moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.begun:
            weights[event.step] = {name: value.clone() for name, value in context.policy.model.state_dict().items()}

    run.context.hooks.append(hook)
    return weights


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def nan_rewards(*steps: int) -> Callable[[Moment, StepContext, Event], None]:
    def hook(moment: Moment, _context: StepContext, event: Event) -> None:
        if moment is Moment.collected and event.step in steps:
            event.rewards_PG[0, 0] = torch.nan

    return hook


def test_restore_resets_optimizer_and_schedule_but_not_prompts(make_saved_run: MakeRun, set_limits: SetLimits) -> None:
    set_limits(**SHORT)
    run = make_saved_run("steps=9", *GIVEN)
    run.context.hooks.append(nan_rewards(4, 5))
    seen: list[tuple[int, list[str]]] = []

    def note(moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.collected:
            seen.append((context.schedule_step, [group.example.prompt for group in event.rollout.groups]))

    run.context.hooks.append(note)
    weights = watch_weights(run)
    train_run(run)
    # At the second fault, the last checkpoint known to be good is checkpoint 3.
    assert_equal(weights[6], state_of(run, 3)["policy"])
    clocks, prompts = zip(*seen, strict=True)
    assert list(clocks) == [0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert len({prompt for pair in prompts for prompt in pair}) == 18
    [updates] = {float(state["step"]) for state in run.context.optimizer.state.values()}
    # There were three updates before the checkpoint, and three after the restore.
    assert updates == 6
    assert rows(run)[-1]["recovery/skipped"] == 2 and rows(run)[-1]["recovery/restores"] == 1


def test_learning_rate_of_updates_falls_after_restore_and_returns(
    make_saved_run: MakeRun, set_limits: SetLimits
) -> None:
    set_limits(**SHORT)
    run = make_saved_run("steps=9", *GIVEN)
    run.context.hooks.append(nan_rewards(4, 5))
    used: list[float] = []

    def note(moment: Moment, context: StepContext, _event: Event) -> None:
        if moment is Moment.updated:
            used.extend(group["lr"] for group in context.optimizer.param_groups)

    run.context.hooks.append(note)
    train_run(run)
    assert [row["optim/lr"] for row in rows(run)] == pytest.approx([1e-3] * 6 + [5e-4] * 2 + [1e-3])
    # The two faulty steps made no update.
    assert used == pytest.approx([1e-3] * 4 + [5e-4] * 2 + [1e-3])
    assert [row["recovery/lr_scale"] for row in rows(run)] == [1] * 5 + [0.5, 0.5, 1, 1]


def knock(step: int) -> Callable[[Moment, StepContext, Event], None]:
    """Return a hook that moves the weights far at the beginning of a step."""

    def hook(moment: Moment, context: StepContext, event: Event) -> None:
        if moment is Moment.begun and event.step == step:
            with torch.no_grad():
                for parameter in context.policy.model.parameters():
                    parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))

    return hook


def test_kl_above_limit_restores_at_once_without_history(make_saved_run: MakeRun, set_limits: SetLimits) -> None:
    set_limits(**SHORT | {"HISTORY": 99})
    run = make_saved_run("steps=4", *GIVEN, "recovery.kl_limit=0.5")
    run.context.hooks.append(knock(2))
    weights = watch_weights(run)
    train_run(run)
    assert torch.load(run.folder / "faults/step-3.pt")["fault"]["kind"] == "kl_limit"
    assert_equal(weights[3], state_of(run, 1)["policy"])


def test_more_restores_than_allowed_stop_the_run(make_saved_run: MakeRun, set_limits: SetLimits) -> None:
    set_limits(**SHORT, MAX_RESTORES=2)
    run = make_saved_run("steps=9", *GIVEN, "recovery.kl_limit=1e-9")
    with pytest.raises(TrainingGaveUpError, match=r"2 restores so far; the last was kl_limit \(kl/exact: "):
        train_run(run)
    # KL is 0 in the first step after each restore and above the limit in the next step.
    assert [row["recovery/restores"] for row in rows(run)] == [0, 1, 1, 2, 2, 2]
    assert all(value.isfinite().all() for value in state_of(run, 0)["policy"].values())


def test_kl_limit_applies_to_each_update_not_to_step_mean(make_run: MakeRun) -> None:
    def moved_before_the_last_of_four(kl_limit: float) -> StepReport:
        context = make_run(f"recovery.kl_limit={kl_limit}", "objective.epochs=4", "optim.lr=0").context
        move = knock(0)
        context.hooks.append(
            lambda moment, context, event: (
                move(Moment.begun, context, event) if moment is Moment.updated and event.updates == 3 else None
            )
        )
        return grpo_step(context, 0)

    free = moved_before_the_last_of_four(0)
    # Three updates have a KL of 0, so the KL of the last one is four times the mean of all.
    mean = free.tokens.kl_exact_mean
    assert free.fault is None and free.updates == 4 and mean > 0
    stopped = moved_before_the_last_of_four(2 * mean)
    assert stopped.fault is not None and stopped.fault.kind is FaultKind.kl_limit and stopped.updates == 3

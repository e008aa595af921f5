"""A run that learns nothing stops and gives the reason."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rookworld_rlvr.app.hydra_command import EXIT_CODES
from rookworld_rlvr.errors import TrainingGaveUpError
from rookworld_rlvr.rollout.groups import Rollout
from rookworld_rlvr.stability.faults import Fault, FaultKind
from rookworld_rlvr.stability.recovery import RecoveryState
from rookworld_rlvr.training.health import no_progress_reason, watch
from rookworld_rlvr.training.loss import TokenTotals
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.state import Event, Moment, StepContext, StepReport
from rookworld_rlvr.training.trainer import train as train_run

MakeRun = Callable[..., Run]


@pytest.fixture(autouse=True)
def three_steps(set_limits: Callable[..., None]) -> None:
    set_limits(MAX_INEFFECTIVE_STEPS=3, TRANSCRIPTS_EVERY=3)


GIVEN = ("evaluation.rows=0", "generator.max_new_tokens=8", "steps=9")


def constant_reward(moment: Moment, _context: StepContext, event: Event) -> None:
    if moment is Moment.collected:
        event.rewards_PG.fill_(0.25)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        # All completions of a group are equal. There is one group of each task, so that rewards differ between groups.
        (("generator.temperature=1e-6", "data.tasks=[policy,environment]"), "the rewards of each group are equal"),
        (("optim.lr=0",), "the update changed no weight"),
        (("reward",), r"every completion earned the same reward, 0\.250"),
        (("generator.temperature=1e-6", "objective.collection.zero_variance=drop"), "no group was kept"),
        (("generator.temperature=1e-6", "objective.collection.zero_variance=refill"), "no group was kept"),
    ],
    ids=["temperature", "lr", "reward", "drop", "refill"],
)
def test_run_without_effect_stops_with_reason_and_diagnosis(
    make_saved_run: MakeRun, overrides: tuple[str, ...], reason: str
) -> None:
    run = make_saved_run(*GIVEN, *(override for override in overrides if "=" in override))
    if "reward" in overrides:
        run.context.hooks.append(constant_reward)
    message = f"3 steps in a row had no effect; the last because {reason}"
    with pytest.raises(TrainingGaveUpError, match=message) as error:
        train_run(run)
    assert EXIT_CODES[error.type] == 4
    diagnosis = (run.folder / "diagnosis.txt").read_text()
    assert str(error.value).endswith(f"; see {run.folder}/diagnosis.txt")
    assert diagnosis.startswith(f"step 3: {str(error.value).rpartition('; see ')[0]}\n")
    assert "\nprompt          " in diagnosis and "\nbatch " not in diagnosis
    assert (run.folder / "metrics.jsonl").read_text().count("\n") == 3
    assert (run.folder / "rollouts.jsonl").read_text().count('"step": 3,') == 2 * len(
        {line for line in diagnosis.splitlines() if line.startswith("prompt ")}
    ) * ("no group was kept" not in reason)


def test_effective_update_resets_count_of_ineffective_steps(make_saved_run: MakeRun) -> None:
    run = make_saved_run(*GIVEN, "steps=7")
    run.context.hooks.append(
        lambda moment, context, event: constant_reward(moment, context, event) if event.step % 3 else None
    )
    train_run(run)
    assert run.context.recovery.ineffective == 0 and run.context.recovery.skipped == 0


def report_of(rewards: list[list[float]], *, update_norm: float = 1.0, fault: Fault | None = None) -> StepReport:
    rewards_PG = torch.tensor(rewards)
    advantages_PG = rewards_PG - rewards_PG.mean(-1, keepdim=True)
    kept = Rollout((), rewards_PG)
    return StepReport(0, 0.0, kept=kept, advantages_PG=advantages_PG, update_norm=update_norm, fault=fault)


def test_each_kind_of_ineffective_step_has_its_reason() -> None:
    assert no_progress_reason(StepReport(0, 0.0)) == "no group was kept"
    assert no_progress_reason(report_of([[0.5, 0.5], [0.5, 0.5]])) == "every completion earned the same reward, 0.500"
    assert no_progress_reason(report_of([[0.5, 0.5], [0.25, 0.25]])) == "the rewards of each group are equal"
    assert no_progress_reason(report_of([[0.5, 0.25]], update_norm=0.0)) == "the update changed no weight"
    assert no_progress_reason(report_of([[0.5, 0.25]])) == ""
    by_legal_moves = replace(report_of([[0.5, 0.5]]), tokens=TokenTotals(expected_value_sum=0.4))
    assert no_progress_reason(by_legal_moves) == ""


def test_fault_neither_counts_as_ineffective_nor_resets_the_count() -> None:
    state, fault = RecoveryState(), Fault(FaultKind.reward, "reward", "")
    idle, faulty, good = report_of([[0.5, 0.5]]), report_of([[0.5, 0.5]], fault=fault), report_of([[0.5, 0.0]])
    counts = []
    for report in (idle, faulty, faulty, idle, good, idle):
        watch(state, report)
        counts.append(state.ineffective)
    assert counts == [1, 1, 1, 2, 0, 1]
    watch(state, idle)
    with pytest.raises(TrainingGaveUpError, match="3 steps in a row had no effect"):
        watch(state, idle)

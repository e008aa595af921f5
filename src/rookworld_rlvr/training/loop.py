"""Training loop: the steps of a run and, after each step, recovery, guards, reference, metrics and checkpoints."""

import json
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ..errors import TrainingGaveUpError
from ..files import append_lines
from ..model.weights import checksum, training_state
from ..model.world import RankError
from ..progress import progress
from ..stability.faults import Fault, FaultKind, out_of_memory
from ..stability.recovery import Action, escalate
from .checkpoint import (
    checkpoint_folder,
    first_whole,
    list_checkpoints,
    restore_checkpoint,
    save_checkpoint,
)
from .checks import all_finite, first_bad_moment, first_bad_parameter
from .diagnosis import DIAGNOSIS, save_fault, write_diagnosis
from .evaluations import validate
from .health import watch
from .metrics import step_metrics
from .run import Run
from .run_files import INTERRUPTED, ROLLOUTS_FILE, kept_transcripts
from .state import StepContext, StepReport
from .step import grpo_step

# Number of steps between comparisons of the ranks' weights. A checksum takes about as long as a small model's update.
COMPARE_EVERY = 20
# Number of steps between transcripts, which the first and the last step have too. A report shows how completions change
# over a run of hundreds of steps, and rollouts.jsonl stays smaller than a checkpoint.
TRANSCRIPTS_EVERY = 10
# Number of newest checkpoints to keep, in addition to the best, the last good one and those that may become it. The
# second newest lets a run be resumed from before its last steps.
KEEP_CHECKPOINTS = 2


def run_steps(run: Run, first_step: int) -> tuple[int, str, float]:
    """Run the remaining steps; return the number of steps done, the reason for stopping, and completions per second.

    Raises TrainingGaveUpError after the diagnosis is written.
    """
    started, completions, step, stopped = time.perf_counter(), 0, first_step, "finished"
    # Without a terminal, the line printed for each step shows the progress.
    bar = progress(run.console, "training", run.config.steps, start=first_step, unit="steps")
    with bar if run.console.is_terminal else nullcontext(lambda _done: None) as advance:
        while step < run.config.steps and stopped == "finished":
            if run.context.world.any(run.stop_requested, f"step {step + 1}"):
                stopped = INTERRUPTED
                break
            report = grpo_step(run.context, step)
            step += 1
            completions += len(report.rollout.completions())
            advance(step)
            minutes = (time.perf_counter() - started) / 60
            if run.config.max_minutes and run.context.world.any(minutes >= run.config.max_minutes, "the clock"):
                stopped = "max_minutes"
            _finish_step(run, report, last=stopped != "finished" or step == run.config.steps)
    if stopped == INTERRUPTED and _finite_state(run.context):
        save(run, step, None, last=True)
    return step, stopped, completions / max(time.perf_counter() - started, 1e-9)


def _finish_step(run: Run, report: StepReport, *, last: bool) -> None:
    """Apply recovery after a step, write its metrics, and validate or save if due.

    Memory that runs out here, where the averaged weights need a copy, is a memory fault. Raises TrainingGaveUpError.
    """
    try:
        _apply_outcome(run, report, last=last)
    except torch.OutOfMemoryError as error:
        fault = out_of_memory("validation or checkpoint", error).fault
        report = replace(report, fault=fault, fault_batch=None)
        # Without an exchange: the other ranks may be in another one.
        if run.context.world.is_rank_0:
            save_fault(run.folder, report)
            write_diagnosis(run.folder, run.context, report, reason="memory ran out after the update")
        raise TrainingGaveUpError(f"step {report.step + 1}: {fault}; see {run.folder / DIAGNOSIS}") from error


def _apply_outcome(run: Run, report: StepReport, *, last: bool) -> None:
    """Apply recovery after a step, write its metrics, and validate or save if due. Raises TrainingGaveUpError."""
    context, step = run.context, report.step + 1
    compare_weights(run, step)
    due = last or step % run.config.checkpoint_every == 0
    report = replace(report, fault=_late_fault(run, report, about_to_save=due) or report.fault)
    action = escalate(context.recovery, run.config.recovery, step=step, fault=report.fault)
    validation: Mapping[str, float] = {}
    try:
        if report.fault is not None:
            _after_fault(run, report, action)
        else:
            _after_good_step(run, report, step)
        if _validation_due(run, step, last=last):
            validation = validate(run)
        watch(context.recovery, report)
    except TrainingGaveUpError as error:
        write = partial(write_diagnosis, run.folder, context, report, reason=str(error))
        context.world.rank_0_only(write, "the diagnosis")
        _record(run, report, validation, with_transcripts=True)
        raise TrainingGaveUpError(f"{error}; see {run.folder / DIAGNOSIS}") from error
    _record(run, report, validation, with_transcripts=step == 1 or last or step % TRANSCRIPTS_EVERY == 0)
    if due:
        save(run, step, validation.get("validation/score"), last=last)


def compare_weights(run: Run, step: int) -> None:
    """Raise RankError if a rank's weights differ from rank 0's. Checked every COMPARE_EVERY steps, not for shards."""
    world = run.context.world
    if world.size == 1 or run.context.policy.sharded or step % COMPARE_EVERY:
        return
    first, *others = world.all_gather(lambda: checksum(run.context.policy.model), "checksums")
    for rank, theirs in enumerate(others, start=1):
        if theirs != first:
            raise RankError(f"step {step}: expected the weights of rank 0, {first}, on rank {rank}, got {theirs}")


def _late_fault(run: Run, report: StepReport, *, about_to_save: bool) -> Fault | None:
    """Return a fault that shows only when a checkpoint is due: a state that is not finite and must not be saved.

    The state is also checked if the step had a fault that does not damage the weights.
    """
    context = run.context
    if report.fault is not None and report.fault.damages_weights:
        return None
    if about_to_save and not _finite_state(context):
        return Fault(FaultKind.parameter, _first_bad(context), "not finite when a checkpoint was due")
    return None


def _finite_state(context: StepContext) -> bool:
    """Return True if all that a checkpoint has is finite: the state, and the averaged weights that it is saved with."""
    moments = [value for state in context.optimizer.state.values() for value in state.values()]
    models = (context.policy.model, context.references.current.model, context.references.original.model)
    # Often the same models, or with the same frozen weights.
    weights = {id(weight): weight for model in models for weight in model.parameters()}
    if not all_finite([*weights.values(), *moments]):
        return False
    with context.averaged_policy():
        return all_finite(context.policy.model.parameters())


def _first_bad(context: StepContext) -> str:
    """Return the name of the first tensor of a checkpoint that is not finite."""
    model, references = context.policy.model, context.references
    if where := first_bad_moment(context.optimizer, model) or first_bad_parameter(model):
        return where
    for name, reference in (("reference", references.current), ("original reference", references.original)):
        if where := first_bad_parameter(reference.model):
            return f"{name}: {where}"
    return "weights averaged with the original reference"


def _after_good_step(run: Run, report: StepReport, step: int) -> None:
    """Update the guards and the reference after a good step."""
    context, tokens = run.context, report.tokens
    if not tokens.count and not tokens.expected_value_sum:
        return
    context.guards.grad_norm.observe(report.grad_norm, context.config.optim.max_grad_norm)
    context.references.maybe_refresh(context.policy, step=step)


def _after_fault(run: Run, report: StepReport, action: Action) -> None:
    """Save the batch, log the recovery action and apply it. Raises TrainingGaveUpError."""
    state, fault = run.context.recovery, report.fault
    assert fault is not None
    weights = training_state(run.context.policy.model) if action is Action.stop else None
    run.context.world.rank_0_only(partial(save_fault, run.folder, report, weights=weights), "a fault")
    # No markup: the name of a reward contains brackets.
    line = f"step {report.step + 1}: {action}: {fault}"
    run.console.print(line, highlight=False, markup=False, soft_wrap=True)
    if action is Action.stop:
        raise TrainingGaveUpError(
            f"{state.consecutive} faults in a row, {state.restores} restores so far; the last was {fault}. "
            f"The learning rate was already scaled by {state.lr_scale:.3g}"
        )
    if action is Action.restore:
        _restore(run)


def _restore(run: Run) -> None:
    """Restore the last good checkpoint; if it is missing or damaged, the newest whole one."""
    state, world = run.context.recovery, run.context.world
    good, newest = checkpoint_folder(run.folder, state.last_good_step), list_checkpoints(run.folder)[::-1]
    folders = [folder for folder in (good, *newest) if folder.is_dir()]

    def load(folder: Path) -> int:
        return world.barrier(lambda: restore_checkpoint(folder, run.context), "a restore")

    state.last_good_step = first_whole(dict.fromkeys(folders), load, run.say)
    run.say(f"restored step-{state.last_good_step}, learning rate × {state.lr_scale:.3g}")


def _record(run: Run, report: StepReport, validation: Mapping[str, float], *, with_transcripts: bool) -> None:
    """Write the step's metrics, warning signs and, if asked for, transcripts."""
    step = report.step + 1
    metrics = {**step_metrics(report, run.context), **validation}
    for text in run.signs.observe(metrics).values():
        run.console.print(f"warning at step {step}: {text}", highlight=False, markup=False, soft_wrap=True)
    metrics |= run.signs.metrics()
    for sink in run.sinks:
        sink.write(step, metrics)
    if with_transcripts and run.context.world.is_rank_0:
        transcripts = kept_transcripts(report)
        path = run.folder / ROLLOUTS_FILE
        # It exists from the first step on, even if that step sampled nothing.
        path.touch()
        append_lines(path, map(json.dumps, transcripts))
        for sink in run.sinks:
            sink.show(step, transcripts)


def _validation_due(run: Run, step: int, *, last: bool) -> bool:
    every = run.validation_every
    return every > 0 and (step % every == 0 or last)


def save(run: Run, step: int, score: float | None, *, last: bool = False) -> None:
    """Save a checkpoint of the state after `step`. It becomes the best one if its `score` is the highest so far.

    `last` is True for the checkpoint that ends the run.

    A checkpoint that is saved off schedule, because the run was stopped, is never marked as best or good. Otherwise the
    stop would change how the run continues.
    """
    context, config = run.context, run.config
    if step % config.checkpoint_every == 0 or step == config.steps:
        context.recovery.record_checkpoint(step, score)
    save_checkpoint(run.folder, context, step=step, keep=KEEP_CHECKPOINTS, last=last)

"""A run: gates, the table before, steps, checkpoints, the table after."""

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..evaluation import Row, paired_gain, summarise, to_json
from ..evaluation.run import evaluate
from ..rollout.collect import sample_groups, score_groups
from ..tasks import Example, Task
from .checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from .errors import TrainingGaveUpError, UserError
from .metrics import peak_memory_gib, step_metrics
from .preflight import GateResult, PreflightInput, require_passed, run_preflight
from .recovery import RecoveryConfig, record_update
from .reference import ReferenceConfig, refresh, refresh_due
from .run_folder import write_json
from .sinks import Sink, cut_lines
from .step import StepContext, grpo_step
from .step_report import StepReport
from .transcripts import append_transcripts

SUMMARY, BEFORE_ROWS, DIAGNOSIS = "summary.json", "before_rows.jsonl", "diagnosis.txt"
METRICS_FILE, ROLLOUTS_FILE = "metrics.jsonl", "rollouts.jsonl"
GATE_GROUP_SIZE = 2


@dataclass(slots=True)
class TrainerConfig:
    """How long a run is and what it leaves behind."""

    steps: int = 180
    """Updates."""
    max_minutes: float = 0.0
    """Stop after this many minutes of steps, whatever is left; 0: no limit."""
    checkpoint_every: int = 50
    """Steps between checkpoints; the last step always has one."""
    keep_checkpoints: int = 2
    """The newest this many stay."""
    evaluation_rows: int = 2048
    """Held-out rows a task, evaluated before and after; 0: no evaluation."""
    rollouts_every: int = 10
    """Steps between transcripts; 0: none."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.checkpoint_every < 1 or self.keep_checkpoints < 1:
            raise ValueError("expected steps, checkpoint_every and keep_checkpoints of at least 1")
        if self.max_minutes < 0 or self.evaluation_rows < 0 or self.rollouts_every < 0:
            raise ValueError("expected max_minutes, evaluation_rows and rollouts_every from 0 up")


@dataclass(slots=True)
class Run:
    """Everything a run needs; `app.wiring` builds it."""

    context: StepContext
    config: TrainerConfig
    reference: ReferenceConfig
    recovery: RecoveryConfig
    train_examples: Sequence[Example]
    held_out: Sequence[Example]
    folder: Path
    sinks: list[Sink]
    console: Console
    resume: str = ""
    stop_requested: bool = field(default=False)


def train(run: Run) -> dict[str, Any]:
    """The whole run; returns and writes the summary. Raises PreflightError and TrainingGaveUpError."""
    try:
        return _train(run)
    finally:
        for sink in run.sinks:
            sink.close()


def _train(run: Run) -> dict[str, Any]:
    started = time.perf_counter()
    gates = preflight(run)
    first_step, before = _begin(run)
    with _stop_on_signal(run):
        steps_done, stopped, completions_per_s = _steps(run, first_step)
    after = _evaluate(run, "after") if stopped != "interrupted" else []
    summary = {
        "steps": steps_done,
        "stopped": stopped,
        "before": to_json(summarise(before)),
        "after": to_json(summarise(after)),
        "gain": to_json(paired_gain(before, after)) if after else {},
        "wall_s": round(time.perf_counter() - started, 1),
        "completions_per_s": round(completions_per_s, 2),
        "peak_rss_gib": round(peak_memory_gib(), 3),
        "preflight": {gate.name: {"measured": gate.measured, "bound": gate.bound} for gate in gates},
    }
    write_json(run.folder / SUMMARY, summary)
    return summary


def preflight(run: Run) -> list[GateResult]:
    """Run the gates on the model as it was loaded and say what they found. Raises PreflightError."""
    results = run_preflight(preflight_input(run.context, gate_examples(run.train_examples)))
    for gate in results:
        verdict = "passed" if gate.passed else "REFUSED"
        run.console.print(
            f"gate {gate.name:<16} {verdict}  {gate.measured:.2e} (at most {gate.bound:.2g})", highlight=False
        )
    require_passed(results)
    return results


def gate_examples(examples: Sequence[Example]) -> list[Example]:
    """The first example of each task there is."""
    firsts = (next((example for example in examples if example.task is task), None) for task in Task)
    return [example for example in firsts if example is not None]


def preflight_input(context: StepContext, examples: Sequence[Example]) -> PreflightInput:
    """Sample what the gates look at, on the trainer's own path."""
    context.generator.sync(context.policy.model)
    sampled = sample_groups(
        context.generator,
        context.policy.tokenizer,
        examples,
        group_size=GATE_GROUP_SIZE,
        temperature=context.temperature,
    )
    groups = score_groups(sampled, context.policy.tokenizer, examples, rubric=context.rubric, step=0)
    return PreflightInput(context.policy, context.reference, context.generator, groups, context.temperature)


def _begin(run: Run) -> tuple[int, list[Row]]:
    """The first step to do and the rows of the table before: fresh, or as a checkpoint left them."""
    path = run.folder / BEFORE_ROWS
    if not run.resume:
        rows = _evaluate(run, "before")
        path.write_text("".join(json.dumps(dict(row.values)) + "\n" for row in rows), encoding="utf-8")
        return 0, rows
    steps_done = load_checkpoint(find_checkpoint(run.resume), run.context)
    values = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    if len(values) != len(run.held_out):
        raise UserError(f"resume: expected {len(run.held_out)} evaluated rows in {path}, got {len(values)}")
    for name in (METRICS_FILE, ROLLOUTS_FILE):
        cut_lines(run.folder / name, steps_done)
    rows = [Row(i, run.held_out[i], value) for i, value in enumerate(values)]
    return steps_done, rows


def _steps(run: Run, first_step: int) -> tuple[int, str, float]:
    """Steps to the end; returns how many are done, why they stopped, and completions a second."""
    started, completions, step = time.perf_counter(), 0, first_step
    stopped = "finished"
    with _progress(run, "training", run.config.steps, first_step) as advance:
        while step < run.config.steps:
            report = grpo_step(run.context, step)
            step += 1
            completions += report.rewards_PG.numel()
            _record(run, report)
            advance(step)
            minutes = (time.perf_counter() - started) / 60
            if run.stop_requested:
                stopped = "interrupted"
            elif run.config.max_minutes and minutes >= run.config.max_minutes:
                stopped = "max_minutes"
            done = stopped != "finished" or step == run.config.steps
            if done or step % run.config.checkpoint_every == 0:
                save_checkpoint(run.folder, run.context, step=step, keep=run.config.keep_checkpoints)
            if done:
                break
    return step, stopped, completions / max(time.perf_counter() - started, 1e-9)


def _record(run: Run, report: StepReport) -> None:
    """Count faults, refresh the reference, write metrics and transcripts. Raises TrainingGaveUpError."""
    step = report.step + 1
    try:
        record_update(run.context.recovery, run.recovery, fault=report.fault)
    except TrainingGaveUpError as error:
        (run.folder / DIAGNOSIS).write_text(f"step {step}: {error}\n", encoding="utf-8")
        append_transcripts(run.folder / ROLLOUTS_FILE, report)
        raise
    metrics = step_metrics(report, run.context.recovery)
    for sink in run.sinks:
        sink.write(step, metrics)
    if run.config.rollouts_every and (step == 1 or step % run.config.rollouts_every == 0):
        append_transcripts(run.folder / ROLLOUTS_FILE, report)
    if refresh_due(run.reference, step):
        refresh(run.context.reference, run.context.policy)


def _evaluate(run: Run, when: str) -> list[Row]:
    if not run.held_out:
        return []
    run.context.generator.sync(run.context.policy.model)
    with _progress(run, f"evaluation {when}", len(run.held_out), 0) as advance:
        return evaluate(run.context.generator, run.context.policy.tokenizer, run.held_out, progress=advance)


@contextmanager
def _progress(run: Run, name: str, total: int, start: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal; nothing where output is a file."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=run.console, transient=True, disable=not run.console.is_terminal) as bar:
        task = bar.add_task(name, total=total, completed=start)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def _stop_on_signal(run: Run) -> Iterator[None]:
    """SIGINT and SIGTERM finish the step, save, and end the run as interrupted."""

    def request(number: int, _frame: Any) -> None:
        run.stop_requested = True
        run.console.print(f"{signal.Signals(number).name}: finishing the step, then saving")

    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

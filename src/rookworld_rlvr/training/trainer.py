"""A run: preflight checks, evaluation before, steps, evaluation after. The steps themselves are in `loop`."""

import json
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError, first_line
from ..evaluation.headline import Changes, changes
from ..evaluation.table import Row, json_number
from ..files import point, whole_lines, write_json, write_lines, write_text
from ..model.weights import checksum
from ..provenance import digest, software
from ..rewards.rubric import MoveSource
from ..stability.faults import StopRequestedError
from .checkpoint import (
    checkpoint_step,
    checkpoints_to_resume,
    first_whole,
    list_checkpoints,
    load_checkpoint,
    remove,
)
from .diagnosis import DIAGNOSIS
from .evaluations import evaluated, items, start_of_curve, tables
from .loop import run_steps, save
from .match_against_start import MatchResult, play_against_start
from .memory import peak_memory_gib
from .preflight import PreflightCheck, preflight_checks, preflight_examples, require_passed
from .run import Run
from .run_files import (
    AFTER_ROWS,
    BEFORE_ROWS,
    CONFIG_FILE,
    INTERRUPTED,
    LATEST,
    MEASURED,
    METRICS_FILE,
    ROLLOUTS_FILE,
    SUMMARY,
    lines_until,
    locked,
)


def train(run: Run) -> dict[str, Any]:
    """Execute the whole run; write and return its summary. Raises PreflightError, TrainingGaveUpError and UserError."""
    world = run.context.world

    def trained() -> dict[str, Any]:
        with _stop_on_signal(run), locked(run.folder) if world.is_rank_0 else nullcontext():
            summary = _train(run)
        for sink in run.sinks:
            sink.conclude(summary)
        return summary

    try:
        return world.barrier(trained, "the end of the run")
    finally:
        run.close()
        for sink in run.sinks:
            sink.close()


@dataclass(slots=True)
class Outcome:
    """Results from which the summary of a run is made."""

    started: float
    model_before: str
    """Checksum of the starting model."""
    checks: Sequence[PreflightCheck]
    steps: int = 0
    stopped: str = INTERRUPTED
    completions_per_s: float = 0.0
    before: Sequence[Row] = ()
    after: Sequence[Row] = ()
    match: MatchResult = field(default_factory=MatchResult)


def _train(run: Run) -> dict[str, Any]:
    outcome = Outcome(time.perf_counter(), checksum(run.context.references.original.model), preflight(run))
    try:
        try:
            outcome.steps, outcome.before = begin(run)
        finally:
            # Not earlier, because a run has no model to show before its first checkpoint.
            if not run.config.resume and run.context.world.is_rank_0:
                point(Path(run.config.output_root).expanduser() / LATEST, run.folder)
        outcome.steps, stopped, outcome.completions_per_s = run_steps(run, outcome.steps)
        if stopped != INTERRUPTED:
            outcome.after = evaluated(run, "after")
            run.context.world.rank_0_only(lambda: _write_rows(run, AFTER_ROWS, outcome.after), "the rows after")
            # The match takes minutes. A run that is killed during it keeps its tables.
            _write_summary(run, outcome)
            outcome.match = play_against_start(run)
            outcome.stopped = stopped
    except StopRequestedError:
        # A stop was requested during an evaluation. Any trained weights are already in a checkpoint.
        pass
    return _write_summary(run, outcome)


def _write_summary(run: Run, outcome: Outcome) -> dict[str, Any]:
    context, before, after = run.context, list(outcome.before), list(outcome.after)
    with context.averaged_policy():
        model_after = checksum(context.policy.model)
    moved = changes(before, after, outcome.match.table) if after else Changes([], [])
    summary = {
        "steps": outcome.steps,
        "stopped": outcome.stopped,
        **tables(before, after),
        "match": outcome.match.to_json(),
        "better": moved.better,
        "worse": moved.worse,
        "perhaps_worse": moved.perhaps_worse,
        "detectable": {key: json_number(loss) for key, loss in moved.detectable.items()},
        "ranks": context.world.size,
        "wall_s": round(time.perf_counter() - outcome.started, 1),
        "completions_per_s": round(outcome.completions_per_s, 2),
        "peak_rss_gib": round(peak_memory_gib(), 3),
        "preflight": {check.name: {"measured": check.measured, "bound": check.bound} for check in outcome.checks},
        "recovery": {"faults": context.recovery.skipped, "restores": context.recovery.restores},
        "software": software(),
        "hashes": {
            "model before": outcome.model_before,
            "model after": model_after,
            "training rows": digest(row.prompt for row in run.data.train),
            "held-out rows": digest(row.prompt for row in run.data.held_out),
        },
    }
    if context.world.is_rank_0:
        write_json(run.folder / SUMMARY, summary)
    return summary


def preflight(run: Run) -> list[PreflightCheck]:
    """Run the preflight checks on the model as loaded. Raises PreflightError, which names the failed checks."""
    results = preflight_checks(run.context, preflight_examples(run.data.train))
    require_passed(results)
    run.console.print(f"preflight: all {len(results)} checks passed", highlight=False)
    return results


def begin(run: Run) -> tuple[int, list[Row]]:
    """Start or resume the run; return the number of steps done and the rows evaluated before training."""
    if run.config.resume and (checkpoints := checkpoints_to_resume(run.config.resume)):
        return _resume(run, checkpoints)
    rows = evaluated(run, "before")
    run.context.world.rank_0_only(lambda: _begin_files(run, rows), "the run's files")
    score = None
    if run.validation_every:
        curve = start_of_curve(run)
        score = curve.get("validation/score")
        run.signs.observe_validation(curve)
        for sink in run.sinks:
            sink.write(0, curve)
    # The first restore returns to this checkpoint, and so does the resume of a run that is killed before the next one.
    save(run, 0, score)
    return 0, rows


def _begin_files(run: Run, rows: Sequence[Row]) -> None:
    """Write the files of a run that has no steps yet."""
    write_text(run.folder / CONFIG_FILE, run.config_text)
    _write_rows(run, BEFORE_ROWS, rows)
    for name in (METRICS_FILE, ROLLOUTS_FILE):
        # A run that was killed before its first checkpoint leaves the first point of its learning curve.
        (run.folder / name).unlink(missing_ok=True)


def _write_rows(run: Run, name: str, rows: Sequence[Row]) -> None:
    lines = ({MEASURED: _measured(run)}, *(dict(row.values) for row in rows))
    write_lines(run.folder / name, map(json.dumps, lines))


def _measured(run: Run) -> str:
    """Return a digest of the evaluated items and of the options on which their values depend."""
    config = run.config
    engine = config.rubric.stockfish.nodes if config.rubric.source is MoveSource.engine else 0
    rubric = (config.rubric.source.value, config.rubric.move_evals, engine)
    sampling = (config.generator.temperature, config.generator.max_new_tokens)
    return digest(map(repr, (*items(run), rubric, sampling)))


def _resume(run: Run, checkpoints: Sequence[Path]) -> tuple[int, list[Row]]:
    """Resume from the first of the checkpoints that is whole."""
    path, world = run.folder / BEFORE_ROWS, run.context.world

    def load(folder: Path) -> int:
        return world.barrier(lambda: load_checkpoint(folder, run.context), "the checkpoint")

    steps_done = first_whole(checkpoints, load, run.say)
    try:
        values = [dict(json.loads(line)) for line in whole_lines(path)]
    except (ValueError, TypeError) as error:
        raise UserError(f"resume: expected a JSON object per line in {path}, got {first_line(error)}") from error
    evaluated_items = items(run)
    measured = values.pop(0).get(MEASURED, "") if values else ""
    if len(values) != len(evaluated_items):
        raise UserError(f"resume: expected {len(evaluated_items)} evaluated rows in {path}, got {len(values)}")
    if measured != _measured(run):
        raise UserError(
            "resume: expected the evaluation after training to measure as the one before; data.held_out, "
            "evaluation.mates, rubric's source and move_evals, and the generator's temperature and max_new_tokens must "
            "stay as they were"
        )
    world.barrier(lambda: None, "the rows before")
    world.rank_0_only(lambda: _truncate_files(run, steps_done), "the run's files")
    return steps_done, [Row(i, evaluated_items[i], value) for i, value in enumerate(values)]


def _truncate_files(run: Run, steps_done: int) -> None:
    """Remove everything later than the checkpoint from the run's files, and replay the metrics to the warning signs.

    The summary goes too, so the run counts as unfinished until it has ended again.
    """
    # Both files are read first, so that a malformed line is refused before anything is removed.
    kept = {name: lines_until(run.folder / name, steps_done) for name in (METRICS_FILE, ROLLOUTS_FILE)}
    for name in (DIAGNOSIS, SUMMARY, AFTER_ROWS):
        (run.folder / name).unlink(missing_ok=True)
    remove(folder for folder in list_checkpoints(run.folder) if checkpoint_step(folder) > steps_done)
    write_text(run.folder / CONFIG_FILE, run.config_text)
    for name, lines in kept.items():
        if (run.folder / name).is_file():
            write_lines(run.folder / name, lines)
    for metrics in map(json.loads, kept[METRICS_FILE]):
        observe = run.signs.observe if metrics["step"] else run.signs.observe_validation
        observe(metrics)


@contextmanager
def _stop_on_signal(run: Run) -> Iterator[None]:
    """On SIGINT or SIGTERM inside the block, finish the step, save, and end the run as interrupted."""

    def request(number: int, _frame: Any) -> None:
        run.stop_requested = True
        # Not with rich, which would repeat the output that the signal interrupted. Python raises RuntimeError if the
        # signal interrupted a write to the same file.
        with suppress(RuntimeError):
            run.console.file.write(f"{signal.Signals(number).name}: stopping after this step, then saving\n")
            run.console.file.flush()

    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

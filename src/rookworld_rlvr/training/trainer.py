"""A run: preflight checks, the table before, steps, the table after. The steps themselves are in `loop`."""

import json
import signal
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from ..errors import UserError
from ..evaluation import Gain, Measure, Row, paired_gain, summarise, to_json
from ..evaluation.headline import Changes, changes
from ..evaluation.scales import SAMPLED, SPREAD
from ..files import whole_lines, write_json, write_text
from ..model.sharded import unshard
from ..model.weights import checksum
from ..provenance import digest, software
from ..rollout.groups import sample_groups, score_groups
from ..rollout.sampling import derive_seed
from ..stability.faults import StepAbandonedError
from ..stability.reference import ReferenceMode
from ..tasks import Example, Task
from .checkpoint import find_run, list_checkpoints, load_checkpoint, remove
from .context import StepContext
from .loop import METRICS_FILE, ROLLOUTS_FILE, evaluate_rows, evaluate_sampled_rows, run_steps, save, validate
from .match_against_start import play_against_start
from .memory import peak_memory_gib
from .preflight import PreflightCheck, PreflightInput, require_passed, run_preflight
from .run import Run
from .run_folder import CONFIG_FILE, INTERRUPTED, SUMMARY, held, point_latest
from .sinks import cut_lines

BEFORE_ROWS = "before_rows.jsonl"
PREFLIGHT_GROUP_SIZE = 2


def train(run: Run) -> dict[str, Any]:
    """The whole run; returns and writes the summary. Raises PreflightError, TrainingGaveUpError and UserError."""
    world = run.context.world
    try:
        with _stop_on_signal(run), held(run.folder) if world.is_rank_0 else nullcontext():
            summary = _train(run)
        for sink in run.sinks:
            sink.conclude(summary)
        # Rank 0 may keep the store that the others still ask.
        world.barrier(lambda: None, "the end")
        return summary
    except BaseException as error:
        world.failed(error)
        raise
    finally:
        run.close()
        for sink in run.sinks:
            sink.close()


def _train(run: Run) -> dict[str, Any]:
    started, world = time.perf_counter(), run.context.world
    begun_with = checksum(run.context.references.original.model)
    checks = preflight(run)
    if run.latest_in is not None and world.is_rank_0:
        point_latest(run.latest_in, run.folder)
    steps_done, stopped, completions_per_s = 0, INTERRUPTED, 0.0
    before: list[Row] = []
    after: list[Row] = []
    match: dict[str, Measure] = {}

    def write_summary(stopped: str) -> dict[str, Any]:
        moved = changes(before, after, match) if after else Changes([], [])
        summary = {
            "steps": steps_done,
            "stopped": stopped,
            **tables(before, after),
            "match": {key.removeprefix("match/"): entry for key, entry in to_json(match).items()},
            "better": moved.better,
            "worse": moved.worse,
            "ranks": world.size,
            "wall_s": round(time.perf_counter() - started, 1),
            "completions_per_s": round(completions_per_s, 2),
            "peak_rss_gib": round(peak_memory_gib(), 3),
            "preflight": {check.name: {"measured": check.measured, "bound": check.bound} for check in checks},
            "recovery": {"faults": run.context.recovery.skipped, "restores": run.context.recovery.restores},
            "software": software(),
            "hashes": {
                "model before": begun_with,
                "model after": checksum(run.context.policy.model),
                "training rows": digest(row.prompt for row in run.train_examples),
                "held-out rows": digest(row.prompt for row in run.held_out),
            },
        }
        if world.is_rank_0:
            write_json(run.folder / SUMMARY, summary)
        return summary

    try:
        steps_done, before = begin(run)
        steps_done, stopped, completions_per_s = run_steps(run, steps_done)
        if stopped != INTERRUPTED:
            after = evaluated(run, "after")
            # The match takes minutes: a run that is killed in it keeps its tables.
            write_summary(INTERRUPTED)
            match = play_against_start(run)
    except StepAbandonedError:
        # Asked to stop while a table was made: what was trained is in a checkpoint.
        stopped = INTERRUPTED
    return write_summary(stopped)


def evaluated(run: Run, name: str) -> list[Row]:
    """Held-out rows answered greedily, then the first of them sampled. Raises StepAbandonedError."""
    return [*evaluate_rows(run, name, run.held_out), *evaluate_sampled_rows(run, name)]


def tables(before: list[Row], after: list[Row]) -> dict[str, Any]:
    """The summary's tables: `before`, `after`, their paired `gain`, and under `spread` what sharpening lowers."""
    begun, ended = summarise(before), summarise(after)
    gain: Mapping[str, Measure | Gain] = paired_gain(before, after) if after else {}
    parts = {"before": begun, "after": ended, "gain": gain}
    found = {name: to_json(_of_spread(table, False)) for name, table in parts.items()}
    return found | {"spread": {name: to_json(_of_spread(parts[name], True)) for name in ("before", "after")}}


def _of_spread(table: Mapping[str, Measure | Gain], wanted: bool) -> dict[str, Measure | Gain]:
    return {key: entry for key, entry in table.items() if key.startswith(f"{SPREAD}/") is wanted}


def preflight(run: Run) -> list[PreflightCheck]:
    """Run the preflight checks on the model as it was loaded and print them. Raises PreflightError."""
    examples = preflight_examples(run.train_examples)
    results = preflight_checks(run.context, examples)
    for check in results:
        outcome = "passed" if check.passed else "REFUSED"
        run.console.print(
            f"check {check.name:<16} {outcome}  {check.measured:.2e} (at most {check.bound:.2g})", highlight=False
        )
    require_passed(results)
    return results


def preflight_checks(context: StepContext, examples: list[Example]) -> list[PreflightCheck]:
    """The preflight checks on these examples, on every rank."""
    with unshard(context.policy.model, context.references.current.model):
        return context.world.barrier(lambda: run_preflight(preflight_input(context, examples)), "the preflight")


def preflight_examples(examples: tuple[Example, ...]) -> list[Example]:
    """The first example of each task there is."""
    firsts = (next((example for example in examples if example.task is task), None) for task in Task)
    return [example for example in firsts if example is not None]


def preflight_input(context: StepContext, examples: list[Example]) -> PreflightInput:
    """Completions for the preflight checks, sampled on the trainer's own path."""
    context.generator.sync(context.policy.model)
    sampled = sample_groups(
        context.generator,
        context.policy.tokenizer,
        examples,
        group_size=PREFLIGHT_GROUP_SIZE,
        temperature=context.temperature,
        seeds=[derive_seed(context.seed, "preflight", example.prompt) for example in examples],
    )
    groups = score_groups(sampled, context.policy.tokenizer, examples, scorer=context.scorer, step=0)
    return PreflightInput(context.policy, context.references.current, context.generator, groups, context.temperature)


def begin(run: Run) -> tuple[int, list[Row]]:
    """The first step to do and the rows of the table before: fresh, or as a checkpoint left them."""
    checkpoint = find_run(run.resume)[1] if run.resume else None
    if checkpoint is not None:
        return _go_on(run, checkpoint)
    rows = evaluated(run, "before")
    run.context.world.rank_0_only(lambda: _begin_files(run, rows), "the run's files")
    score = validate(run)["validation/score"] if _needs_first_score(run) else None
    if run.reference.mode is ReferenceMode.on_improvement and score is not None:
        run.context.references.begin(score)
    # What the first restore goes back to, and a killed run.
    save(run, 0, score)
    return 0, rows


def _begin_files(run: Run, rows: Sequence[Row]) -> None:
    """Write what a run without a step has."""
    write_text(run.folder / CONFIG_FILE, run.config_text)
    write_text(run.folder / BEFORE_ROWS, "".join(json.dumps(dict(row.values)) + "\n" for row in rows))
    for name in (METRICS_FILE, ROLLOUTS_FILE):
        cut_lines(run.folder / name, 0)
    _begin_self_play_files(run)


def _begin_self_play_files(run: Run) -> None:
    if run.self_play_files is not None:
        run.self_play_files.begin(sum(run.context.prompts.self_play_ends().values()))


def _needs_first_score(run: Run) -> bool:
    return run.reference.mode is ReferenceMode.on_improvement or run.config.validation.every > 0


def _go_on(run: Run, checkpoint: Any) -> tuple[int, list[Row]]:
    path, world = run.folder / BEFORE_ROWS, run.context.world
    steps_done = world.barrier(lambda: load_checkpoint(checkpoint, run.context), "the checkpoint")
    values = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    items: list[Hashable] = [*run.held_out, *((SAMPLED, example) for example in run.sampled)]
    if len(values) != len(items):
        raise UserError(f"resume: expected {len(items)} evaluated rows in {path}, got {len(values)}")
    world.barrier(lambda: None, "the rows before")
    world.rank_0_only(lambda: _go_on_in_files(run, steps_done), "the run's files")
    return steps_done, [Row(i, items[i], value) for i, value in enumerate(values)]


def _go_on_in_files(run: Run, steps_done: int) -> None:
    """Remove what lies behind the checkpoint."""
    remove(folder for folder in list_checkpoints(run.folder) if int(folder.name.split("-")[1]) > steps_done)
    write_text(run.folder / CONFIG_FILE, run.config_text)
    for name in (METRICS_FILE, ROLLOUTS_FILE):
        cut_lines(run.folder / name, steps_done)
    for line in whole_lines(run.folder / METRICS_FILE):
        run.signs.observe(json.loads(line))
    _begin_self_play_files(run)


@contextmanager
def _stop_on_signal(run: Run) -> Iterator[None]:
    """SIGINT and SIGTERM finish the micro-batch, save, and end the run as interrupted."""

    def request(number: int, _frame: Any) -> None:
        run.stop_requested = True
        # Not by rich, which would print again whatever the signal has interrupted it in. Python refuses to write
        # where the signal has interrupted a write.
        with suppress(RuntimeError):
            run.console.file.write(f"{signal.Signals(number).name}: stopping after this micro-batch, then saving\n")
            run.console.file.flush()

    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

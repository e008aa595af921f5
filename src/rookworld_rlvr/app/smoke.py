"""`rookworld smoke [overrides]`: preflight checks and one real step on one prompt per task, before a long run."""

from contextlib import closing
from dataclasses import replace

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig
from rich.console import Console

from ..errors import TrainingGaveUpError
from ..objective import ZeroVariance
from ..rollout.groups import Group
from ..shell import command
from ..tasks.prompt_stream import PromptStream, shares
from ..training.config import RunConfig
from ..training.memory import peak_memory_gib
from ..training.preflight import (
    PREFLIGHT_GROUP_SIZE,
    PreflightCheck,
    preflight_checks,
    preflight_examples,
    require_passed,
)
from ..training.run import Run
from ..training.state import StepReport
from ..training.step import grpo_step
from .build import build_unsaved_run, print_lines
from .hydra_command import MULTIRUN_FLAGS, run_command
from .processes import require_processes, run_or_start
from .train import NAME, resumed


def main(argv: list[str]) -> int:
    """Run the command and return its exit code, 3 if a check refuses. Of a sweep only the first member is tried."""
    if any(flag in argv for flag in MULTIRUN_FLAGS):
        argv = [_first_value(argument) for argument in argv if argument not in MULTIRUN_FLAGS]
    return run_or_start("smoke", argv, lambda: run_command(NAME, RunConfig, argv, smoke))


def smoke(config: RunConfig, raw: DictConfig) -> None:
    """Run the preflight checks on the untrained model and one real step, and print both. Raises PreflightError."""
    config, _ = resumed(config, raw)
    require_processes(config.processes)
    run = build_unsaved_run(replace(config, evaluation=replace(config.evaluation, rows=0), resume=""))
    with closing(run):
        run.context.world.barrier(lambda: _smoke(config, run), "the end of the smoke test")


def _smoke(config: RunConfig, run: Run) -> None:
    for note in run.data.notes:
        print_lines(run.console, note)
    examples = preflight_examples(run.data.train)
    # The checks need the model before any update, so they run first. They are printed last.
    checks = preflight_checks(run.context, examples)
    # Draw one prompt of each task.
    run.context.sampler.prompts = PromptStream(examples, shares([row.task for row in examples]), config.seed)
    # With two completions per prompt many groups have zero variance. They are kept, or there might be no step to show.
    collection = replace(config.objective.collection, zero_variance=ZeroVariance.keep)
    objective = replace(
        config.objective, prompts_per_step=len(examples), group_size=PREFLIGHT_GROUP_SIZE, collection=collection
    )
    run.context.config = replace(config, objective=objective)
    report = grpo_step(run.context, 0)
    if report.fault is not None:
        raise TrainingGaveUpError(f"the step failed: {report.fault}")
    for group in report.groups:
        _show_group(run.console, group)
    _show_step(run.console, report)
    _show_checks(run.console, checks)
    require_passed(checks)


def _first_value(argument: str) -> str:
    """Return an override with the first of its values: `kl.coef=0,0.01` → `kl.coef=0`."""
    try:
        override = OverridesParser.create().parse_override(argument)
        return f"{override.get_key_element()}={next(override.sweep_string_iterator())}"
    except (HydraException, StopIteration):
        # It has a single value, or hydra cannot parse it and reports that later.
        return argument


def _show_title(console: Console, title: str) -> None:
    console.print(f"── {title} ──", style="bold")


def _show_group(console: Console, group: Group) -> None:
    _show_title(console, group.example.task)
    lines = [f"prompt      {group.example.prompt}"]
    if group.example.completion is not None:
        lines.append(f"expected    {group.example.completion}")
    for sample in group.samples:
        components = "  ".join(f"{name} {value:.2f}" for name, value in sample.score.components.items())
        failure = sample.score.failure
        lines += [
            f"completion  {sample.text}",
            f"  reward    {sample.score.total:+.3f}  {failure.reason if failure else 'well-formed'}",
            f"  components {components}",
        ]
    print_lines(console, *lines)


def _show_step(console: Console, report: StepReport) -> None:
    _show_title(console, "one step")
    kl, ratio = report.tokens.kl_max, report.tokens.ratio_max
    # Without KL, completions of advantage 0 are not trained, and no token has a ratio.
    tokens = f"KL(step 0) {kl:.2e}  ratio - 1 {ratio - 1:.2e}  " if report.tokens.count else "no token trained  "
    print_lines(
        console,
        f"loss {report.loss:+.6f}  {tokens}gradient norm {report.grad_norm:.3f}  update norm {report.update_norm:.2e}",
        f"{report.times_s['step']:.2f} s, peak memory {peak_memory_gib():.2f} GiB",
        *_explained(report),
    )


def _explained(report: StepReport) -> list[str]:
    """Return lines that explain normal results which a newcomer might take for a defect."""
    lines = []
    if all(sample.score.failure for group in report.groups for sample in group.samples):
        lines.append(
            "no completion is well-formed: rewards of its parts teach the form where they differ within a group, and "
            f"`{command('sft')}` teaches it from labels"
        )
    if not report.advantages_PG.any():
        completions = f"{PREFLIGHT_GROUP_SIZE} completions of each prompt"
        lines.append(f"equal rewards: {completions} earned the same here; a run samples objective.group_size of them")
    return lines


def _show_checks(console: Console, checks: list[PreflightCheck]) -> None:
    _show_title(console, "preflight")
    for check in checks:
        outcome = "passed " if check.passed else "REFUSED"
        print_lines(
            console,
            f"check {check.name:<16} {outcome}  {check.measured:.2e}  at most {check.bound:<5.2g}  {check.text}",
        )

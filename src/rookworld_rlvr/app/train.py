"""`rookworld train [overrides]`: train a model; with -m, train a sweep of models."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from ..errors import DONE, UserError, left_out
from ..errors import INTERRUPTED as INTERRUPTED_CODE
from ..files import write_text
from ..report.page import REPORT, render
from ..report.run_record import read_run, shared_row_gains
from ..report.summary import summarise_run
from ..report.terminal import printable
from ..shell import command, setting, shell_word, train_command
from ..tasks import Task
from ..training.checkpoint import checkpoint_folder, checkpoint_step, find_run
from ..training.config import RunConfig
from ..training.run import Run
from ..training.run_files import CONFIG_FILE, INTERRUPTED, is_unfinished, unfinished
from ..training.trainer import train
from .arguments import conf_folder
from .build import build_run, make_console, print_lines
from .hydra_command import overrides, run_command, sweep_member, to_dataclass
from .play import DEFAULT_TASK
from .processes import require_processes, run_or_start
from .tables import Member, gain_table, seeds_table, sweep_table

NAME = "train"
# Value of `resume` that means the newest unfinished run of this configuration or, if there is none, a new run.
AUTO = "auto"
# Settings of the process, which may differ between a run and the command that resumes it with resume=auto.
PROCESS_SETTINGS = frozenset({"resume", "processes", "distributed", "threads", "output_root", "max_minutes"})
# Settings that name programs to start, and addresses to contact. They are never taken from a saved configuration,
# because the run's folder may come from a stranger.
NEVER_FROM_A_RUN = ("rubric.stockfish.path", "generator.vllm.url")


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    members: list[Member] = []
    code = run_or_start(NAME, argv, lambda: run_command(NAME, RunConfig, argv, partial(_train, members)))
    if members:
        with left_out("the sweep's table", partial(print, file=sys.stderr)):
            _show_sweep(members)
    return code


def _train(members: list[Member], config: RunConfig, raw: DictConfig) -> int:
    """Train one run and return the exit code. A finished member of a sweep is appended to `members`."""
    config, raw = resumed(config, raw)
    require_processes(config.processes)
    if config.resume and (line := _finished(config, overrides())):
        print(line)
        return DONE
    member = sweep_member()
    run = build_run(config, raw, label=member.label if member else "")
    lines = [*run.data.notes, f"run folder: {run.folder}"]
    print_lines(run.console, *([str(member)] if member else []), *lines)
    summary = train(run)
    with left_out("the table", run.say):
        if summary["gain"] and member is None:
            run.console.print(gain_table(summary))
    print_lines(run.console, f"{_ending(summary)} after {summary['steps']} steps, {summary['wall_s']:.0f} s")
    if run.context.world.is_rank_0:
        with left_out("the report", run.say):
            _report(run, brief=member is not None)
        run.say(_next(run.folder, summary, config.data.player()))
        if member is not None:
            members.append(Member(overrides(), summary, run.folder))
    return INTERRUPTED_CODE if summary["stopped"] == INTERRUPTED else DONE


def _show_sweep(members: Sequence[Member]) -> None:
    """Print the table of a sweep, that of seeds if only they differ, and the command that compares the runs."""
    console = make_console()
    console.print(sweep_table(members))
    if len(members) < 2:
        return
    evaluated = all(member.summary["gain"] for member in members)
    if evaluated and differ_in_seed_alone([member.overrides for member in members]):
        row_gains = shared_row_gains([read_run(member.folder) for member in members])
        seeds = seeds_table([member.summary for member in members], row_gains)
        if seeds.row_count:
            console.print(seeds)
    compare = command("report", *(member.folder for member in members), "--output", "report.html")
    print_lines(console, f"to compare them on one page: {compare}")


def _report(run: Run, *, brief: bool) -> None:
    """Write the report, and print its path; unless `brief`, print the run's summary, too."""
    report, record = run.folder / REPORT, read_run(run.folder)
    write_text(report, render([record]))
    sentences = [] if brief else summarise_run(record.summary, record.metrics).sentences()
    print_lines(run.console, *sentences, f"report: {report}")


def _next(folder: Path, summary: Mapping[str, Any], player: Task | None) -> str:
    """Return a line with the command that a user would type next. `player` is the task that names a move."""
    if summary["stopped"] == INTERRUPTED:
        return f"to resume: {train_command(setting('resume', folder))}"
    model = checkpoint_folder(folder, summary["steps"])
    if player is None:
        return f"its model: {shell_word(str(model))}"
    task = () if player.name == DEFAULT_TASK else ("--task", player.name)
    return f"to play against it: {command('play', '--model', model, *task)}"


def _finished(config: RunConfig, given: Sequence[str]) -> str:
    """Return a line if the resumed run has made all its steps; empty otherwise, or if other options are overridden."""
    folder, checkpoint = find_run(config.resume)
    if {override.split("=", 1)[0] for override in given} - {"resume", "steps"}:
        return ""
    if checkpoint is None or is_unfinished(folder) or checkpoint_step(checkpoint) < config.steps:
        return ""
    return f"already finished: {folder}; steps={2 * config.steps} would continue it"


def differ_in_seed_alone(members: Sequence[list[str]]) -> bool:
    """Return True if the overrides of a sweep's members differ only in the seed.

    >>> differ_in_seed_alone([["seed=0", "steps=1"], ["seed=1", "steps=1"]])
    True
    >>> differ_in_seed_alone([["seed=0", "steps=1"], ["seed=1", "steps=2"]])
    False
    """
    shared = set(members[0]).intersection(*members)
    own = [override for overrides in members for override in overrides if override not in shared]
    return bool(own) and all(override.startswith("seed=") for override in own)


def _ending(summary: Mapping[str, Any]) -> str:
    return "stopped" if summary["stopped"] == INTERRUPTED else str(summary["stopped"])


def resumed(config: RunConfig, raw: DictConfig) -> tuple[RunConfig, DictConfig]:
    """Return the configuration of the run that `resume` names or finds; unchanged if no run is resumed."""
    given = overrides()
    if config.resume == AUTO:
        # The configuration of the run that is found has the values of `debug` and `experiment` already.
        given = [override for override in given if not _sets_many(override, raw)]
        raw = raw.copy()
        raw.resume = _unfinished(Path(config.output_root).expanduser(), raw)
        config = replace(config, resume=raw.resume)
    if config.resume:
        raw = resumed_config(config.resume, raw, given)
        config = to_dataclass(raw)
    return config, raw


def _sets_many(override: str, raw: DictConfig) -> bool:
    """Return True for a choice such as `debug=short`, which sets values of several groups."""
    key = override.split("=", 1)[0].lstrip("+~")
    return (conf_folder() / key).is_dir() and OmegaConf.select(raw, key) is None


def _unfinished(root: Path, raw: DictConfig) -> str:
    """Return the newest unfinished run of this configuration; empty if there is none. Damaged folders are skipped."""

    def of_the_run(settings: Any) -> dict[str, Any]:
        values: Any = OmegaConf.to_container(settings)
        return {key: value for key, value in values.items() if key not in PROCESS_SETTINGS}

    wanted = of_the_run(OmegaConf.create(OmegaConf.to_yaml(raw, resolve=True)))
    for run in unfinished(root):
        with suppress(UserError):
            if of_the_run(saved_settings(run / CONFIG_FILE)) == wanted:
                return str(run)
    return ""


def saved_settings(path: Path) -> DictConfig:
    """Return the configuration in a run's folder, which may come from a stranger.

    Raises UserError if the file cannot be read or has an interpolation. An interpolation could put an environment
    variable into an address, and no run writes one.
    """
    try:
        settings = OmegaConf.load(path)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"expected the run's configuration in {path}: {' '.join(str(error).split())}") from error
    if not isinstance(settings, DictConfig):
        raise UserError(f"expected the run's configuration in {path}, got a list")
    if not settings:
        raise UserError(f"expected the run's configuration in {path}, got an empty file")
    if "${" in (text := OmegaConf.to_yaml(settings)):
        line = next(line.strip() for line in text.splitlines() if "${" in line)
        raise UserError(f"expected plain values in {path}, got an interpolation: {line!r}")
    return settings


def resumed_config(resume: str, raw: DictConfig, given: list[str]) -> DictConfig:
    """Return the configuration the run was started with, updated by the overrides in `given`. Raises UserError.

    A setting of NEVER_FROM_A_RUN has the value that is given now; a line on standard error says so if the run had
    another.
    """
    path = find_run(resume)[0] / CONFIG_FILE
    merged, saved = raw.copy(), saved_settings(path)
    try:
        merged.merge_with(saved)
        _leave_out(merged, raw, path)
        begun_with = merged.start_share
        for override in given:
            if _sets_many(override, raw):
                raise UserError(f"resume: expected overrides of single values, got {override}")
            key = override.split("=", 1)[0].lstrip("+~")
            OmegaConf.update(merged, key, OmegaConf.select(raw, key), merge=False)
    except OmegaConfBaseException as error:
        raise UserError(f"resume: expected the run's configuration in {path}: {error}") from error
    if merged.start_share != begun_with:
        expected = f"start_share={begun_with:g}, as the run's checkpoints have it"
        raise UserError(f"resume: expected {expected}, got {merged.start_share:g}")
    return merged


def _leave_out(merged: DictConfig, raw: DictConfig, path: Path) -> None:
    """Replace the settings of NEVER_FROM_A_RUN in `merged` by those in `raw`, and name each that had another value."""
    for key in NEVER_FROM_A_RUN:
        value, given = OmegaConf.select(merged, key), OmegaConf.select(raw, key)
        OmegaConf.update(merged, key, given, merge=False)
        if value and value != given:
            line = f"{key}={printable(str(value))} in {path} is not used; give it again if it is yours"
            print(line, file=sys.stderr)

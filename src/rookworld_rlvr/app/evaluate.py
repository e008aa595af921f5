"""`rookworld evaluate model.path=…` runs suites on any model; `rookworld evaluate compare A B` compares two results.

With `output=` finished rows are saved, and the same command resumes after them.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from ..errors import UserError
from ..evaluation.suite import Suite, SuiteName, suite_table
from ..evaluation.table import Row, to_json
from ..files import check_output_file, lock_for_writing, write_json, write_text
from ..model.policy import Policy
from ..model.weights import checksum
from ..progress import progress
from ..provenance import software
from ..report.learning_curve import RULES
from ..shell import command
from ..stockfish.engine import HASH_MIB, EngineConfig
from ..training.data import load_evaluation_data
from .arguments import warn_of_unfinished
from .build import make_console, make_move_evaluations, print_lines, set_threads
from .compare import compare_command
from .config import EvaluateConfig
from .generators import make_generator
from .hydra_command import run_command
from .rows_file import RowsFile, rows_path, settings_of
from .suites import Evaluated, build_suites, load_model
from .tables import evaluation_tables

COMPARE = "compare"
NOT_KEPT = "nothing was kept: output=FILE.json keeps rows and tables, and two such files can be compared"
# Settings that may differ when an evaluation resumes. Settings of suites that are not evaluated may differ, too.
FREE_SETTINGS = ("output", "threads")


def main(argv: list[str]) -> int:
    """Run the command and return its exit code."""
    if argv[:1] == [COMPARE]:
        return compare_command(argv[1:])
    return run_command("evaluate", EvaluateConfig, argv, _evaluate)


def _evaluate(config: EvaluateConfig, raw: DictConfig) -> None:
    output = Path(config.output) if config.output else None
    if output is None:
        _run(config, raw, None)
        return
    _require_ours(output)
    with lock_for_writing(output, "output"):
        _run(config, raw, output)


def _run(config: EvaluateConfig, raw: DictConfig, output: Path | None) -> None:
    pgn = pgn_paths(config)
    set_threads(config.threads)
    data = load_evaluation_data(config.data, seed=config.seed)
    warn_of_unfinished(config.model.path)
    policy = load_model(config, config.model.path)
    generator = make_generator(policy, config.generator)
    generator.sync(policy.model)
    stockfish = EngineConfig(**asdict(config.stockfish))
    evaluations = make_move_evaluations(stockfish, config.evaluation.nodes, config.move_evals)
    with closing(evaluations):
        suites = build_suites(Evaluated(config, data, policy, generator, evaluations))
        head = _head(config, raw, policy, suites)
        file = RowsFile(rows_path(output) if output else None, head, suites)
        begin_pgn(pgn, file.rows)
        file.begin()
        times_s = run_suites(suites, file, pgn)
        # The simple rules need the evaluations.
        results = {suite.name: suite_result(suite, file.rows[suite.name], times_s[suite.name]) for suite in suites}
    # Written before anything is printed, because a reader such as `head` may close the pipe early.
    if output is not None:
        write_json(output, {"suites": results, **head, "rows": rows_path(output).name})
    _print(suites, results, output)


def _print(suites: Sequence[Suite], results: Mapping[str, Any], output: Path | None) -> None:
    console = make_console()
    for suite in suites:
        facts = "".join(f", {name} {value}" for name, value in suite.facts.items())
        print_lines(console, f"{suite.name}: {len(suite.items)} rows{facts}")
        if losses := results[suite.name].get("rules"):
            listed = ", ".join(f"{label} {losses[name]:.3f}" for name, label in RULES.items())
            print_lines(console, f"{suite.name}: win-probability loss of simple rules on these rows: {listed}")
    for table in evaluation_tables({key: row for result in results.values() for key, row in result["table"].items()}):
        console.print(table)
    failures = f"failures: {command('rollouts', output, '--failed')}"
    print_lines(console, f"result: {output}; {failures}" if output else NOT_KEPT)


def _require_ours(output: Path) -> None:
    """Raise UserError if the file cannot be written, or if it exists and is not the file of an evaluation."""
    check_output_file(output, "output")
    if output.exists() and not rows_path(output).exists():
        raise UserError(f"output: expected no file, or an evaluation's file with its rows beside it, got {output}")


def run_suites(suites: Sequence[Suite], file: RowsFile, pgn: Mapping[str, Path]) -> dict[str, float]:
    """Run the items that are not finished yet. Return the seconds that each suite took in this call."""
    times_s, console = {}, Console(stderr=True)
    for suite in suites:
        started, done = time.perf_counter(), len(file.rows[suite.name])
        if done < len(suite.items):
            with progress(console, suite.name, len(suite.items), start=done) as show:
                for rows in suite.rows(done):
                    file.add(suite, rows)
                    save_pgn(pgn, suite.name, file.rows[suite.name])
                    show(len(file.rows[suite.name]))
        times_s[suite.name] = round(time.perf_counter() - started, 2)
    return times_s


def suite_result(suite: Suite, rows: Sequence[Row], wall_s: float) -> dict[str, Any]:
    """Return the result of one suite as it is written to the output."""
    return {
        "table": to_json(suite_table(suite, rows)),
        "rows": len(rows),
        "wall_s": wall_s,
        **suite.facts,
        **suite.conclude(rows),
    }


def _head(config: EvaluateConfig, raw: DictConfig, policy: Policy, suites: Sequence[Suite]) -> Mapping[str, Any]:
    """Return the model, settings, software and facts. An evaluation resumes only if all of them are the same."""
    settings = OmegaConf.to_container(raw, resolve=True, enum_to_str=True)
    assert isinstance(settings, dict)
    # The engine's other settings change only the speed; its name and its nodes are in the facts.
    settings["stockfish"] = {"hash_mib": HASH_MIB}
    read = settings_of({str(name): value for name, value in settings.items()}, config.suites)
    return {
        "model": {
            "path": config.model.path,
            "checksum": checksum(policy.model),
            "parameters": policy.model.num_parameters(),
        },
        "config": {name: value for name, value in read.items() if name not in FREE_SETTINGS},
        "software": software(),
        "facts": {suite.name: dict(suite.facts) for suite in suites},
    }


def pgn_paths(config: EvaluateConfig) -> dict[str, Path]:
    """Return the PGN file of each suite that has one. Raises UserError if one cannot be written or two are the same."""
    by_suite = {SuiteName.selfplay: config.selfplay.pgn, SuiteName.match: config.match.pgn}
    paths = {str(name): Path(path).resolve() for name, path in by_suite.items() if path and name in config.suites}
    for name, path in paths.items():
        if path.is_dir() or not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise UserError(f"{name}.pgn: expected a file in a folder that can be written to, got {path}")
    output = Path(config.output).resolve()
    files = {**paths, **({"output": output, "its rows": rows_path(output)} if config.output else {})}
    if len(set(files.values())) < len(files):
        listed = ", ".join(f"{path} for {name}" for name, path in files.items())
        raise UserError(f"pgn: expected a file of its own for each, got {listed}")
    return paths


def begin_pgn(paths: Mapping[str, Path], rows: Mapping[str, Sequence[Row]]) -> None:
    """Write the finished games. Raises UserError, and changes no file, if a file has games of another evaluation."""
    for name, path in paths.items():
        if path.exists() and not _pgn(rows[name]).startswith(path.read_text(encoding="utf-8", errors="replace")):
            raise UserError(f"{name}.pgn: expected no file, or the games of this evaluation, got other games in {path}")
    for name in paths:
        save_pgn(paths, name, rows[name])


def save_pgn(paths: Mapping[str, Path], name: str, rows: Sequence[Row]) -> None:
    """Write all finished games of a suite, if it has a PGN file."""
    if name in paths and rows:
        write_text(paths[name], _pgn(rows))


def _pgn(rows: Sequence[Row]) -> str:
    return "".join(row.record for row in rows)

"""`rookworld evaluate compare A B`: compare two results of `rookworld evaluate` on the same rows, key by key.

Results are comparable if they have the same seed, and the same facts and settings for their common suites.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import DONE, UserError
from ..evaluation.headline import LEAST_ROWS, better_and_worse
from ..evaluation.keys import is_tested
from ..evaluation.match import elo_measures
from ..evaluation.paired import Comparison, compare
from ..evaluation.selfplay import selfplay_measures
from ..evaluation.suite import Measures, SuiteName, no_measures
from ..evaluation.table import Row, json_number, to_json
from ..files import check_output_file, write_json
from ..tasks import all_tasks
from .arguments import OneLineParser
from .build import make_console, print_lines
from .rows_file import MISSING, leaves, read_finished, rows_path, settings_of, suite_of
from .tables import comparison_table

# Functions that compute the keys of a suite that are not means over its rows.
MEASURES: Mapping[str, Measures] = {
    SuiteName.selfplay: selfplay_measures,
    SuiteName.match: elo_measures,
}
# Settings with paths of files, which may differ: contents are compared by row, by checksum or by the engine's name.
PATH_SETTINGS = ("path", "mates", "file", "pgn")
# Settings and facts on which policy/win_probability_loss depends.
SETTINGS_OF_LOSS = ("config.evaluation.nodes", "config.stockfish.", "facts.policy.engine")
MODEL = "config.model.path"

Result = tuple[Mapping[str, Any], Mapping[str, list[Row]]]
"""The header of an evaluation's file of rows, and its rows by suite."""


def compare_command(argv: list[str]) -> int:
    """Run the command and return its exit code. Raises UserError or OSError, which the command line reports."""
    arguments = _parser().parse_args(argv)
    _compare(arguments.first, arguments.second, arguments.json)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="rookworld evaluate compare", description="Two models on the same rows; B less A.")
    parser.add_argument("first", metavar="A", type=Path, help="a file that evaluate output= wrote")
    parser.add_argument("second", metavar="B", type=Path, help="another, of the same suites and rows")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the comparison here")
    return parser


def _compare(first: Path, second: Path, out: Path | None) -> None:
    _require_new(out, first, second)
    one, two = read_finished(first), read_finished(second)
    suites = [name for name in one[1] if name in two[1]]
    contents = [f"{', '.join(rows)} in {path}" for (_, rows), path in ((one, first), (two, second))]
    if not suites:
        raise UserError(f"expected a suite that both have, got {' and '.join(contents)}")
    differing = differing_settings((one[0], two[0]), suites, (first, second))
    comparisons = _comparisons(one, two, suites, (first, second))
    lines = [_model_line("A", one, first), _model_line("B", two, second)]
    if one[1].keys() != two[1].keys():
        lines.append(f"Not in both: {'; '.join(contents)}")
    if differing:
        lines.append("Differs: " + "; ".join(f"{name} is {a} in A, {b} in B" for name, (a, b) in differing.items()))
    console = make_console()
    print_lines(console, *lines)
    console.print(comparison_table(comparisons))
    print_lines(console, *_conclusion(comparisons))
    if out is not None:
        models = {"first": one[0]["model"], "second": two[0]["model"]}
        table = {key: _as_json(entry) for key, entry in comparisons.items()}
        write_json(out, {"models": models, "differs": differing, "suites": suites, "table": table})


def _model_line(letter: str, result: Result, path: Path) -> str:
    model = result[0]["model"]
    return f"{letter}: {model['path']}, {model['parameters']:,} parameters, weights {model['checksum']}, from {path}"


def _comparisons(one: Result, two: Result, suites: Sequence[str], files: tuple[Path, Path]) -> dict[str, Comparison]:
    comparisons: dict[str, Comparison] = {}
    for name in suites:
        try:
            comparisons |= compare(one[1][name], two[1][name], MEASURES.get(name, no_measures))
        except ValueError as error:
            raise UserError(f"{name}: {error}, in {files[0]} and {files[1]}") from error
    return comparisons


def _conclusion(comparisons: Mapping[str, Comparison]) -> list[str]:
    """Return sentences that name the keys in which B is better or worse.

    Keys with fewer than LEAST_ROWS rows, keys without a direction, and keys of slices, such as colours, are not tested.
    """
    tested = {key: entry for key, entry in comparisons.items() if is_tested(key) and entry.n >= LEAST_ROWS}
    better, worse = better_and_worse(tested)
    named = [f"B is {how} in {', '.join(keys)}." for how, keys in (("worse", worse), ("better", better)) if keys]
    if not tested:
        return [f"No key was tested for a difference: that needs {LEAST_ROWS} rows of a key."]
    same, rows = len(tested) - len(better) - len(worse), max(entry.n for entry in tested.values())
    if same == len(tested):
        return [f"No measured difference in {same} keys: {rows} rows are too few to show one."]
    return [*named, f"No measured difference in {same} of {len(tested)} keys ({rows} rows, Holm's correction at 5 %)."]


def _as_json(entry: Comparison) -> dict[str, Any]:
    means = {name: json_number(getattr(entry, name)) for name in ("first", "second")}
    return asdict(entry) | means | {"gain": to_json({"gain": entry.gain})["gain"]}


def _require_new(out: Path | None, first: Path, second: Path) -> None:
    """Raise UserError if the comparison cannot be written or would overwrite a compared file."""
    if out is None:
        return
    check_output_file(out, "--json")
    compared = [path.resolve() for file in (first, second) for path in (file, rows_path(file))]
    if out.resolve() in compared:
        raise UserError(f"--json: expected a file of its own, got {out}, which is compared")


def differing_settings(
    heads: tuple[Mapping[str, Any], Mapping[str, Any]], suites: Sequence[str], files: tuple[Path, Path]
) -> dict[str, tuple[Any, Any]]:
    """Return the settings and facts, by name, that differ between two evaluations of `suites`, except for the model.

    Raises UserError if the results are not comparable: if the seed differs, or a fact or setting of a common suite, or
    the engine or nodes behind a win-probability loss that both have. Names of files may differ.
    """
    first, second = (dict(_settings(head, suites)) for head in heads)
    names = [name for name in dict.fromkeys([*first, *second]) if name != MODEL]
    both = {name: (first.get(name, MISSING), second.get(name, MISSING)) for name in names}
    differing = {name: values for name, values in both.items() if values[0] != values[1]}
    loss = all(any("engine" in head["facts"].get(task, {}) for task in _with_loss(suites)) for head in heads)
    for name, values in differing.items():
        if _must_agree(name, suites, loss):
            places = " and ".join(f"{value!r} in {path}" for value, path in zip(values, files, strict=True))
            raise UserError(f"expected two results of one evaluation, got others: {name} is {places}")
    return differing


def _settings(head: Mapping[str, Any], suites: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the settings and facts of one evaluation, without those of suites that are not compared."""
    for section in ("config", "facts", "software"):
        yield from leaves(settings_of(head[section], suites), section)


def _with_loss(suites: Sequence[str]) -> list[str]:
    """Return the suites whose rows have a win-probability loss: tasks that name a move."""
    return [task.name for task in all_tasks() if task.names_move and task.name in suites]


def _must_agree(name: str, suites: Sequence[str], loss: bool) -> bool:
    if name.rpartition(".")[2] in PATH_SETTINGS:
        return False
    if name.startswith(SETTINGS_OF_LOSS):
        return loss and bool(_with_loss(suites))
    return name == "config.seed" or suite_of(name) in suites

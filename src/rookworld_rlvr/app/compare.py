"""`rookworld evaluate compare A B`: two results of `rookworld evaluate` on the same rows, key by key."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..evaluation import to_json
from ..evaluation.headline import holm
from ..evaluation.measures import MEASURES
from ..evaluation.paired import Comparison, compare
from ..evaluation.scales import lower_is_better
from ..evaluation.suite import no_measures
from ..evaluation.table import json_number
from ..files import write_json
from .arguments import OneLineParser
from .build import make_console
from .compared_settings import differing_settings
from .exit_codes import BAD_INPUT, DONE
from .rows_file import read_finished, rows_path
from .tables import BESIDE, comparison_table


def compare_command(argv: list[str]) -> int:
    """Returns the exit code."""
    try:
        arguments = _parser().parse_args(argv)
        _compare(arguments.first, arguments.second, arguments.json)
    except (UserError, OSError) as error:
        print(f"rookworld: {error}", file=sys.stderr)
        return BAD_INPUT
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="rookworld evaluate compare", description="Two models on the same rows; B less A.")
    parser.add_argument("first", metavar="A", type=Path, help="a file that evaluate output= wrote")
    parser.add_argument("second", metavar="B", type=Path, help="another, of the same suites and rows")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write the comparison here")
    return parser


def _compare(first: Path, second: Path, out: Path | None) -> None:
    _require_new(out, first, second)
    one_head, one = read_finished(first)
    two_head, two = read_finished(second)
    suites = [name for name in one if name in two]
    has = [f"{', '.join(rows)} in {path}" for rows, path in ((one, first), (two, second))]
    if not suites:
        raise UserError(f"expected a suite that both have, got {' and '.join(has)}")
    differs = differing_settings((one_head, two_head), suites, (first, second))
    found: dict[str, Comparison] = {}
    for name in suites:
        try:
            found |= compare(one[name], two[name], MEASURES.get(name, no_measures))
        except ValueError as error:
            raise UserError(f"{name}: {error}, in {first} and {second}") from error
    models = {"first": one_head["model"], "second": two_head["model"]}
    console = make_console()
    for name, model, path in (("A", one_head["model"], first), ("B", two_head["model"], second)):
        told = f"{name}: {model['path']}, {model['parameters']:,} parameters, weights {model['checksum']}, from {path}"
        console.print(told, highlight=False, markup=False, soft_wrap=True)
    if one.keys() != two.keys():
        console.print(f"Not in both: {'; '.join(has)}", highlight=False, markup=False, soft_wrap=True)
    if differs:
        told = "; ".join(f"{name} is {one} in A, {two} in B" for name, (one, two) in differs.items())
        console.print(f"Differs: {told}", highlight=False, markup=False, soft_wrap=True)
    console.print(comparison_table(found))
    console.print("\n".join(_verdict(found)), highlight=False, markup=False, soft_wrap=True)
    if out is not None:
        table = {key: _as_json(entry) for key, entry in found.items()}
        write_json(out, {"models": models, "differs": differs, "suites": suites, "table": table})


def _verdict(found: Mapping[str, Comparison]) -> list[str]:
    """What B does better and worse, in sentences; keys that refine others, as by colour, are left out."""
    tested = {key: entry for key, entry in found.items() if key.rpartition("/")[2] not in BESIDE}
    moved = holm({key: entry.p for key, entry in tested.items()})
    worse = [key for key in tested if key in moved and (tested[key].gain.value > 0) == lower_is_better(key)]
    better = [key for key in tested if key in moved and key not in worse]
    told = [f"B is {how} in {', '.join(keys)}." for how, keys in (("worse", worse), ("better", better)) if keys]
    rows = max((entry.n for entry in tested.values()), default=0)
    rest = f"{len(tested) - len(moved)} of {len(tested)} keys are not told apart by {rows} rows"
    return [*told, f"{rest} (5 % over all of them, Holm's correction)."]


def _as_json(entry: Comparison) -> dict[str, Any]:
    means = {name: json_number(getattr(entry, name)) for name in ("first", "second")}
    return asdict(entry) | means | {"gain": to_json({"gain": entry.gain})["gain"]}


def _require_new(out: Path | None, first: Path, second: Path) -> None:
    """Raises UserError where the comparison would go nowhere, or over what is compared."""
    if out is None:
        return
    if not out.resolve().parent.is_dir():
        raise UserError(f"--json: expected a file in a folder that exists, got {out}")
    compared = [path.resolve() for file in (first, second) for path in (file, rows_path(file))]
    if out.resolve() in compared:
        raise UserError(f"--json: expected a file of its own, got {out}, which is compared")

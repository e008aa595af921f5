"""`rookworld data`: audit a file of rows, generate new rows, and write move evaluations of existing rows."""

import argparse
import math
import os
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from ..errors import BAD_INPUT, DONE, INTERRUPTED, ScorerError, UserError
from ..evaluation.conversion import endgames_kept_out
from ..files import file_type, write_lines
from ..generation import CARD_FILE, GENERATED, Request, generate, positions_with_moves, write_move_evals
from ..progress import progress
from ..stockfish.engine import MAX_TIMEOUT_S, EngineConfig
from ..stockfish.uci import Limit
from ..tasks.audit import audit, corrected_lines
from ..tasks.corpus import POSITION_FILES
from ..training.data import held_out_positions, positions_of
from .arguments import OneLineParser, positive

BOTH = "both"
# Defaults for labels. The depth is low, because there are many labels; a deeper search may need the long timeout.
DEPTH, TIMEOUT_S = 4, 120


def main(argv: list[str]) -> int:
    """Run `data audit FILE [--fix OUT]`, `data generate …` or `data evals …` and return the exit code."""
    try:
        arguments = _parser().parse_args(argv)
    except UserError as error:
        print(f"rookworld: {error}", file=sys.stderr)
        return BAD_INPUT
    try:
        arguments.run(arguments)
    except (UserError, ScorerError, OSError) as error:
        print(f"rookworld data: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        resumes = "" if arguments.run is _audit else "; the same command resumes"
        print(f"rookworld data: interrupted{resumes}", file=sys.stderr)
        return INTERRUPTED
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="rookworld data", description="Audit rows of data, or generate them.")
    commands = parser.add_subparsers(required=True, metavar="audit|generate|evals")
    _add_audit(commands.add_parser("audit", help="report what is wrong in a file of rows"))
    _add_generate(commands.add_parser("generate", help="write new rows, labelled by the rules and Stockfish"))
    _add_evals(commands.add_parser("evals", help="write Stockfish's evaluation of every legal move of P: rows"))
    return parser


def _add_evals(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="rows whose P: prompts are evaluated")
    parser.add_argument("--nodes", type=positive, default=EngineConfig().nodes, metavar="N", help="nodes per position")
    parser.add_argument(
        "--processes", type=positive, default=1, metavar="K", help="number of processes; the result is the same"
    )
    parser.add_argument("--out", type=_gz, required=True, metavar="FILE.tsv.gz", help="file for rubric.move_evals=")
    parser.set_defaults(run=_evals)


def _add_audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a .txt or .jsonl file, or a dataset's folder or name")
    parser.add_argument("--fix", metavar="OUT", type=Path, help="write a corrected copy here")
    parser.set_defaults(run=_audit)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", choices=[*GENERATED, BOTH], default=BOTH, help=f"task; default {BOTH}")
    parser.add_argument("--rows", type=positive, required=True, metavar="N", help="number of rows per task")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the games; default 0")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--depth", type=positive, default=DEPTH, metavar="D", help=f"depth of Stockfish in plies; default {DEPTH}"
    )
    limit.add_argument(
        "--nodes", type=positive, metavar="N", help="nodes of Stockfish per position, instead of a depth"
    )
    parser.add_argument(
        "--timeout",
        type=_timeout,
        default=TIMEOUT_S,
        metavar="S",
        help=f"seconds without an answer after which an engine is replaced; default {TIMEOUT_S}",
    )
    parser.add_argument(
        "--processes", type=positive, default=1, metavar="K", help="number of processes; the rows are the same"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="output folder; an interrupted call resumes there"
    )
    held_out = "share of the positions whose rows are written to held_out_* files; the same positions in every folder"
    parser.add_argument("--held-out", type=_fraction, default=0.0, metavar="F", help=held_out)
    given = "label these positions first: PGN games, or lines of FEN, EPD or JSON with fen"
    parser.add_argument("--positions", nargs="+", default=[], metavar="FILE", help=given)
    stay_clear = "rows, or JSON lines with fen, whose positions are excluded; our held-out positions and those of the "
    stay_clear += "suite conversion always are"
    parser.add_argument("--exclude", nargs="+", default=[], metavar="FILE", help=stay_clear)
    parser.set_defaults(run=_generate)


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 and below 1, got {text!r}")
    return value


def _timeout(text: str) -> int:
    if (seconds := positive(text)) > MAX_TIMEOUT_S:
        raise argparse.ArgumentTypeError(f"expected at most {MAX_TIMEOUT_S}, a day, got {text!r}")
    return seconds


def _gz(text: str) -> Path:
    path = Path(text)
    if file_type(path) != ".gz" or path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"expected a .gz file in a folder that exists, got {text!r}")
    return path


def _evals(arguments: argparse.Namespace) -> None:
    config = EngineConfig(nodes=arguments.nodes, processes=arguments.processes)
    fens = positions_with_moves(arguments.files)
    if not fens:
        raise UserError(f"evals: expected P: prompts or positions in {', '.join(arguments.files)}, got none")
    with progress(Console(stderr=True), "evaluations", len(fens), unit="positions") as show:
        write_move_evals(fens, arguments.out, config, show)
    print(f"move evaluations of {len(fens)} positions, {config.nodes} nodes per position: {arguments.out}")


def _audit(arguments: argparse.Namespace) -> None:
    source, fix = arguments.file, arguments.fix
    if fix is not None:
        _check_copy(source, fix)
    for line in audit(source).lines():
        print(line)
    if fix is not None:
        dropped: Counter[str] = Counter()
        rows = write_lines(fix, corrected_lines(source, dropped=dropped))
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(dropped.items())) or "none"
        print(f"Corrected copy: {fix}: {rows} rows; dropped: {reasons}")


def _check_copy(source: str, copy: Path) -> None:
    """Raise UserError unless `copy` can be written in the format that its name says.

    The rows of positions, such as those of a PGN file, are written as JSON lines.
    """
    suffix = file_type(source) if Path(source).is_file() else ".jsonl"
    suffix = ".jsonl" if suffix in POSITION_FILES else suffix
    same = copy.exists() and Path(source).exists() and copy.samefile(source)
    if same or copy.resolve() == Path(source).resolve():
        raise UserError(f"expected --fix to name another file than {source}, got {copy}")
    if copy.is_dir() or not copy.parent.is_dir() or not os.access(copy.parent, os.W_OK):
        raise UserError(f"expected --fix to name a file in a folder that can be written to, got {copy}")
    if file_type(copy) != suffix:
        raise UserError(
            f"expected --fix to name a {suffix} file, which the rows of {source} are written to, got {copy}"
        )


def _generate(arguments: argparse.Namespace) -> None:
    limit, engine = Limit(depth=arguments.depth), EngineConfig(timeout_s=arguments.timeout)
    if arguments.nodes:
        # The timeout applies to a search of `engine.nodes` nodes, so both must agree.
        limit, engine = Limit(nodes=arguments.nodes), replace(engine, nodes=arguments.nodes)
    request = Request(
        tasks=tuple(GENERATED) if arguments.task == BOTH else (arguments.task,),
        rows=arguments.rows,
        seed=arguments.seed,
        engine=engine,
        limit=limit,
        processes=arguments.processes,
        folder=arguments.out,
        excluded=held_out_positions() | endgames_kept_out() | positions_of(arguments.exclude),
        held_out_fraction=arguments.held_out,
        positions=tuple(arguments.positions),
    )
    restarts = generate(request, partial(progress, Console(stderr=True)))
    replaced = f"; engines replaced: {restarts}" if restarts else ""
    where = f"{request.folder}, described in {CARD_FILE}"
    print(f"{request.rows} rows of {' and '.join(request.tasks)}: {where}{replaced}")

"""`rookworld report RUN…`: write one HTML file that shows a run or overlays several, or their learning curve as SVG."""

import argparse
from pathlib import Path

from ..errors import DONE, UserError
from ..files import check_output_file, file_type, follow, write_text
from ..report.learning_curve import learning_curve_svg
from ..report.page import REPORT, render
from ..report.run_record import read_run
from ..report.summary import summarise_run
from .arguments import OneLineParser, warn_of_unfinished
from .build import make_console, print_lines


def main(argv: list[str]) -> int:
    """Run the command and return its exit code. Raises UserError or OSError, which the command line reports."""
    given = _parser().parse_args(argv)
    warn_of_unfinished(*given.runs)
    _report(given.runs, given.output)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="rookworld report", description="Write one HTML file about one or several runs. It needs no network."
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=follow, help="a run's folder, or outputs/latest")
    output = f"file to write (default: {REPORT} in the folder of the first run); FILE.svg: only the learning curve"
    parser.add_argument("--output", metavar="FILE", type=Path, help=output)
    return parser


def _report(folders: list[Path], output: Path | None) -> None:
    runs = [read_run(folder) for folder in folders]
    path = output or folders[0] / REPORT
    check_output_file(path, "report: --output")
    page = learning_curve_svg(runs) if file_type(path) == ".svg" else render(runs)
    if not page:
        wanted = "runs with a learning curve (evaluation.curve_every above 0), of some common steps"
        raise UserError(f"report: expected {wanted}")
    write_text(path, page)
    console = make_console()
    for folder, run in zip(folders, runs, strict=True):
        print_lines(console, f"{folder}:", *summarise_run(run.summary, run.metrics).sentences())
    print_lines(console, f"report: {path}")

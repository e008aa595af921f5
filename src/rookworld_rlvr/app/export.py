"""`rookworld export RUN --to FOLDER`: copy a checkpoint, with a model card, to a folder for the Hugging Face hub."""

import argparse
from pathlib import Path

from ..errors import DONE
from ..files import follow
from ..report.export import export
from ..shell import shell_word
from .arguments import OneLineParser, warn_of_unfinished


def main(argv: list[str]) -> int:
    """Run the command and return its exit code. Raises UserError or OSError, which the command line reports."""
    given = _parser().parse_args(argv)
    warn_of_unfinished(given.run)
    files = export(given.run, given.to, checkpoint=given.checkpoint)
    print(f"{len(files)} files: {given.to}; its card: {given.to / 'README.md'}")
    print(f"to send it: hf upload USER/NAME {shell_word(str(given.to))}")
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="rookworld export", description=__doc__)
    parser.add_argument("run", metavar="RUN", type=follow, help="a run's folder, or outputs/latest")
    parser.add_argument("--to", metavar="FOLDER", type=Path, required=True, help="a new or an empty folder")
    parser.add_argument("--checkpoint", default="last", help="last (default, which was evaluated), best or step-N")
    return parser

"""Parsing for the commands that take arguments in place of hydra's overrides."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from ..errors import UserError


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog.removeprefix('rookworld ')}: {message}")


def warn_of_unfinished(*paths: str | Path) -> None:
    """Print a line on stderr for each path in the folder of a run that has not finished."""
    # It imports torch, which most of these commands do not need to refuse an argument.
    from ..training.run_files import unfinished_run

    for line in filter(None, (unfinished_run(Path(path)) for path in paths)):
        print(f"rookworld: {line}", file=sys.stderr)

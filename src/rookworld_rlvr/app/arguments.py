"""Parsing for the commands that take arguments in place of hydra's overrides."""

import argparse
from typing import NoReturn

from ..errors import UserError


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog.removeprefix('rookworld ')}: {message}")

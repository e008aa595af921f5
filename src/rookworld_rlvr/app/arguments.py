"""Input of the commands: the parser of arguments, and the YAML files of configuration groups."""

import argparse
import sys
from pathlib import Path
from typing import NoReturn

from omegaconf import DictConfig, OmegaConf

from ..errors import UserError


class OneLineParser(argparse.ArgumentParser):
    """Argument parser that raises UserError with a one-line message, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog.removeprefix('rookworld ')}: {message}")


def positive(text: str) -> int:
    """Return the number of an argument. Raises ArgumentTypeError, which argparse reports, for any below 1."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def warn_of_unfinished(*paths: str | Path) -> None:
    """Print a line on stderr for each path that is in the folder of an unfinished run."""
    # Imported here, because it imports torch, which these commands do not need to refuse an argument.
    from ..training.run_files import unfinished_run

    for line in filter(None, (unfinished_run(Path(path)) for path in paths)):
        print(f"rookworld: {line}", file=sys.stderr)


def conf_folder() -> Path:
    """Return the folder of the YAML files: inside an installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def groups(name: str) -> dict[str, list[str]]:
    """Return the groups of `conf/<name>.yaml` in order, each with its options."""
    by_group = {}
    for entry in OmegaConf.load(conf_folder() / f"{name}.yaml").defaults:
        # Other entries are the schema, the file itself and hydra's own groups.
        if isinstance(entry, DictConfig) and not str(next(iter(entry))).startswith("override "):
            [group] = map(str, entry)
            by_group[group] = sorted(path.stem for path in (conf_folder() / group).glob("*.yaml"))
    return by_group

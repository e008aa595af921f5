"""`rookworld uci [--model FOLDER]`: the model as an engine for chess programs."""

import argparse
import sys

from ..errors import DONE
from ..play.introduction import introduction


def main(argv: list[str]) -> int:
    """Returns the exit code. Raises UserError."""
    parser = argparse.ArgumentParser(prog="rookworld uci", description=__doc__)
    parser.add_argument("--model", default="tiny", help="a folder, a hub name, or tiny, the model that ships (default)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; one answers a single position fastest")
    parser.add_argument("--seed", type=int, default=0, help="decides what is drawn at a temperature above 0")
    given = parser.parse_args(argv)
    # A chess program waits for the introduction some ten seconds, and torch may take as long to be imported.
    line = sys.stdin.readline()
    introduced = line.split() == ["uci"]
    if introduced:
        say("\n".join(introduction(given.model)))
    serve(given, "" if introduced else line)
    return DONE


def serve(given: argparse.Namespace, line: str) -> None:
    """Load the model and talk until `quit` or the end of the input; `line` was read already. Raises UserError."""
    from ..play.uci import UciSession
    from .build import set_threads
    from .play import load_chooser

    set_threads(given.threads)
    session = UciSession(lambda path: load_chooser(path, given.seed), given.model, say)
    # A folder that is none is refused here, before a chess program waits for a move.
    session.be_loaded()
    while session.receive(line) and (line := sys.stdin.readline()):
        pass
    session.receive("quit")


def say(line: str) -> None:
    """Print a line at once: a chess program waits for it."""
    print(line, flush=True)

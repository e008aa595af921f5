"""`rookworld uci [--model FOLDER]`: run the model as a UCI engine, which chess programs can use."""

import argparse
import os
import sys
from io import TextIOWrapper

from ..errors import DONE
from ..play.introduction import introduction, without_mark
from .arguments import OneLineParser
from .play import DECODING_HELP, DECODINGS


def main(argv: list[str]) -> int:
    """Run the command and return its exit code. Raises UserError."""
    parser = OneLineParser(prog="rookworld uci", description=__doc__)
    parser.add_argument("--model", default="tiny", help="a folder, a hub name, or tiny, the model that ships (default)")
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads (default 1, the fastest for a single position)"
    )
    parser.add_argument("--decoding", choices=DECODINGS, default=DECODINGS[0], help=DECODING_HELP)
    parser.add_argument("--seed", type=int, default=0, help="seed of sampling at a temperature above 0")
    given = parser.parse_args(argv)
    tolerate_bytes()
    # A chess program waits about ten seconds for the introduction. Importing torch may take as long, so it comes later.
    line = sys.stdin.readline()
    introduced = without_mark(line).split() == ["uci"]
    if introduced:
        say("\n".join(introduction(given.model)))
    serve(given, "" if introduced else line)
    return DONE


def serve(given: argparse.Namespace, line: str) -> None:
    """Load the model, then answer `line` and the lines of stdin until `quit` or the end. Raises UserError."""
    from ..play.uci import UciSession
    from .build import set_threads
    from .play import load_chooser

    set_threads(given.threads)
    session = UciSession(lambda path: load_chooser(path, given.seed, decoding=given.decoding), given.model, say)
    # Load the model now, so that a wrong folder is refused before a chess program waits for a move.
    session.chooser()
    while session.receive(line) and (line := sys.stdin.readline()):
        pass
    session.receive("quit")


def tolerate_bytes() -> None:
    """Let no byte end the session: read and write one that is not in the terminal's encoding by a substitute.

    A path may come in the encoding of another machine, and Python decodes a whole block of lines at once.
    """
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace")):
        # A test or another program may have put a stream of its own in their places.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)


def say(line: str) -> None:
    """Print a line and flush it, because a chess program waits for it. Once the program has gone, print nothing."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # Python would try to write the rest of its buffer at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

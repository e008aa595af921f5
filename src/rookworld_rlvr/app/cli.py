"""The command line: `rookworld <command> …`, also `python -m rookworld_rlvr <command> …`."""

import importlib
import sys

from .process import prepare_process

# Each command's module is imported when it is called: `data` needs no torch.
COMMANDS = {
    "train": "the main job: bash train.sh = smoke, then this",
    "smoke": "one real step on one prompt a task, then the preflight gates",
    "bench": "how fast a step is with each generator, and how much of the machine it uses",
    "evaluate": "the held-out table of a model",
    "inspect": "replay a batch that a fault left behind",
    "warmstart": "a tiny model by behaviour cloning",
    "data": "audit a file of rows, generate new ones, or play games that become rows",
}
EXIT_BAD_INPUT = 2
# As a shell reports it; training itself ends an interrupt with a checkpoint and 0.
EXIT_INTERRUPTED = 130


def main(argv: list[str]) -> int:
    """Run a command; returns the exit code."""
    if argv[:1] in ([], ["-h"], ["--help"]):
        print(_usage())
        return 0 if argv else EXIT_BAD_INPUT
    command, *arguments = argv
    if command not in COMMANDS:
        print(f"rookworld: expected one of {', '.join(COMMANDS)}, got {command!r}", file=sys.stderr)
        return EXIT_BAD_INPUT
    prepare_process()
    module = importlib.import_module(f"{__package__}.{command}")
    try:
        code: int = module.main(arguments)
    except KeyboardInterrupt:
        print("rookworld: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return code


def console() -> None:
    """The installed script."""
    sys.exit(main(sys.argv[1:]))


def _usage() -> str:
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    return "\n".join(["usage: rookworld <command> [overrides or arguments]", "", *lines])

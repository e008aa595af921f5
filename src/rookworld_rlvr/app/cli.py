"""The command line: `rookworld <command> …`, also `python -m rookworld_rlvr <command> …`."""

import sys
from io import TextIOWrapper

from ..errors import BAD_INPUT, DONE, INTERRUPTED, UserError
from .arguments import groups
from .process import imported, prepare_process, run_process

# A command's module is imported only when the command is called: most import torch and transformers, which takes time.
COMMANDS = {
    "train": "train by GRPO, with an evaluation before and after; train.sh runs smoke, then this",
    "smoke": "preflight checks and one real step on one prompt per task",
    "bench": "measure the speed of a step with each generator",
    "evaluate": "measure a model on held-out rows, mates in one and games; evaluate compare: compare two results",
    "report": "write one HTML file about one or several runs: summary, curves, boards",
    "rollouts": "show completions of a run or an evaluation as boards in the terminal",
    "rescore": "score a run's transcripts again with another rubric, and compare",
    "export": "write a checkpoint with a model card, for the hub",
    "inspect": "replay a batch that a fault saved",
    "sft": "supervised fine-tuning of an existing model on labelled examples",
    "play": "serve a page to play against the model, with the board that it predicts",
    "uci": "run the model as a UCI engine, for chess programs",
    "data": "audit a file of examples, generate new ones, or evaluate the moves of their positions",
}
# Commands with a hydra configuration, and the name of each one's file in conf/. The other commands use argparse.
CONFIGURED = {name: name for name in ("train", "bench", "evaluate", "sft")} | {"smoke": "train"}
COMPARE = ("evaluate", "compare")
HELP = ("-h", "--help")


def main(argv: list[str]) -> int:
    """Run a command and return its exit code."""
    if not argv or argv[0] in HELP:
        print(_usage())
        return DONE if argv else BAD_INPUT
    command, *arguments = argv
    if command not in COMMANDS:
        print(f"rookworld: expected one of {', '.join(COMMANDS)}, got {command!r}", file=sys.stderr)
        return BAD_INPUT
    if command in CONFIGURED and (command, *arguments[:1]) != COMPARE and not set(HELP).isdisjoint(arguments):
        print(_help(command))
        return DONE
    prepare_process()
    try:
        # Importing torch takes seconds, in which Ctrl-C must end the command like later.
        module = imported(f"{__package__}.{command}")
        code: int = module.main(arguments)
    except KeyboardInterrupt:
        print("rookworld: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (UserError, OSError) as error:
        print(f"rookworld: {error}", file=sys.stderr)
        return BAD_INPUT
    return code


def console() -> None:
    """Run the command of this process's arguments and end the process with its exit code.

    Entry point of the installed script, and of a file that registers a task of a user's own. `sys.exit(main(…))` would
    not do there: one of several processes may then end by SIGABRT, see `run_process`.
    """
    # A character that the terminal's encoding lacks must not end a command. Python's own standard error does likewise.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    run_process(lambda: main(sys.argv[1:]))


def _usage() -> str:
    lines = [f"  {name:<10} {text}" for name, text in COMMANDS.items()]
    last = "rookworld <command> --help: arguments of a command"
    return "\n".join(["usage: rookworld <command> [overrides or arguments]", "", *lines, "", last])


def _help(command: str) -> str:
    """Return the help of a configured command. hydra's own help also lists groups that the command refuses."""
    taken = groups(CONFIGURED[command])
    call = f"rookworld {command} {'[group=choice ...] ' if taken else ''}[option=value ...]"
    lines = [f"usage: {call}"]
    if command == COMPARE[0]:
        lines += [f"       rookworld {' '.join(COMPARE)} [--json OUT] A B"]
    lines += ["", COMMANDS[command], ""]
    if taken:
        lines += ["groups of options and their choices:"]
        lines += [f"  {name:<11} {', '.join(options)}" for name, options in taken.items()] + [""]
    lines += [
        "every option with its default and meaning: .venv/bin/python scripts/generate_docs.py FOLDER (in the checkout)"
    ]
    lines += [f"the value of each in one call: {call} --cfg job"]
    return "\n".join(lines)

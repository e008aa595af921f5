"""`rookworld play`: serve a web page to play against the model. It also shows the board that the model predicts."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BAD_INPUT, DONE, UserError
from ..tasks import all_tasks, task_named
from .arguments import OneLineParser, warn_of_unfinished

if TYPE_CHECKING:
    from ..play.choice import MoveChooser
    from ..play.server import Server

HOST, PORT, MODEL = "127.0.0.1", 8321, "tiny"
# The task by whose prompts a model plays unless another one is given.
DEFAULT_TASK = "policy"
# Names of `evaluation.config.Decoding`, whose package imports torch.
DECODINGS = ("legal", "text")
DECODING_HELP = "legal: the likeliest legal move (default); text: the move that the model writes"


def main(argv: list[str]) -> int:
    """Serve until Ctrl-C and return the exit code."""
    try:
        arguments = _parser().parse_args(argv)
        # Importing torch and loading a model take many seconds.
        print(f"loading {', '.join(arguments.model or [MODEL])}…", flush=True)
        server = _server(arguments)
    except (UserError, OSError, OverflowError) as error:
        print(f"rookworld: play: {str(error).removeprefix('play: ')}", file=sys.stderr)
        return BAD_INPUT
    if not server.is_private:
        print(f"rookworld: play: every machine that reaches {arguments.host} can play", file=sys.stderr)
    try:
        print(f"open {server.address} in a browser; Ctrl-C ends it", flush=True)
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
    return DONE


def _server(arguments: argparse.Namespace) -> "Server":
    """Load the models and return the server. Raises UserError, OSError or OverflowError."""
    from ..play.api import PlayApi
    from ..play.server import Server
    from .build import set_threads

    set_threads(arguments.threads)
    paths = arguments.model or [MODEL]
    choosers = [load_chooser(path, arguments.seed, arguments.task, arguments.decoding) for path in paths]
    return Server(arguments.host, arguments.port, PlayApi(list(zip(_names(paths), choosers, strict=True))))


def load_chooser(path: str, seed: int, task: str = DEFAULT_TASK, decoding: str = DECODINGS[0]) -> "MoveChooser":
    """Load the model of a folder, a hub name or `tiny` as a chooser of moves by a task's prompts. Raises UserError.

    `decoding` is one of DECODINGS.
    """
    import torch

    from ..evaluation.config import Decoding
    from ..model.device import Device, Precision, select_device
    from ..model.loading import ModelConfig, load_policy
    from ..play.choice import MoveChooser
    from ..rollout.generator import GeneratorConfig
    from .build import warn_of_weights
    from .generators import make_generator

    warn_of_unfinished(path)
    policy = load_policy(ModelConfig(path=path), select_device(Device.auto), Precision.auto)
    warn_of_weights(policy, path)
    policy.model.eval()
    with torch.no_grad():
        plays = task_named(task)
        generator = make_generator(policy, GeneratorConfig(max_new_tokens=plays.max_new_tokens))
        return MoveChooser(policy, generator, seed=seed, task=plays, decoding=Decoding(decoding))


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="rookworld play", description=__doc__)
    model_help = "a folder, a hub name, or tiny (default); several models can play each other"
    parser.add_argument("--model", action="append", help=model_help)
    tasks = [task.name for task in all_tasks() if task.names_move]
    task_help = f"task that asks for a move (default {DEFAULT_TASK})"
    parser.add_argument("--task", choices=tasks, default=DEFAULT_TASK, help=task_help)
    parser.add_argument("--decoding", choices=DECODINGS, default=DECODINGS[0], help=DECODING_HELP)
    parser.add_argument("--host", default=HOST, help="address to listen on (default: only this machine)")
    parser.add_argument("--port", type=int, default=PORT, help=f"port (default {PORT}); 0: any free port")
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads (default 1, the fastest for a single position)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of sampling at a temperature above 0")
    return parser


def _names(paths: list[str]) -> list[str]:
    """Return the models' names: run and checkpoint for a run's checkpoint, the given path for any other model."""
    resolved = [Path(path).resolve() for path in paths]
    return [
        f"{folder.parents[1].name} {folder.name}" if folder.is_dir() and folder.parent.name == "checkpoints" else path
        for path, folder in zip(paths, resolved, strict=True)
    ]

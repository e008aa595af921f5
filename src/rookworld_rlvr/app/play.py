"""`rookworld play`: a page on this machine to play the model on, and to see which board it believes in."""

import argparse
import sys
from pathlib import Path

import torch

from ..errors import UserError
from ..model.device import Device, Precision, select_device
from ..model.policy import TINY, Attention, ModelConfig, load_policy
from ..play.choice import Mover
from ..play.server import LOOPBACK, Server
from ..play.table import Table
from ..rollout.generator import GeneratorConfig
from .arguments import OneLineParser
from .build import set_threads
from .exit_codes import BAD_INPUT, DONE
from .generators import make_generator

PORT = 8321


def main(argv: list[str]) -> int:
    """Serve until Ctrl-C; returns the exit code."""
    try:
        given = _parser().parse_args(argv)
        set_threads(given.threads)
        paths = given.model or [TINY]
        movers = [load_mover(path, given.seed) for path in paths]
        server = Server(given.host, given.port, Table(list(zip(_names(paths), movers, strict=True))))
    except (UserError, OSError, OverflowError) as error:
        print(f"rookworld: play: {error}", file=sys.stderr)
        return BAD_INPUT
    if given.host not in LOOPBACK:
        print(f"rookworld: play: every machine that reaches {given.host} can play", file=sys.stderr)
    try:
        print(f"open {server.address} in a browser; Ctrl-C ends it", flush=True)
        server.serve_forever()
    except KeyboardInterrupt:
        print()
    finally:
        server.server_close()
    return DONE


def load_mover(path: str, seed: int) -> Mover:
    """The model of a folder, a hub name or `tiny`, ready to be asked. Raises UserError."""
    policy = load_policy(ModelConfig(path=path, attention=Attention.auto), select_device(Device.auto), Precision.auto)
    policy.model.eval()
    with torch.no_grad():
        return Mover(policy, make_generator(policy, GeneratorConfig()), seed=seed)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="rookworld play", description=__doc__)
    told = "a folder, a hub name, or tiny (default); given more than once, they can play each other"
    parser.add_argument("--model", action="append", help=told)
    parser.add_argument("--host", default=LOOPBACK[0], help="the address to listen on (default: this machine alone)")
    parser.add_argument("--port", type=int, default=PORT, help=f"default {PORT}; 0: any that is free")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; one answers a single position fastest")
    parser.add_argument("--seed", type=int, default=0, help="decides what is drawn at a temperature above 0")
    return parser


def _names(paths: list[str]) -> list[str]:
    """A checkpoint by its own name and its run's; others as they were given."""
    resolved = [Path(path).resolve() for path in paths]
    return [
        f"{folder.parents[1].name} {folder.name}" if folder.is_dir() and folder.parent.name == "checkpoints" else path
        for path, folder in zip(paths, resolved, strict=True)
    ]

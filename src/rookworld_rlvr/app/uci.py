"""`rookworld uci [--model FOLDER]`: the model as an engine for chess programs."""

import argparse
import sys

import torch

from ..errors import UserError
from ..model.policy import TINY, Attention, Device, ModelConfig, Precision, load_policy, select_device
from ..play.choice import Mover
from ..play.uci import UciSession
from ..rollout.generator import GeneratorConfig
from .exit_codes import BAD_INPUT, DONE
from .wiring import make_generator, set_threads


def main(argv: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="rookworld uci", description=__doc__)
    parser.add_argument("--model", default=TINY, help="a folder, a hub name, or tiny, the model that ships (default)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; one answers a single position fastest")
    parser.add_argument("--seed", type=int, default=0, help="decides what is drawn at a temperature above 0")
    given = parser.parse_args(argv)
    try:
        set_threads(given.threads)
        session = UciSession(lambda path: load_mover(path, given.seed), given.model, say)
        # A folder that is none is refused here, before a chess program waits for an answer.
        session.be_loaded()
    except UserError as error:
        print(f"rookworld: {error}", file=sys.stderr)
        return BAD_INPUT
    for line in sys.stdin:
        if not session.receive(line):
            break
    session.receive("quit")
    return DONE


def load_mover(path: str, seed: int) -> Mover:
    """The model of a folder, a hub name or `tiny`, ready to be asked. Raises UserError."""
    policy = load_policy(ModelConfig(path=path, attention=Attention.auto), select_device(Device.auto), Precision.auto)
    policy.model.eval()
    with torch.no_grad():
        return Mover(policy, make_generator(policy, GeneratorConfig()), seed=seed)


def say(line: str) -> None:
    """Print a line at once: a chess program waits for it."""
    print(line, flush=True)

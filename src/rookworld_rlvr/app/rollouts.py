"""`rookworld rollouts RUN-OR-FILE`: print a model's completions as boards, beginning with the last step."""

import argparse

from rich.console import Console

from ..errors import DONE, UserError
from ..files import follow
from ..report.terminal import transcript_view
from ..report.transcripts import Transcript, draw, read_transcripts
from ..tasks import all_tasks
from .arguments import OneLineParser, positive, warn_of_unfinished

# Width of two boards and a list of moves, in characters.
WIDTH = 200


def main(argv: list[str]) -> int:
    """Run the command and return its exit code. Raises UserError or OSError, which the command line reports."""
    given = _parser().parse_args(argv)
    warn_of_unfinished(given.path)
    transcripts = read_transcripts(given.path)
    steps = sorted({one.step for one in transcripts if one.step is not None}, reverse=True)
    listed = f"--step {', '.join(map(str, steps))}; " if steps else ""
    hint = f"; choose by {listed}--failed, --task, --reward, --most"
    matching = [one for one in transcripts if _matches(one, given)]
    if not matching:
        raise UserError(f"rollouts: expected transcripts of this choice, got none among {len(transcripts)}{hint}")
    chosen = [one for one in matching if not given.failed or draw(one).problem]
    if not chosen:
        print(f"no completion failed, of {len(matching)} of this choice{hint}")
        return DONE
    chosen.sort(key=lambda one: -(one.step or 0))
    if given.by_reward:
        chosen.sort(key=lambda one: one.reward or 0.0)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=WIDTH, highlight=False, color_system=None)
    for transcript in chosen[: given.most]:
        console.print(transcript_view(transcript), soft_wrap=True)
        console.print()
    console.print(f"{min(given.most, len(chosen))} of {len(chosen)}{hint}", soft_wrap=True)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="rookworld rollouts", description=__doc__)
    parser.add_argument(
        "path", metavar="RUN-OR-FILE", type=follow, help="a run's folder, or what evaluate output= wrote"
    )
    parser.add_argument("--failed", action="store_true", help="only completions that were refused, illegal or wrong")
    parser.add_argument("--task", choices=[task.name for task in all_tasks()], help="only this task")
    parser.add_argument("--step", type=int, help="only this step")
    reward = "only rewards from LOW to HIGH, and completions without a reward"
    everything = (float("-inf"), float("inf"))
    parser.add_argument("--reward", type=float, nargs=2, metavar=("LOW", "HIGH"), default=everything, help=reward)
    parser.add_argument("--by-reward", action="store_true", help="sort by reward, lowest first")
    parser.add_argument("--most", type=positive, default=20, help="maximum number shown (default 20)")
    return parser


def _matches(one: Transcript, given: argparse.Namespace) -> bool:
    """Return True if a transcript has the wanted task, step and reward. A missing reward is in every range."""
    if given.task not in (None, one.task) or given.step not in (None, one.step):
        return False
    return one.reward is None or given.reward[0] <= one.reward <= given.reward[1]

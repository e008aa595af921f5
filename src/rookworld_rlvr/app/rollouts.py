"""`rookworld rollouts RUN-OR-FILE`: completions of a model as boards, one at a time in a terminal."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ..errors import DONE, UserError
from ..report.boards import draw
from ..report.terminal import transcript_view
from ..report.transcripts import Transcript, read_transcripts
from ..tasks import Task
from .arguments import OneLineParser, warn_of_unfinished

KEYS = "n next · p previous · t task · f failures · s next step · r order by reward · g first · q quit"
TASKS = (None, *Task)


@dataclass(slots=True)
class Choice:
    """Filter and order of the transcripts that are shown."""

    task: Task | None = None
    step: int | None = None
    failed: bool = False
    lowest: float = float("-inf")
    highest: float = float("inf")
    by_reward: bool = False

    def of(self, transcripts: list[Transcript]) -> list[Transcript]:
        """The transcripts that are chosen. One without a reward is never left out for its reward."""
        chosen = [one for one in transcripts if self._holds(one)]
        return sorted(chosen, key=lambda one: one.reward or 0.0) if self.by_reward else chosen

    def _holds(self, one: Transcript) -> bool:
        if self.task not in (None, one.task) or self.step not in (None, one.step):
            return False
        if one.reward is not None and not self.lowest <= one.reward <= self.highest:
            return False
        return not self.failed or bool(draw(one).problem)

    def __str__(self) -> str:
        filters = [self.task or "both tasks", "every step" if self.step is None else f"step {self.step}"]
        return ", ".join(filters + ["failures alone"] * self.failed + ["by reward"] * self.by_reward)


def main(argv: list[str]) -> int:
    """Returns the exit code. Raises UserError or OSError, which the command line reports."""
    given = _parser().parse_args(argv)
    warn_of_unfinished(given.path)
    transcripts = newest_first(read_transcripts(given.path))
    lowest, highest = given.reward
    choice = Choice(given.task, given.step, given.failed, lowest, highest, given.by_reward)
    if not choice.of(transcripts):
        raise UserError(
            f"rollouts: expected transcripts of {choice}, got none among {len(transcripts)}{_steps(transcripts)}"
        )
    console = Console(highlight=False)
    if console.is_terminal and sys.stdin.isatty():
        page_through(console, transcripts, choice)
    else:
        chosen = choice.of(transcripts)
        print_all(console, chosen[: given.most])
        console.print(f"{min(given.most, len(chosen))} of {len(chosen)}{_steps(transcripts)}", soft_wrap=True)
    return DONE


def newest_first(transcripts: list[Transcript]) -> list[Transcript]:
    """Return the transcripts with those of the last step first; within a step they keep their order."""
    return sorted(transcripts, key=lambda one: -(one.step or 0))


def _steps(transcripts: list[Transcript]) -> str:
    """Return the steps to choose from, and the other filters."""
    steps = [str(step) for step in dict.fromkeys(one.step for one in transcripts) if step is not None]
    listed = f"--step {', '.join(steps)}; " if steps else ""
    return f"; choose by {listed}--failed, --task, --reward, --most"


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="rookworld rollouts", description=f"{__doc__} Keys: {KEYS}.")
    parser.add_argument("path", metavar="RUN-OR-FILE", type=Path, help="a run's folder, or what evaluate output= wrote")
    parser.add_argument("--failed", action="store_true", help="only completions that were refused, illegal or wrong")
    parser.add_argument("--task", type=Task, choices=list(Task), help="one task alone")
    parser.add_argument("--step", type=int, help="one step alone")
    parser.add_argument("--reward", type=float, nargs=2, metavar=("LOW", "HIGH"), default=(float("-inf"), float("inf")))
    parser.add_argument("--by-reward", action="store_true", help="the lowest reward first")
    parser.add_argument("--most", type=int, default=20, help="number shown if the output is no terminal (default 20)")
    return parser


def print_all(console: Console, transcripts: list[Transcript]) -> None:
    """One below another, as wide as they are."""
    plain = Console(file=console.file, width=200, highlight=False, color_system=None)
    for transcript in transcripts:
        plain.print(transcript_view(transcript), soft_wrap=True)
        plain.print()


def page_through(console: Console, transcripts: list[Transcript], choice: Choice) -> None:
    """Show one at a time and follow the keys."""
    place = 0
    with _one_key_at_a_time():
        while True:
            chosen = choice.of(transcripts)
            place = max(0, min(place, len(chosen) - 1))
            console.clear()
            if chosen:
                console.print(transcript_view(chosen[place]))
            console.print(f"\n{place + bool(chosen)} of {len(chosen)}: {choice}\n{KEYS}", style="dim")
            key = sys.stdin.read(1)
            match key:
                case "q" | "":
                    return
                case "n" | " ":
                    place += 1
                case "p":
                    place -= 1
                case "g":
                    place = 0
                case _:
                    place = _change(choice, key, transcripts, place)


def _change(choice: Choice, key: str, transcripts: list[Transcript], place: int) -> int:
    """Follow a key that changes what is shown; returns the place to go on from."""
    match key:
        case "t":
            choice.task = TASKS[(TASKS.index(choice.task) + 1) % len(TASKS)]
        case "f":
            choice.failed = not choice.failed
        case "r":
            choice.by_reward = not choice.by_reward
        case "s":
            steps = [None, *dict.fromkeys(one.step for one in transcripts if one.step is not None)]
            choice.step = steps[(steps.index(choice.step) + 1) % len(steps)]
        case _:
            return place
    return 0


@contextmanager
def _one_key_at_a_time() -> Iterator[None]:
    """Keys arrive as they are pressed, where the system can do that; elsewhere with the line's end."""
    try:
        import termios
        import tty
    except ImportError:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

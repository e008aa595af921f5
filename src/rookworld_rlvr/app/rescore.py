"""`rookworld rescore RUN [rubric=… overrides]`: score a run's transcripts again and compare the rewards."""

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from omegaconf import DictConfig
from rich.table import Table

from ..errors import UserError, prefixed
from ..files import follow
from ..report.terminal import printable
from ..report.transcripts import Transcript, read_transcripts
from ..rewards.score import ScoreRequest
from ..shell import setting
from ..tasks import all_tasks
from ..tasks.types import LabelError, PromptError
from ..training.config import RunConfig
from ..training.run_files import ROLLOUTS_FILE
from .arguments import OneLineParser
from .build import make_console, make_scorers, print_lines
from .hydra_command import overrides, run_command, to_dataclass
from .train import NAME, resumed_config

# Rewards that differ by at most this count as the same. Files have a run's exact rewards.
SAME = 1e-9
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Rescored:
    """A transcript with its reward in the run and its new reward."""

    transcript: Transcript
    before: float
    now: float

    @property
    def change(self) -> float:
        return self.now - self.before


def main(argv: list[str]) -> int:
    """Run the command and return its exit code. Raises UserError for invalid arguments."""
    given = _parser().parse_args(argv)
    return run_command(NAME, RunConfig, [setting("resume", given.run), *given.overrides], _rescore)


def _parser() -> OneLineParser:
    parser = OneLineParser(prog="rookworld rescore", description="Score a run's transcripts by another rubric.")
    parser.add_argument("run", metavar="RUN", type=_folder, help="a run's folder")
    parser.add_argument(
        "overrides", metavar="OVERRIDE", nargs="*", help="option of the rubric, such as rubric.source=labels"
    )
    return parser


def _folder(text: str) -> Path:
    folder = follow(text)
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"expected a run's folder, got {text!r}")
    return folder


def _rescore(config: RunConfig, raw: DictConfig) -> None:
    given = [override for override in overrides() if not override.startswith("resume=")]
    if other := [override for override in given if not override.startswith("rubric")]:
        raise UserError(f"rescore: expected overrides of rubric, got {' '.join(other)}")
    again: RunConfig = to_dataclass(resumed_config(config.resume, raw, overrides()))
    rescored = rescore(again, read_transcripts(Path(config.resume)))
    console = make_console()
    console.print(_table(rescored))
    changed = sorted((one for one in rescored if abs(one.change) > SAME), key=lambda one: -abs(one.change))
    for one in changed[:SHOWN]:
        text = printable(f"{one.transcript.prompt}  →  {one.transcript.completion}")
        rewards = f"{one.before:+.3f} → {one.now:+.3f}  step {one.transcript.step}"
        print_lines(console, f"{rewards}  {text}")
    print_lines(console, f"{len(rescored) - len(changed)} of {len(rescored)} rewards are the same")


def rescore(config: RunConfig, transcripts: Sequence[Transcript]) -> list[Rescored]:
    """Return the transcripts with their rewards under this configuration, except those whose reward was not finite."""
    kept = [(one, one.reward) for one in transcripts if one.reward is not None]
    requests = [ScoreRequest(one.prompt, one.completion, one.expected) for one, _ in kept]
    scorer, measure = make_scorers(config)
    where = f"rescore: {config.resume}/{ROLLOUTS_FILE}"
    with closing(measure), closing(scorer), prefixed(where, PromptError, LabelError):
        scorer.prepare([request.prompt for request in requests])
        scores = scorer.score_all(requests)
    return [Rescored(one, reward, score.total) for (one, reward), score in zip(kept, scores, strict=True)]


def _table(rescored: Sequence[Rescored]) -> Table:
    """Return a table with a row per task. The last columns count the `_pairs`, and those that keep their order."""
    table = Table("task", "completions", "the same", "reward before", "now", "pairs", "in the same order")
    for task in [task.name for task in all_tasks()]:
        rows = [one for one in rescored if one.transcript.task == task]
        if not rows:
            continue
        pairs = _pairs(rows)
        agree = sum(one.now < two.now for one, two in pairs)
        table.add_row(
            task,
            str(len(rows)),
            str(sum(abs(one.change) <= SAME for one in rows)),
            f"{fmean(one.before for one in rows):+.4f}",
            f"{fmean(one.now for one in rows):+.4f}",
            str(len(pairs)),
            str(agree),
        )
    return table


def _pairs(rows: Sequence[Rescored]) -> list[tuple[Rescored, Rescored]]:
    """Return the lowest and the highest rewarded completion of each prompt and step, unless they are equal."""
    by_prompt: dict[tuple[int | None, str], list[Rescored]] = {}
    for one in rows:
        by_prompt.setdefault((one.transcript.step, one.transcript.prompt), []).append(one)
    ordered = [sorted(group, key=lambda one: one.before) for group in by_prompt.values()]
    return [(group[0], group[-1]) for group in ordered if group[0].before < group[-1].before]

"""Transcripts of a model's completions, read from a run's folder or from the rows of an evaluation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..board.drawing import Drawing
from ..errors import UserError, first_line
from ..evaluation.suite import SuiteName
from ..files import whole_lines
from ..tasks import task_named, task_of
from ..tasks.types import Completion, ParseFailure
from ..training.run_files import ROLLOUTS_FILE

ROWS_ENDING = ".rows.jsonl"
# Keys that say whether a player solved a position, by suite.
SOLVED: Mapping[str, str] = {SuiteName.mate_in_one: "mate_in_one/accuracy", SuiteName.puzzles: "puzzles/solved"}


@dataclass(frozen=True, slots=True)
class Transcript:
    """A prompt and a model's completion."""

    task: str
    prompt: str
    completion: str
    expected: str | None
    """Label of the example; None if there is none."""
    failure: str | None
    """Reason that the parser refused it, or that its move does not solve a mate or a puzzle; otherwise None."""
    step: int | None = None
    """Step of the run, counted from 1; None for an evaluation."""
    reward: float | None = None
    """Reward of the completion; None for an evaluation, or if it was not finite."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Components of the reward; for an evaluation, the values of the row."""


def read_transcripts(path: Path) -> list[Transcript]:
    """Read the transcripts of a run's folder, of a file that `evaluate output=` wrote, or of the file of its rows.

    Raises UserError if there are no transcripts.
    """
    file = path / ROLLOUTS_FILE if path.is_dir() else path
    if not file.name.endswith(".jsonl"):
        file = file.with_name(f"{file.name}{ROWS_ENDING}")
    if not file.is_file():
        raise UserError(f"expected a run's folder, or a file that evaluate output= wrote, got {path}: no {file.name}")
    try:
        lines = [json.loads(line) for line in whole_lines(file)]
        transcripts = [_of_evaluation(line) if "values" in line else of_run(line) for line in lines if "prompt" in line]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        wanted = f"a run's transcripts or an evaluation's rows in {file}"
        raise UserError(f"expected {wanted}, got {described(error)}") from error
    if not transcripts:
        raise UserError(f"expected transcripts in {file}, got none: games have no prompts")
    return transcripts


def described(error: Exception) -> str:
    """Return the kind and the message of an error. A representation would contain all bytes that are no text."""
    return f"{type(error).__name__}: {first_line(error)}"


def of_run(line: Mapping[str, Any]) -> Transcript:
    """Return the transcript in a decoded line of rollouts.jsonl.

    Raises KeyError, TypeError or ValueError if it is malformed.
    """
    values = {spec.name: line[spec.name] for spec in fields(Transcript)}
    texts = isinstance(values["prompt"], str) and isinstance(values["completion"], str)
    if not texts or not isinstance(values["components"], dict):
        raise ValueError("expected texts as prompt and completion, and an object as components")
    task_named(values["task"]).query(values["prompt"])
    return Transcript(**values)


def _of_evaluation(line: Mapping[str, Any]) -> Transcript:
    prompt, completion = line["prompt"], line["completion"]
    values = {key: float(value) for key, value in line["values"].items()}
    task = task_of(prompt)
    query = task.query(prompt)
    if solved := SOLVED.get(line["suite"]):
        # The completion of a player is only its best move.
        failure = None if values[solved] else f"unsolved: expected {line['expected']}"
        return Transcript(task.name, prompt, f"B: {completion}", line["expected"], failure, components=values)
    answer = task.parse(Completion(completion), query)
    failure = f"{answer.reason}: {answer.detail}" if isinstance(answer, ParseFailure) else None
    return Transcript(task.name, prompt, completion, line["expected"], failure, components=values)


def draw(transcript: Transcript) -> Drawing:
    """Return the drawing of a transcript. Its problem is the kind of the transcript's failure if it has one."""
    drawn = task_named(transcript.task).draw(transcript.prompt, transcript.completion)
    return drawn if transcript.failure is None else replace(drawn, problem=transcript.failure.partition(":")[0])

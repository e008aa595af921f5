"""Sampled transcripts: what the model wrote, what was expected, what each part gave."""

import json
import math
from pathlib import Path
from typing import Any

from ..rollout.groups import Group, Sample
from .step_report import StepReport


def transcript(step: int, group: Group, sample: Sample) -> dict[str, Any]:
    """One completion as a JSON object of rollouts.jsonl."""
    failure, reward = sample.score.failure, sample.score.total
    return {
        "step": step,
        "task": group.example.task.value,
        "prompt": group.example.prompt,
        "completion": sample.text,
        "expected": group.example.completion,
        # JSON has no NaN; a reward that is not finite is a fault, and told of as one.
        "reward": reward if math.isfinite(reward) else None,
        "parts": sample.score.parts,
        "failure": f"{failure.reason}: {failure.detail}" if failure else None,
        "finished": sample.completion.finished,
    }


def append_transcripts(path: Path, report: StepReport) -> None:
    """Write the best and the worst completion of each group behind the file's end."""
    with path.open("a", encoding="utf-8") as lines:
        for group in report.groups:
            ranked = sorted(group.samples, key=lambda sample: sample.score.total)
            for sample in (ranked[0], ranked[-1]):
                lines.write(json.dumps(transcript(report.step + 1, group, sample)) + "\n")

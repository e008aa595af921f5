"""Sampled transcripts: what the model wrote, what was expected, what each part gave."""

import json
import math
from collections.abc import Mapping, Sequence
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
        "parts": sample.score.components,
        "failure": f"{failure.reason}: {failure.detail}" if failure else None,
        "finished": sample.completion.finished,
    }


def kept_transcripts(report: StepReport) -> list[dict[str, Any]]:
    """The worst and the best completion of each group."""
    ranked = (sorted(group.samples, key=lambda sample: sample.score.total) for group in report.groups)
    pairs = zip(report.groups, ranked, strict=True)
    return [transcript(report.step + 1, group, one) for group, samples in pairs for one in (samples[0], samples[-1])]


def append_transcripts(path: Path, transcripts: Sequence[Mapping[str, Any]]) -> None:
    """Write transcripts behind the file's end."""
    with path.open("a", encoding="utf-8") as lines:
        lines.writelines(json.dumps(one) + "\n" for one in transcripts)

"""Results of finished members in `docs/studies/results.jsonl`, one line per member: the figures of all pages.

Run folders are not in the repository, but these figures are. So a study can continue on another machine.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.files import make_folder, whole_lines
from rookworld_rlvr.report.run_record import RunRecord, read_run
from study import DOCS, Member, RunKey, Study, declaration, names

RESULTS = DOCS / "results.jsonl"
# Number of last steps over which KL and reward of a run are averaged.
LAST_STEPS = 10


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a finished member."""

    overrides: list[str]
    commits: list[str]
    """Commits that ran it; a + after one means that the code differed from the commit."""
    seconds: float
    before: Mapping[str, float]
    """Value before training by evaluation key."""
    after: Mapping[str, float]
    gain: Mapping[str, Mapping[str, float]]
    """`value`, `low` and `high` of the paired difference by evaluation key, as in `summary.json`."""
    kl: float | None
    """KL(policy‖starting model) in the last steps, nats per token; None if it was not measured."""
    reward: float
    """Mean reward in the last steps."""
    curves: Mapping[str, list[float]] = field(default_factory=dict)
    """Values in all steps of the metrics that studies watch, by metric."""


def read_results() -> dict[RunKey, Result]:
    """Return the results so far by overrides and seed, so that all studies with an arm find it. Raises UserError."""
    results: dict[RunKey, Result] = {}
    try:
        for line in whole_lines(RESULTS):
            values: dict[str, Any] = json.loads(line)
            seed = int(values.pop("member").rpartition("seed=")[2])
            results[tuple(values["overrides"]), seed] = Result(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"expected a result per line in {RESULTS}, got {error!r}") from error
    return results


def keep_result(member: Member) -> None:
    """Append the result of a finished member to the file: its values of all keys that any study uses."""
    assert member.run is not None
    run, record = read_run(member.run), member.record()
    every = [declaration(name) for name in names()]
    keys = {key for study in every for key in (study.key, *study.guards)} & run.summary["gain"].keys()
    watched = {study.curve for study in every} & {key for step in run.metrics for key in step}
    result = Result(
        overrides=list(member.overrides),
        commits=record["commits"],
        seconds=record["seconds"],
        before={key: run.summary["before"][key]["value"] for key in sorted(keys)},
        after={key: run.summary["after"][key]["value"] for key in sorted(keys)},
        gain={key: run.summary["gain"][key] for key in sorted(keys)},
        kl=kl_reached(run),
        reward=fmean([step["reward/mean"] for step in run.metrics if "reward/mean" in step][-LAST_STEPS:]),
        curves={key: [step[key] for step in run.metrics if key in step] for key in sorted(watched)},
    )
    make_folder(DOCS, "docs")
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"member": member.key} | asdict(result)) + "\n")


def kl_reached(run: RunRecord) -> float | None:
    """Return KL(policy‖starting model) in the last steps, nats per token; None if it was not measured."""
    values = [step.get("kl/original", step.get("kl/reference")) for step in run.metrics if step["step"]][-LAST_STEPS:]
    measured = [value for value in values if value is not None]
    return fmean(measured) if measured else None


def is_finished(study: Study, member: Member, results: Mapping[RunKey, Result]) -> bool:
    """Return whether the member has a result with the study's keys, which a run for another study may lack.

    Raises UserError if its folder is of another declaration of the arm.
    """
    if member.record()["overrides"] != list(member.overrides):
        raise UserError(f"{member.folder} was made by another declaration of this arm: rename the arm, or remove it")
    result = results.get(member.run_key)
    return result is not None and {study.key, *study.guards} <= result.gain.keys()

"""`rookworld rescore` repeats the rewards with the same rubric and compares those of another rubric with them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rookworld_rlvr.app.cli import main


@pytest.fixture(scope="module")
def finished(train_once: Callable[..., Path]) -> Path:
    """Return a run with the transcripts of its first and its last step."""
    return train_once("steps=4", "evaluation.rows=0")


def test_rescore_repeats_all_rewards_only_with_the_same_rubric(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = (finished / "rollouts.jsonl").read_text().count("\n")
    capsys.readouterr()
    assert main(["rescore", str(finished)]) == 0
    assert f"{count} of {count} rewards are the same" in capsys.readouterr().out
    assert main(["rescore", str(finished), "rubric.malformed_reward=-0.9", "rubric.tiers.structure=0.9"]) == 0
    said = capsys.readouterr().out
    assert f"{count} of {count} rewards" not in said and " → " in said and "in the same order" in said


def test_rescore_takes_a_folder_with_any_name(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "it's, seed=0"
    shutil.copytree(finished, odd, symlinks=True)
    capsys.readouterr()
    assert main(["rescore", str(odd)]) == 0
    assert "rewards are the same" in capsys.readouterr().out


def test_rescore_prints_the_mean_reward_of_the_file(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [json.loads(line) for line in (finished / "rollouts.jsonl").read_text().splitlines()]
    rewards = [row["reward"] for row in rows if row["task"] == "policy"]
    capsys.readouterr()
    assert main(["rescore", str(finished), "rubric.source=rules"]) == 0
    assert f"{sum(rewards) / len(rewards):+.4f}" in capsys.readouterr().out


@pytest.mark.parametrize(("given", "message"), [
    ([], "rescore: the following arguments are required: RUN"),
    (["rubric.source=rules"], "rescore: argument RUN: expected a run's folder, got 'rubric.source=rules'"),
    (["/nope"], "rescore: argument RUN: expected a run's folder, got '/nope'"),
    (["{run}", "steps=3"], "rescore: expected overrides of rubric, got steps=3"),
    (["{run}", "rubric.tiers.parse=-1"], "rubric.tiers.parse"),
])  # fmt: skip
def test_invalid_rescore_is_refused_in_one_line(
    given: list[str], message: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["rescore", *(text.format(run=finished) for text in given)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


@pytest.mark.parametrize(("key", "value", "message"), [
    ("prompt", "P: nowhere", "expected 'P: <FEN>'"),
    ("expected", "M: e2e4", "expected a label that parses"),
])  # fmt: skip
def test_an_unreadable_prompt_or_label_is_refused_in_one_line(
    key: str, value: str, message: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run", symlinks=True))
    row = next(row for row in map(json.loads, (run / "rollouts.jsonl").open()) if row["task"] == "policy")
    (run / "rollouts.jsonl").write_text(json.dumps(row | {key: value}) + "\n")
    capsys.readouterr()
    assert main(["rescore", str(run), "rubric.source=labels"]) == 2
    said = capsys.readouterr().err
    assert f"{run / 'rollouts.jsonl'}" in said and message in said and said.count("\n") == 1

"""Runs scored by an engine, end to end: rewards, tables, counts, the cache, and engines that die during a run."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.errors import TrainingGaveUpError
from rookworld_rlvr.rewards.scorer import RubricScorer
from rookworld_rlvr.stockfish.pool import EnginePool
from rookworld_rlvr.training.metrics import declared
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.state import Event, Moment, StepContext
from rookworld_rlvr.training.trainer import train as train_run

MakeRun = Callable[..., Run]
Pids = Callable[[StepContext], list[int]]
LOSS = "policy/win_probability_loss"
ENGINE = ("rubric.source=engine", "rubric.stockfish.nodes=400", "data.tasks=[policy,environment:0]", "steps=3")
# Metrics of runs with an engine. The small corpus has 32 positions, and a step uses two of them.
KEYS = {"scorer/engine_positions", "scorer/engine_cached_fraction", "scorer/engine_wait_s", "scorer/engine_restarts"}


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the engines' evaluations in a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def pids(engine_pids: Callable[[EnginePool], list[int]]) -> Pids:
    """Return a function that returns the process ids of the engines that score a run."""

    def of_run(context: StepContext) -> list[int]:
        scorer = context.sampler.scorer
        assert isinstance(scorer, RubricScorer) and scorer._evaluations._pool
        return engine_pids(scorer._evaluations._pool)

    return of_run


@pytest.mark.slow
def test_engine_scored_rewards_are_unchanged_by_cache_and_killed_engines(
    train: Callable[..., Path],
    make_saved_run: MakeRun,
    stockfish: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pids: Pids,
) -> None:
    given = (*ENGINE, f"rubric.stockfish.path={stockfish}")
    first = train(*given, "evaluation.rows=4")
    rows, result = metrics(first), summary(first)
    assert all(row.keys() >= KEYS and row["optim/update_norm"] > 0 for row in rows)
    assert [row["scorer/engine_positions"] for row in rows] == [2, 2, 2]
    assert rows[0]["scorer/engine_cached_fraction"] <= 0.5 and rows[-1]["scorer/engine_restarts"] == 0
    assert "reward/component/policy/correctness/best_value" in rows[0]
    assert not [key for row in rows for key in row if key.endswith("_match")]
    assert all(declared(key).meaning for row in rows for key in row if key != "step")
    assert 0 <= result["before"][LOSS]["value"] <= 1 and result["before"][LOSS]["n"] == 4 and LOSS in result["gain"]
    again = train(*given, "evaluation.rows=4", "rubric.stockfish.processes=2", root="again")
    assert [row["reward/mean"] for row in metrics(again)] == [row["reward/mean"] for row in rows]
    assert [row["scorer/engine_cached_fraction"] for row in metrics(again)] == [1, 1, 1]
    assert summary(again)["before"] == result["before"] and summary(again)["gain"] == result["gain"]
    seen: list[int] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    killed = make_saved_run(*ENGINE, f"rubric.stockfish.path={stockfish}")
    killed.context.hooks.append(kill_in_every_step(seen, pids))
    train_run(killed)
    assert [row["reward/mean"] for row in metrics(killed.folder)] == [row["reward/mean"] for row in rows]
    assert [row["scorer/engine_restarts"] for row in metrics(killed.folder)] == [1, 2, 3] and len(set(seen)) == 3
    assert metrics(killed.folder)[-1]["recovery/skipped"] == 0 and pids(killed.context) == []


def kill_in_every_step(seen: list[int], pids: Pids) -> Callable[[Moment, StepContext, Event], None]:
    def kill(moment: Moment, context: StepContext, _event: Event) -> None:
        if moment is Moment.begun:
            [pid] = pids(context)
            os.kill(pid, signal.SIGKILL)
            seen.append(pid)

    return kill


def test_engine_search_starts_before_generation(make_run: MakeRun, stockfish: str) -> None:
    from rookworld_rlvr.training.step import grpo_step

    run = make_run(*ENGINE, f"rubric.stockfish.path={stockfish}")
    scorer, order = run.context.sampler.scorer, []
    prepare, generate, score_all = scorer.prepare, run.context.sampler.generator.generate, scorer.score_all

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **named: Any) -> Any:
            order.append(name)
            return call(*arguments, **named)

        return noted

    for owner, name, call in (
        (scorer, "prepare", prepare),
        (run.context.sampler.generator, "generate", generate),
        (scorer, "score_all", score_all),
    ):
        setattr(owner, name, noting(name, call))
    assert grpo_step(run.context, 0).fault is None
    run.close()
    assert order == ["prepare", "generate", "score_all"]


def test_failing_engine_is_a_scorer_fault_with_a_suggestion(
    make_saved_run: MakeRun, fake_stockfish: Path, monkeypatch: pytest.MonkeyPatch, pids: Pids
) -> None:
    given = (*ENGINE, f"rubric.stockfish.path={fake_stockfish}", "evaluation.rows=0")
    run = make_saved_run(*given, "recovery.max_consecutive_nans=1", "steps=9")

    def fail_from_now_on(moment: Moment, context: StepContext, event: Event) -> None:
        if event.step == 1 and moment is Moment.begun:
            monkeypatch.setenv("FAKE_DIES", " ")
            [pid] = pids(context)
            os.kill(pid, signal.SIGKILL)

    run.context.hooks.append(fail_from_now_on)
    # An engine gets every position with move number 1.
    failure = r"scorer \(scores: the engine failed 3 times on (.*?) 1: it has died"
    with pytest.raises(TrainingGaveUpError, match=failure) as raised:
        train_run(run)
    text = (run.folder / "diagnosis.txt").read_text()
    [position] = re.findall(failure, str(raised.value))
    assert f"prompt          P: {position} " in text and "rubric.stockfish.nodes=5000" in text
    assert pids(run.context) == []


@pytest.mark.parametrize("command", ["train", "smoke"])
def test_missing_engine_is_refused_before_run_folder_is_made(
    command: str, small_overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = [*small_overrides, f"output_root={tmp_path / 'outputs'}", "rubric.source=engine"]
    assert main([command, *given, "rubric.stockfish.path=/nope/stockfish"]) == 2
    error = capfd.readouterr().err
    assert error == "rookworld: rubric.stockfish: expected an engine's binary, got '/nope/stockfish': no such file\n"
    assert not (tmp_path / "outputs").exists()

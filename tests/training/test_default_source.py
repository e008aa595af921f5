"""Runs with the default sources: shipped evaluations instead of an engine, sampled rows, mates in one and the match."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.model.policy import Policy
from rookworld_rlvr.rollout.generator import Generator
from rookworld_rlvr.stockfish.engine import EngineUnusableError, find_engine
from rookworld_rlvr.training.run import Run
from rookworld_rlvr.training.trainer import train as train_run

Train = Callable[..., Path]
DEFAULTS = ("rubric.source=cached", "data.train=default", "data.held_out=default", "data.tasks=[policy,environment:0]")
LOSS, CHOICE_LOSS = "policy/win_probability_loss", "policy/legal_choice_loss"


@pytest.fixture(autouse=True)
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOCKFISH_PATH", str(tmp_path / "absent"))


def summary(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return loaded


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_shipped_evaluations_score_and_measure_without_an_engine(train: Train) -> None:
    folder = train(*DEFAULTS, "steps=2", "evaluation.rows=3")
    for row in metrics(folder):
        # There are two prompts per step, both of the policy task.
        assert row["scorer/source/shipped"] == 2
        assert not {"scorer/source/label", "scorer/source/rules", "scorer/engine_positions"} & row.keys()
    result = summary(folder)
    assert result["before"][LOSS]["n"] == 3 and LOSS in result["gain"]


def test_without_a_cache_labels_score_and_no_loss_is_measured(train: Train) -> None:
    folder = train(*DEFAULTS, "steps=1", "evaluation.rows=3", "rubric.move_evals=")
    [row] = metrics(folder)
    assert row["scorer/source/label"] == 2 and "scorer/source/shipped" not in row
    assert LOSS not in summary(folder)["before"]


def test_a_run_chooses_among_legal_moves_unless_it_is_to_write_them(train: Train) -> None:
    given = ("steps=1", "evaluation.rows=1", "evaluation.match_pairs=1", "evaluation.match_plies=2")
    chosen, written = (summary(train(*DEFAULTS, *given, *more)) for more in ((), ("evaluation.decoding=text",)))
    assert written["match"]["illegal"]["value"] > 0 == chosen["match"]["illegal"]["value"]
    assert (chosen["match"]["decoding"], written["match"]["decoding"]) == ("legal", "text")
    assert CHOICE_LOSS in chosen["before"] and CHOICE_LOSS not in written["before"]


def test_a_summary_has_sampled_rows_spread_match_and_worse_keys(train: Train) -> None:
    given = (
        "steps=1",
        "evaluation.rows=3",
        "evaluation.sampled_rows=2",
        "evaluation.match_pairs=1",
        "evaluation.match_plies=2",
    )
    folder = train(*DEFAULTS, *given)
    result = summary(folder)
    assert result["before"]["sampled/policy/valid"]["n"] == 2 and result["before"]["policy/valid"]["n"] == 3
    assert "sampled/policy/valid" in result["gain"] and "sampled/environment/next_state_accuracy" in result["gain"]
    assert not [key for key in result["gain"] if key.startswith("spread/")]
    assert result["spread"]["before"].keys() == result["spread"]["after"].keys()
    assert {"spread/best/policy/valid", "spread/distinct/environment"} <= result["spread"]["after"].keys()
    # By the rules, games that reach the ply limit are drawn; n counts games.
    match = result["match"]
    assert match["rules_score"] == {"value": 0.5, "low": 0.0, "high": 1.0, "n": 2}
    assert match["elo"]["low"] == "-inf" and match["score"]["n"] == 2 and 0.0 <= match["score"]["value"] <= 1.0
    assert match["ended/adjudicated_material"]["value"] == 1.0 and match["adjudicator"] == "material"
    assert sum(match["pentanomial"]) == 1 and 0.0 < match["likelihood_of_superiority"] < 1.0
    assert result["worse"] == []


def test_run_stopped_during_match_keeps_its_tables(make_saved_run: Callable[..., Run]) -> None:
    run = make_saved_run(
        *DEFAULTS, "steps=1", "evaluation.rows=3", "evaluation.match_pairs=50", "evaluation.match_plies=500"
    )
    make_generator, kept = run.make_generator, []
    assert make_generator is not None

    def stopping(model: Policy) -> Generator:
        """Request a stop at the beginning of the match, when the tables are on the disk."""
        kept.append(summary(run.folder))
        run.stop_requested = True
        return make_generator(model)

    run.make_generator = stopping
    result = train_run(run)
    assert result == summary(run.folder) and result["after"] == kept[0]["after"] and "policy/valid" in result["after"]
    assert (result["stopped"], kept[0]["stopped"], result["match"]) == ("interrupted", "interrupted", {})


@pytest.fixture
def mates(tmp_path: Path) -> Path:
    path = tmp_path / "mates.jsonl"
    rows = {"6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1": "a1a8", "7k/5Q2/6K1/8/8/8/8/8 w - - 0 1": "f7g7"}
    path.write_text("".join(json.dumps({"fen": fen, "best": best}) + "\n" for fen, best in rows.items()))
    return path


def test_mates_in_one_from_file_are_evaluated_before_and_after(train: Train, mates: Path) -> None:
    given = (*DEFAULTS, "evaluation.rows=2", "evaluation.sampled_rows=1", f"evaluation.mates={mates}")
    whole = summary(train(*given, "steps=2", root="whole"))
    assert {whole[table]["mate_in_one/accuracy"]["n"] for table in ("before", "after")} == {2}
    assert "mate_in_one/accuracy" in whole["gain"]
    resumed = train(*given, "steps=1", root="cut")
    assert summary(train(*given, f"resume={resumed}", "steps=2", root="cut"))["gain"].keys() == whole["gain"].keys()


def test_mates_in_one_of_training_positions_are_left_out(train: Train, mates: Path, tmp_path: Path) -> None:
    trained = tmp_path / "trained.txt"
    [fen, _] = [json.loads(line)["fen"] for line in mates.read_text().splitlines()]
    trained.write_text(f"P: {fen} M: a1a8 E: 999.99 B: a1a8\n" * 2)
    given = (
        "rubric.source=cached",
        f"data.train={trained}",
        "data.held_out=default",
        "data.tasks=[policy,environment:0]",
    )
    result = summary(train(*given, "evaluation.rows=2", "steps=1", f"evaluation.mates={mates}"))
    assert result["before"]["mate_in_one/accuracy"]["n"] == 1


def test_installed_engine_adjudicates_match(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOCKFISH_PATH")
    try:
        find_engine()
    except EngineUnusableError:
        pytest.skip("no Stockfish on this machine")
    match = summary(
        train(*DEFAULTS, "steps=1", "evaluation.rows=1", "evaluation.match_pairs=2", "evaluation.match_plies=3")
    )["match"]
    assert match["ended/adjudicated_engine"]["value"] == 1.0 and match["adjudicator"].startswith("Stockfish")


def test_without_an_evaluation_there_is_no_match_and_no_worse_key(train: Train) -> None:
    result = summary(train(*DEFAULTS, "steps=1", "evaluation.rows=0", "evaluation.match_pairs=5"))
    assert (result["match"], result["worse"], result["before"], result["spread"]["before"]) == ({}, [], {}, {})


def test_resumed_run_pairs_its_sampled_rows(train: Train, tmp_path: Path) -> None:
    given = (*DEFAULTS, "evaluation.rows=2", "evaluation.sampled_rows=1")
    whole = summary(train(*given, "steps=2", root="whole"))
    folder = train(*given, "steps=1", root="cut")
    again = summary(train(*given, f"resume={folder}", "steps=2", root="cut"))
    assert again["before"] == whole["before"] and again["gain"].keys() == whole["gain"].keys()

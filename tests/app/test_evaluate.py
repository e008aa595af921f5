"""`rookworld evaluate` and `rookworld evaluate compare`, through the command line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr.app import suites
from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.rows_file import rows_path
from rookworld_rlvr.evaluation.suite import SuiteName
from rookworld_rlvr.rewards.engine import EngineNotFoundError, find_engine

COMMON = ("model", "data", "generator", "evaluation_rows", "precision", "device", "threads")
MATE = {"fen": "6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "best": "a1a8"}
Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture
def evaluate(small_overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Evaluate:
    """What the command writes of the small model; nothing where it refuses."""
    given = [override for override in small_overrides if override.startswith(COMMON)]

    def run(*overrides: str, output: str = "table.json", exit_code: int = 0) -> dict[str, Any]:
        path = tmp_path / output
        assert main(["evaluate", *given, "evaluation_rows=3", f"output={path}", *overrides]) == exit_code
        found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        return found

    return run


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_one_table_and_one_file_say_what_was_evaluated_and_how(
    evaluate: Evaluate, small_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = evaluate()
    shown = capfd.readouterr().out
    assert list(found["suites"]) == ["policy", "environment"]
    table = found["suites"]["policy"]["table"] | found["suites"]["environment"]["table"]
    assert table["policy/valid"]["n"] == table["environment/valid"]["n"] == 3
    assert table["policy/valid"].keys() == {"value", "low", "high", "n"}
    parts = ("white", "black", "opening", "middlegame", "endgame")
    assert all(key in shown for key in table if not key.endswith(parts))
    assert found["model"]["path"] == str(small_model) and len(found["model"]["checksum"]) == 16
    assert found["config"]["seed"] == 0 and "chess" in found["software"]
    rows = rows_of(tmp_path / found["rows"])
    assert [(row["suite"], row["index"]) for row in rows] == [
        (name, index) for name in ("policy", "environment") for index in range(3)
    ]
    mean = sum(row["values"]["policy/valid"] for row in rows[:3]) / 3
    assert table["policy/valid"]["value"] == pytest.approx(mean)


def test_an_interrupted_evaluation_goes_on_behind_its_finished_rows(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rookworld_rlvr.evaluation.held_out.CHUNK_ROWS", 2)
    whole = evaluate("evaluation_rows=4")
    path = rows_path(tmp_path / "table.json")
    written = path.read_text()
    lines = written.splitlines(keepends=True)
    # The header, one chunk, a row of the next and half a line.
    path.write_text("".join(lines[:4]) + lines[4][:20])
    (tmp_path / "table.json").unlink()
    asked: list[int] = []
    greedy = suites.greedy_texts

    def counted(generator: Any, tokenizer: Any, examples: Any) -> list[str]:
        asked.append(len(examples))
        return greedy(generator, tokenizer, examples)

    monkeypatch.setattr(suites, "greedy_texts", counted)
    again = evaluate("evaluation_rows=4")
    assert asked == [2, 2, 2]
    assert path.read_text() == written
    for result in (whole, again):
        for suite in result["suites"].values():
            suite.pop("wall_s")
    assert again == whole
    asked.clear()
    evaluate("evaluation_rows=4")
    assert asked == []


def test_rows_of_another_model_or_configuration_are_refused_in_one_line_and_kept(
    evaluate: Evaluate, corpus: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluate()
    path = rows_path(tmp_path / "table.json")
    before = path.read_text()
    capfd.readouterr()
    for override, named in (
        ("model.path=tiny", "model.path"),
        ("evaluation_rows=2", "config.evaluation_rows"),
        ("seed=1", "config.seed"),
        ("suites=[policy]", "config.suites"),
    ):
        evaluate(override, exit_code=2)
        told = capfd.readouterr().err
        assert told.count("\n") == 1 and named in told and "another output= begins anew" in told
    moved = tmp_path / "held_out.txt"
    shutil.copy(corpus.held_out, moved)
    evaluate(f"data.held_out={moved}", output="moved.json")
    moved.write_text("".join(reversed(moved.read_text().splitlines(keepends=True))))
    capfd.readouterr()
    evaluate(f"data.held_out={moved}", output="moved.json", exit_code=2)
    assert "expected row 0 of policy" in capfd.readouterr().err
    # What changes none of these rows is no other configuration.
    evaluate("threads=1", "balanced.rows_per_class=3")
    assert path.read_text() == before


def test_rows_that_stand_in_the_training_source_are_left_out_and_counted(
    evaluate: Evaluate, corpus: Any, tmp_path: Path
) -> None:
    held_out, train = corpus.held_out.read_text().splitlines(), corpus.train.read_text()
    policy = [line for line in held_out if line.startswith("P: ")]
    leaky = tmp_path / "leaky.txt"
    leaky.write_text(train + policy[0] + "\n")
    found = evaluate(f"data.train={leaky}", "evaluation_rows=9")
    assert found["suites"]["policy"]["rows_in_training"] == 1
    assert found["suites"]["policy"]["rows"] == len(policy) - 1
    fen = policy[0].removeprefix("P: ").split("M:")[0].strip()
    assert not any(fen in row["item"] for row in rows_of(rows_path(tmp_path / "table.json")))


def test_every_suite_can_be_asked_for_by_name_and_has_rows(
    evaluate: Evaluate, small_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "mates.jsonl").write_text(json.dumps(MATE) + "\n")
    (tmp_path / "puzzles.jsonl").write_text(json.dumps(MATE | {"rating": 900, "themes": ["mateIn1"]}) + "\n")
    names = [name for name in SuiteName if name is not SuiteName.engine_match or engine_there()]
    found = evaluate(
        f"suites=[{','.join(names)}]",
        "balanced.rows_per_class=1",
        f"mate_in_one.path={tmp_path / 'mates.jsonl'}",
        f"puzzles.path={tmp_path / 'puzzles.jsonl'}",
        "puzzles.themes=[mateIn1]",
        "selfplay.games=2",
        "selfplay.max_halfmoves=2",
        f"selfplay.pgn={tmp_path / 'games.pgn'}",
        "closed_world.games=2",
        "closed_world.max_halfmoves=2",
        "closed_world.mover=random",
        "engine_match.pairs=1",
        "engine_match.max_halfmoves=2",
        "engine_match.opponent.nodes=10",
        f"retention.baseline={small_model}",
    )
    assert list(found["suites"]) == [str(name) for name in names]
    for name, suite in found["suites"].items():
        assert suite["rows"] >= 1 and all(key.startswith(f"{name}/") for key in suite["table"]) and suite["table"]
    results = found["suites"]
    assert results["balanced"]["rows"] == 10 and results["balanced"]["table"]["balanced/exact/castling"]["n"] == 1
    assert results["puzzles"]["table"]["puzzles/accuracy/mateIn1"]["n"] == 1
    assert results["selfplay"]["table"]["selfplay/illegal_rate"]["n"] >= 2
    assert (tmp_path / "games.pgn").read_text().count("[Event ") == 2
    assert results["closed_world"]["curve"]
    # Against itself a model has forgotten nothing.
    changes = {key: row["value"] for key, row in results["retention"]["table"].items() if key.endswith("/change")}
    assert "retention/policy_loss/change" in changes and set(changes.values()) == {0.0}
    assert results["retention"]["baseline"]["checksum"] == found["model"]["checksum"]


def engine_there() -> bool:
    try:
        return bool(find_engine())
    except EngineNotFoundError:
        return False


@pytest.mark.skipif(not engine_there(), reason="no Stockfish here")
def test_a_match_names_its_engine_and_an_elo_that_it_has_not_is_refused(
    evaluate: Evaluate, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ("suites=[engine_match]", "engine_match.pairs=1", "engine_match.max_halfmoves=2")
    match = evaluate(*given)["suites"]["engine_match"]
    assert match["engine"].startswith("Stockfish") and match["opponent"]["nodes"] == 1000
    assert "engine_match/elo" in match["table"]
    capfd.readouterr()
    evaluate(*given, "engine_match.opponent.elo=1", output="weak.json", exit_code=2)
    told = capfd.readouterr().err
    assert told.count("\n") == 1 and "engine_match.opponent: elo: expected" in told


def test_two_results_are_compared_key_by_key(
    evaluate: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = evaluate(output="a.json"), evaluate("model.path=tiny", output="b.json")
    capfd.readouterr()
    a, b, out = (str(tmp_path / name) for name in ("a.json", "b.json", "c.json"))
    assert main(["evaluate", "compare", a, b, "--json", out]) == 0
    found, shown = json.loads(Path(out).read_text()), capfd.readouterr().out
    assert found["models"]["first"] == first["model"] and found["models"]["second"] == second["model"]
    for suite in ("policy", "environment"):
        for key, one in first["suites"][suite]["table"].items():
            entry, two = found["table"][key], second["suites"][suite]["table"][key]
            assert (entry["first"], entry["second"]) == pytest.approx((one["value"], two["value"]))
            assert entry["gain"]["value"] == pytest.approx(two["value"] - one["value"])
            assert 0 < entry["p"] <= 1 and entry["n"] == one["n"]
    assert {entry["test"] for entry in found["table"].values()} == {"McNemar", "Wilcoxon"}
    assert "policy/valid" in shown and "McNemar" in shown


def test_results_of_other_rows_or_no_common_suite_are_not_compared(
    evaluate: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluate("suites=[policy]", output="a.json")
    evaluate("suites=[policy]", "evaluation_rows=2", output="b.json")
    evaluate("suites=[environment]", output="c.json")
    refused = {"b.json": "policy: expected rows of the same examples", "c.json": "a suite that both have"}
    for other, named in refused.items():
        capfd.readouterr()
        assert main(["evaluate", "compare", str(tmp_path / "a.json"), str(tmp_path / other)]) == 2
        told = capfd.readouterr()
        assert told.err.count("\n") == 1 and named in told.err and told.out == ""

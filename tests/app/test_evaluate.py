"""`rookworld evaluate` and `rookworld evaluate compare`, through the command line."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import chess.pgn
import pytest
from safetensors.torch import load_file, save_file

from rookworld_rlvr.app import suites
from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.play import load_chooser
from rookworld_rlvr.app.rows_file import RowsFile, rows_path
from rookworld_rlvr.errors import GAVE_UP
from rookworld_rlvr.evaluation.suite import Suite, SuiteName
from rookworld_rlvr.files import lock_for_writing
from rookworld_rlvr.provenance import software
from rookworld_rlvr.stockfish.engine import EngineUnusableError, find_engine

COMMON = ("model", "data", "generator", "evaluation.rows", "precision", "device", "threads")
MATE = {"fen": "6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "best": "a1a8"}
PUZZLES = "PuzzleId,FEN,Moves,Rating\none,7k/p4Q2/6K1/8/8/8/8/8 b - - 0 1,a7a6 f7g7,600\n"
Evaluate = Callable[..., dict[str, Any]]


@pytest.fixture
def evaluate(small_overrides: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Evaluate:
    """Return a function that evaluates the small model and returns the written file; empty if it is refused."""
    given = [override for override in small_overrides if override.startswith(COMMON)]

    def run(*overrides: str, output: str = "table.json", exit_code: int = 0) -> dict[str, Any]:
        path = tmp_path / output
        assert main(["evaluate", *given, "evaluation.rows=3", f"output={path}", *overrides]) == exit_code
        result: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        return result

    return run


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_evaluation_writes_its_tables_rows_and_provenance(
    evaluate: Evaluate, small_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = evaluate()
    shown = capfd.readouterr().out
    assert list(result["suites"]) == ["policy", "environment"]
    table = result["suites"]["policy"]["table"] | result["suites"]["environment"]["table"]
    assert table["policy/valid"]["n"] == table["environment/valid"]["n"] == 3
    assert table["policy/valid"].keys() == {"value", "low", "high", "n"}
    parts = ("white", "black", "opening", "middlegame", "endgame")
    assert all(key in shown for key in table if not key.endswith(parts))
    assert result["model"]["path"] == str(small_model) and len(result["model"]["checksum"]) == 16
    assert result["config"]["seed"] == 0 and "chess" in result["software"]
    rows = rows_of(tmp_path / result["rows"])
    assert [(row["suite"], row["index"]) for row in rows] == [
        (name, index) for name in ("policy", "environment") for index in range(3)
    ]
    mean = sum(row["values"]["policy/valid"] for row in rows[:3]) / 3
    assert table["policy/valid"]["value"] == pytest.approx(mean)


def test_simple_rules_stand_beside_the_model_on_the_same_rows(
    evaluate: Evaluate, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluations = "suites=[policy]", "data.held_out=default", "move_evals=default", "generator.max_new_tokens=1"
    rules = evaluate(*evaluations, "evaluation.rows=40")["suites"]["policy"]["rules"]
    assert 0 < rules["exchange"] < rules["capture"] < rules["random"] < 0.3
    shown = f"random move {rules['random']:.3f}, most valuable capture {rules['capture']:.3f}, exchange rule"
    assert shown in capfd.readouterr().out


def test_closed_stdout_pipe_loses_no_evaluation_result(
    small_overrides: list[str], tmp_path: Path, forked: Callable[[Callable[[], int]], int]
) -> None:
    given = [override for override in small_overrides if override.startswith(COMMON)]

    def work() -> int:
        reader, writer = os.pipe()
        os.close(reader)
        sys.stdout = os.fdopen(writer, "w", buffering=1)
        return main(["evaluate", *given, "evaluation.rows=3", f"output={tmp_path / 'table.json'}"])

    # The console of rich ends a program whose output nobody reads.
    assert forked(work) == 1
    assert list(json.loads((tmp_path / "table.json").read_text())["suites"]) == ["policy", "environment"]


def test_interrupted_evaluation_resumes_after_its_finished_rows(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rookworld_rlvr.evaluation.completions.CHUNK_ROWS", 2)
    whole = evaluate("evaluation.rows=4")
    path = rows_path(tmp_path / "table.json")
    written = path.read_text()
    lines = written.splitlines(keepends=True)
    # Keep the header, one chunk of two rows, one row of the next chunk and a part of a line.
    path.write_text("".join(lines[:4]) + lines[4][:20])
    (tmp_path / "table.json").unlink()
    generated: list[int] = []
    greedy = suites.greedy_completions

    def counted(generator: Any, tokenizer: Any, examples: Any) -> list[str]:
        generated.append(len(examples))
        return greedy(generator, tokenizer, examples)

    monkeypatch.setattr(suites, "greedy_completions", counted)
    again = evaluate("evaluation.rows=4")
    assert generated == [2, 2, 2]
    assert path.read_text() == written
    for result in (whole, again):
        for suite in result["suites"].values():
            suite.pop("wall_s")
    assert again == whole
    generated.clear()
    evaluate("evaluation.rows=4")
    assert generated == []


def test_rows_of_another_model_or_config_are_refused_and_kept(
    evaluate: Evaluate, corpus: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluate()
    path = rows_path(tmp_path / "table.json")
    before = path.read_text()
    capfd.readouterr()
    for override, named in (
        ("model.path=tiny", "model.path"),
        ("evaluation.rows=2", "config.evaluation.rows"),
        ("seed=1", "config.seed"),
        ("suites=[policy]", "config.suites"),
    ):
        evaluate(override, exit_code=2)
        error = capfd.readouterr().err
        assert error.count("\n") == 1 and named in error and "another output= begins anew" in error
    moved = tmp_path / "held_out.txt"
    shutil.copy(corpus.held_out, moved)
    evaluate(f"data.held_out={moved}", output="moved.json")
    moved.write_text("".join(reversed(moved.read_text().splitlines(keepends=True))))
    capfd.readouterr()
    evaluate(f"data.held_out={moved}", output="moved.json", exit_code=2)
    assert "expected row 0 of policy" in capfd.readouterr().err
    # Options that affect none of these rows may change.
    evaluate("threads=1", "selfplay.games=3")
    assert path.read_text() == before


def test_evaluation_rows_in_training_data_are_left_out_and_counted(
    evaluate: Evaluate, corpus: Any, tmp_path: Path
) -> None:
    held_out, train = corpus.held_out.read_text().splitlines(), corpus.train.read_text()
    policy = [line for line in held_out if line.startswith("P: ")]
    leaky = tmp_path / "leaky.txt"
    leaky.write_text(train + policy[0] + "\n")
    result = evaluate(f"data.train={leaky}", "evaluation.rows=9")
    assert result["suites"]["policy"]["rows_in_training"] == 1
    assert result["suites"]["policy"]["rows"] == len(policy) - 1
    fen = policy[0].removeprefix("P: ").split("M:")[0].strip()
    assert not any(fen in row["item"] for row in rows_of(rows_path(tmp_path / "table.json")))


def test_evaluation_rows_at_excluded_positions_are_left_out_and_counted(
    evaluate: Evaluate, corpus: Any, tmp_path: Path
) -> None:
    policy = [line for line in corpus.held_out.read_text().splitlines() if line.startswith("P: ")]
    fens = [line.removeprefix("P: ").split("M:")[0].strip() for line in policy]
    excluded = tmp_path / "self_play_positions.jsonl"
    excluded.write_text("".join(json.dumps({"fen": fen, "game": 3, "ply": 1}) + "\n" for fen in fens[1:]))
    result = evaluate("suites=[policy]", "evaluation.rows=9", f"data.exclude=[{excluded}]", "data.limit=8")
    assert result["suites"]["policy"]["rows_in_training"] == len(policy) - 1
    assert [fens[0] in row["item"] for row in rows_of(rows_path(tmp_path / "table.json"))] == [True]


def test_every_suite_can_be_selected_by_name_and_has_rows(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for games in ("conversion", "llm_chess", "acpl"):
        monkeypatch.setattr(f"rookworld_rlvr.evaluation.{games}.MAX_PLIES", 2)
    (tmp_path / "mates.jsonl").write_text(json.dumps(MATE) + "\n")
    (tmp_path / "puzzles.csv").write_text(PUZZLES)
    names = [name for name in SuiteName if name is not SuiteName.acpl or engine_there()]
    result = evaluate(
        f"suites=[{','.join(names)}]",
        f"evaluation.mates={tmp_path / 'mates.jsonl'}",
        f"evaluation.puzzles={tmp_path / 'puzzles.csv'}",
        "selfplay.games=2",
        "selfplay.max_plies=2",
        f"selfplay.pgn={tmp_path / 'games.pgn'}",
        "evaluation.match_pairs=1",
        "evaluation.match_plies=2",
        "conversion.positions=1",
        "conversion.defenders=[random]",
    )
    assert list(result["suites"]) == [str(name) for name in names]
    for name, suite in result["suites"].items():
        assert suite["rows"] >= 1 and all(key.startswith(f"{name}/") for key in suite["table"]) and suite["table"]
    results = result["suites"]
    assert results["selfplay"]["table"]["selfplay/illegal_rate"]["n"] >= 2
    assert (tmp_path / "games.pgn").read_text().count("[Event ") == 2


def test_suites_that_count_illegal_moves_write_and_the_others_choose(evaluate: Evaluate, tmp_path: Path) -> None:
    (tmp_path / "mates.jsonl").write_text(json.dumps(MATE) + "\n")
    (tmp_path / "puzzles.csv").write_text(PUZZLES)
    given = (f"evaluation.mates={tmp_path / 'mates.jsonl'}", f"evaluation.puzzles={tmp_path / 'puzzles.csv'}")
    short = ("selfplay.games=1", "selfplay.max_plies=1", "evaluation.rows=1", "generator.max_new_tokens=5")
    writing = ("mate_in_one", "puzzles", "selfplay", "llm_chess")
    for decoding, counting, legal in (("auto", writing, 0.0), ("legal", writing[:3], 1.0)):
        how = (f"suites=[{','.join(counting)}]", f"evaluation.decoding={decoding}")
        suites = evaluate(*how, *given, *short, output=f"{decoding}.json")["suites"]
        assert {suites[name]["decoding"] for name in counting} == {"legal" if legal else "text"}
        values = {key: entry["value"] for name in counting for key, entry in suites[name]["table"].items()}
        assert values["mate_in_one/legal"] == values["puzzles/legal"] == values["selfplay/legal_plies"] == legal
        assert values.get("llm_chess/ended/illegal_move", 1.0) == 1.0
    game = ("match.opponent=random", "evaluation.match_pairs=1", "evaluation.match_plies=1")
    match = evaluate("suites=[match]", *game, output="match.json")["suites"]["match"]
    assert match["decoding"] == "legal" and match["table"]["match/illegal"]["value"] == 0.0


def test_puzzles_at_excluded_positions_are_left_out_and_counted(
    evaluate: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.csv").write_text(PUZZLES)
    (tmp_path / "both.csv").write_text(f"{PUZZLES}two,7k/p4Q2/6K1/8/8/8/8/8 b - - 0 1,a7a5 f7g7,2100\n")
    given = ("suites=[puzzles]", f"data.exclude=[{tmp_path / 'one.csv'}]")
    result = evaluate(*given, f"evaluation.puzzles={tmp_path / 'both.csv'}")["suites"]["puzzles"]
    assert (result["rows"], result["positions_in_training"]) == (1, 1)
    assert result["table"]["puzzles/legal/2000_up"]["n"] == 1
    evaluate(*given, f"evaluation.puzzles={tmp_path / 'one.csv'}", output="other.json", exit_code=2)
    assert "suites: expected items of puzzles, got none" in capfd.readouterr().err


def engine_there() -> bool:
    try:
        return bool(find_engine())
    except EngineUnusableError:
        return False


@pytest.mark.parametrize(
    ("name", "requested", "expected"), [("selfplay", 100, 25), ("match", 32, 8), ("llm_chess", 30, 15)]
)
@pytest.mark.slow
def test_interrupted_games_resume_after_their_first_chunk(
    name: str, requested: int, expected: int, evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "match" and not engine_there():
        pytest.skip("no Stockfish here")
    given = (f"suites=[{name}]", "selfplay.max_plies=1", "evaluation.match_plies=1", "evaluation.match_pairs=32")
    # At full strength the engine plays the same moves in every run.
    given += ("match.opponent=stockfish", "match.stockfish.skill=20", "evaluation.rows=30")
    whole = evaluate(*given, output="whole.json")["suites"][name]
    assert whole["rows"] == requested
    path, add = rows_path(tmp_path / "table.json"), RowsFile.add

    def stopped(file: RowsFile, suite: Suite, rows: Any) -> None:
        if file.rows[suite.name]:
            raise OSError("stopped")
        add(file, suite, rows)

    with monkeypatch.context() as patch:
        patch.setattr(RowsFile, "add", stopped)
        evaluate(*given, exit_code=2)
    assert len(rows_of(path)) == expected
    assert evaluate(*given)["suites"][name]["table"] == whole["table"]
    assert path.read_text() == rows_path(tmp_path / "whole.json").read_text()


def test_rows_of_other_software_versions_are_not_resumed(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluate("suites=[environment]")
    for name in ("rookworld-rlvr", "torch", "chess"):
        older = software() | {name: "0.1"}
        with monkeypatch.context() as patch:
            patch.setattr("rookworld_rlvr.app.evaluate.software", lambda older=older: older)
            capfd.readouterr()
            evaluate("suites=[environment]", exit_code=2)
        error = capfd.readouterr().err
        assert error.count("\n") == 1 and f"software.{name} is" in error and "'0.1' here" in error


def records_of(path: Path) -> list[str]:
    with path.open() as file:
        games = iter(lambda: chess.pgn.read_game(file), None)
        return [f"{game.headers['Round']}: {game.mainline_moves()} {game.end().comment}" for game in games if game]


def test_pgn_file_holds_each_counted_game_once_after_interruptions(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rookworld_rlvr.evaluation.selfplay.SIDE_BY_SIDE", 2)
    path = tmp_path / "games.pgn"
    given = ("suites=[selfplay]", "selfplay.games=5", "selfplay.max_plies=3", f"selfplay.pgn={path}")
    add = RowsFile.add

    def full(file: RowsFile, suite: Suite, rows: Any) -> None:
        if len(file.rows[suite.name]) == 2:
            raise OSError("the disk is full")
        add(file, suite, rows)

    with monkeypatch.context() as patch:
        patch.setattr(RowsFile, "add", full)
        evaluate(*given, exit_code=2)
    assert len(records_of(path)) == 2
    # As after a crash between writing the rows of a chunk and its games.
    path.unlink()
    evaluate(*given)
    whole = path.read_text()
    assert [record.split(":")[0] for record in records_of(path)] == ["1", "2", "3", "4", "5"]
    assert whole == "".join(row["record"] for row in rows_of(rows_path(tmp_path / "table.json")))
    evaluate(*given)
    assert path.read_text() == whole
    # A file with games of another evaluation is refused and left unchanged.
    for other in ((*given, "seed=1"), (*given[:3], f"selfplay.pgn={tmp_path}"), (*given[:3], "selfplay.pgn=/nope/a")):
        capfd.readouterr()
        evaluate(*other, output="other.json", exit_code=2)
        error = capfd.readouterr().err
        assert error.count("\n") == 1 and "selfplay.pgn: expected" in error
        assert path.read_text() == whole and not rows_path(tmp_path / "other.json").exists()
    both = ("suites=[selfplay,match]", f"selfplay.pgn={tmp_path}/a", f"match.pgn={tmp_path}/a")
    evaluate(*both, output="other.json", exit_code=2)
    error = capfd.readouterr().err
    assert f"pgn: expected a file of its own for each, got {tmp_path}/a for selfplay, {tmp_path}/a for match" in error
    # Games may not overwrite the tables or the rows either.
    for taken in ("other.json", "other.json.rows.jsonl"):
        evaluate(*given[:3], f"selfplay.pgn={tmp_path / taken}", output="other.json", exit_code=2)
        assert "pgn: expected a file of its own for each" in capfd.readouterr().err


def test_file_not_written_by_evaluate_is_not_overwritten(
    evaluate: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "config.json"
    mine.write_text('{"suites": {}}')
    evaluate(output="config.json", exit_code=2)
    error = capfd.readouterr().err
    assert (
        error == f"rookworld: output: expected no file, or an evaluation's file with its rows beside it, got {mine}\n"
    )
    assert mine.read_text() == '{"suites": {}}' and not rows_path(mine).exists()


def test_output_locked_by_another_evaluation_is_refused(
    evaluate: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with lock_for_writing(tmp_path / "table.json", "output"):
        evaluate(exit_code=2)
    error = capfd.readouterr().err
    assert error.startswith("rookworld: output: expected to write") and error.count("\n") == 1
    assert evaluate()["suites"] and not list(tmp_path.glob(".*"))


@pytest.mark.skipif(not engine_there(), reason="no Stockfish here")
def test_match_names_its_engine_and_refuses_unsupported_elo(
    evaluate: Evaluate, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ("suites=[match]", "match.opponent=stockfish", "evaluation.match_pairs=1", "evaluation.match_plies=2")
    match = evaluate(*given)["suites"]["match"]
    assert match["engine"].startswith("Stockfish") and "match/elo" in match["table"]
    capfd.readouterr()
    evaluate(*given, "match.stockfish.elo=1", output="weak.json", exit_code=2)
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and "match.stockfish: elo: expected" in error


def test_two_results_are_compared_key_by_key(
    evaluate: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = evaluate(output="a.json"), evaluate("model.path=tiny", output="b.json")
    capfd.readouterr()
    a, b, out = (str(tmp_path / name) for name in ("a.json", "b.json", "c.json"))
    assert main(["evaluate", "compare", a, b, "--json", out]) == 0
    result, shown = json.loads(Path(out).read_text()), capfd.readouterr().out
    assert result["models"]["first"] == first["model"] and result["models"]["second"] == second["model"]
    for suite in ("policy", "environment"):
        for key, one in first["suites"][suite]["table"].items():
            entry, two = result["table"][key], second["suites"][suite]["table"][key]
            assert (entry["first"], entry["second"]) == pytest.approx((one["value"], two["value"]))
            assert entry["gain"]["value"] == pytest.approx(two["value"] - one["value"])
            assert 0 < entry["p"] <= 1 and entry["n"] == one["n"]
    assert {entry["test"] for entry in result["table"].values()} == {"McNemar", "Wilcoxon"}
    assert "policy/valid" in shown and "McNemar" in shown


def test_ratio_of_sums_over_rows_is_compared_by_jackknife(
    evaluate: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ("suites=[selfplay]", "selfplay.games=4", "selfplay.max_plies=4")
    tables = [
        evaluate(*given, *override, output=name)["suites"]["selfplay"]["table"]
        for name, override in (("a.json", []), ("b.json", ["model.path=tiny"]))
    ]
    capfd.readouterr()
    a, b, out = (str(tmp_path / name) for name in ("a.json", "b.json", "c.json"))
    assert main(["evaluate", "compare", a, b, "--json", out]) == 0
    entry, shown = json.loads(Path(out).read_text())["table"]["selfplay/illegal_rate"], capfd.readouterr().out
    one, two = (table["selfplay/illegal_rate"]["value"] for table in tables)
    assert (entry["first"], entry["second"], entry["gain"]["value"]) == pytest.approx((one, two, two - one))
    assert entry["test"] == "jackknife" and entry["n"] == 4 and 0 < entry["p"] <= 1
    assert entry["gain"]["low"] < entry["gain"]["high"] and one != two
    assert "selfplay/illegal_rate" in shown and "jackknife" in shown


@pytest.fixture
def reasked(tmp_path: Path) -> Callable[..., str]:
    """Return a function that copies a.json with one setting or fact of its header changed; it returns the path."""

    def make(name: str, value: Any) -> str:
        header, *rows = rows_path(tmp_path / "a.json").read_text().splitlines(keepends=True)
        head = json.loads(header)
        *parents, last = name.split(".")
        place = head["evaluation"]
        for parent in parents:
            place = place[parent]
        assert place.get(last) != value
        place[last] = value
        other = tmp_path / "other.json"
        rows_path(other).write_text(json.dumps(head) + "\n" + "".join(rows))
        shutil.copy(tmp_path / "a.json", other)
        return str(other)

    return make


def test_compare_refuses_other_settings_and_reports_harmless_ones(
    evaluate: Evaluate, reasked: Callable[..., str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluate("suites=[policy,selfplay]", "selfplay.games=3", "selfplay.max_plies=2", output="a.json")
    a = str(tmp_path / "a.json")
    refused = {
        "config.seed": 1,
        "config.selfplay.max_plies": 3,
        "config.selfplay.decoding.temperature": 1.0,
        "facts.policy.rows_in_training": 1,
        "facts.selfplay.decoding": "legal",
    }
    for name, value in refused.items():
        capfd.readouterr()
        assert main(["evaluate", "compare", a, reasked(name, value)]) == 2
        printed = capfd.readouterr()
        assert printed.err.count("\n") == 1 and printed.out == ""
        assert f"expected two results of one evaluation, got others: {name} is" in printed.err
        assert f"{a} and {value!r} in {tmp_path / 'other.json'}" in printed.err
    # The nodes matter only if both results have the loss that is measured with them; here neither has it.
    allowed = {
        "config.precision": "fp16",
        "config.generator.kind": "hf",
        "config.selfplay.pgn": "b.pgn",
        "config.evaluation.nodes": 9,
        "config.match": {"attempts": 1},
        "software.chess": "1.0",
    }
    for name, value in allowed.items():
        capfd.readouterr()
        assert main(["evaluate", "compare", a, reasked(name, value)]) == 0
        shown = capfd.readouterr().out
        if name == "config.match":
            assert "Differs" not in shown
        else:
            assert f"{name} is " in shown and f" in A, {value} in B" in shown


def test_comparison_names_both_models_and_ends_with_a_summary(
    evaluate: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = evaluate("suites=[policy]", output="a.json")
    shown = capfd.readouterr().out
    assert re.search(rf"result: {tmp_path / 'a.json'}; failures: \S*rookworld rollouts {tmp_path / 'a.json'}", shown)
    # B is better than A in every row of one measure and equal in all others.
    worse, better = tmp_path / "a.json", tmp_path / "b.json"
    better.write_text(worse.read_text())
    header, *lines = rows_path(worse).read_text().splitlines()
    rows = [json.loads(line) for line in lines] * 20
    for file, value in ((worse, 0.2), (better, 0.1)):
        changed = [row | {"index": i, "item": str(i), "values": row["values"] | {"policy/eval_error": value}}
                for i, row in enumerate(rows)]  # fmt: skip
        rows_path(file).write_text("\n".join([header, *map(json.dumps, changed)]) + "\n")
        table = json.loads(file.read_text())
        table["suites"]["policy"]["rows"] = len(rows)
        file.write_text(json.dumps(table))
    assert main(["evaluate", "compare", str(worse), str(better)]) == 0
    shown = capfd.readouterr().out
    model = result["model"]
    assert f"A: {model['path']}, {model['parameters']:,} parameters, weights {model['checksum']}, from {worse}" in shown
    assert "B is better in policy/eval_error.\n" in shown and "B is worse" not in shown
    assert f"({len(rows)} rows, Holm's correction at 5 %)" in shown and "No measured difference in " in shown


def test_compare_refuses_losses_of_different_nodes_or_engines(
    evaluate: Evaluate, reasked: Callable[..., str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluate("suites=[policy]", output="a.json")
    a = tmp_path / "a.json"
    # Change the header as if an engine had measured the loss.
    header, rows = rows_path(a).read_text().split("\n", 1)
    head = json.loads(header)
    head["evaluation"]["facts"]["policy"] |= {"engine": "Stockfish 15", "engine_nodes": 100}
    head["evaluation"]["config"]["evaluation"]["nodes"] = 100
    rows_path(a).write_text(json.dumps(head) + "\n" + rows)
    for name, value in (("config.evaluation.nodes", 9), ("facts.policy.engine", "Stockfish 16")):
        capfd.readouterr()
        assert main(["evaluate", "compare", str(a), reasked(name, value)]) == 2
        assert f"{name} is " in capfd.readouterr().err


def test_compare_refuses_different_rows_or_no_common_suite(
    evaluate: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluate("suites=[policy]", output="a.json")
    evaluate("suites=[policy]", "evaluation.rows=2", output="b.json")
    evaluate("suites=[environment]", output="c.json")
    refused = {"b.json": "policy: expected rows of the same examples", "c.json": "a suite that both have"}
    for other, named in refused.items():
        capfd.readouterr()
        assert main(["evaluate", "compare", str(tmp_path / "a.json"), str(tmp_path / other)]) == 2
        printed = capfd.readouterr()
        assert printed.err.count("\n") == 1 and named in printed.err and printed.out == ""


def test_compare_refuses_unfinished_results_and_lists_unshared_suites(
    evaluate: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluate(output="a.json")
    evaluate("suites=[policy]", output="b.json")
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    capfd.readouterr()
    assert main(["evaluate", "compare", str(a), str(b)]) == 0
    assert f"Not in both: policy, environment in {a}; policy in {b}" in capfd.readouterr().out
    rows = rows_path(b).read_text()
    rows_path(b).write_text("".join(rows.splitlines(keepends=True)[:3]))
    assert main(["evaluate", "compare", str(a), str(b)]) == 2
    error = capfd.readouterr().err
    assert (
        "expected rows {'policy': 3} beside" in error and "got {'policy': 2}: the evaluation is not finished" in error
    )
    rows_path(b).write_text(rows)
    b.unlink()
    assert main(["evaluate", "compare", str(a), str(b)]) == 2
    assert f"expected a finished evaluation's tables in {b}, got [Errno 2]" in capfd.readouterr().err


def test_comparison_does_not_overwrite_its_inputs(
    evaluate: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluate(output="a.json")
    for path in (tmp_path / "a.json", rows_path(tmp_path / "a.json")):
        before = path.read_text()
        capfd.readouterr()
        assert main(["evaluate", "compare", *[str(tmp_path / "a.json")] * 2, "--json", str(path)]) == 2
        assert f"--json: expected a file of its own, got {path}, which is compared" in capfd.readouterr().err
        assert path.read_text() == before


@pytest.fixture
def broken_model(small_model: Path, tmp_path: Path) -> Path:
    """Return the folder of a diverged model: one of its weights is NaN."""
    folder = tmp_path / "broken"
    shutil.copytree(small_model, folder)
    weights = load_file(folder / "model.safetensors")
    weights["transformer.ln_f.weight"][0] = nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_label_loss_of_a_diverged_model_is_infinite(
    evaluate: Evaluate, broken_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = ("suites=[label_loss]", f"model.path={broken_model}")
    table = evaluate(*given)["suites"]["label_loss"]["table"]
    assert table["label_loss/policy"] == {"value": "inf", "low": 0.0, "high": "inf", "n": 3}
    shown, errors = capfd.readouterr()
    assert "not finite, the first is transformer.ln_f.weight: the model has diverged\n" in errors
    assert "│ label_loss/policy " in shown and "∞" in shown and "…" not in shown
    assert '"label_loss/policy": "inf"' in rows_path(tmp_path / "table.json").read_text()
    # The table is equal when it is read from the rows, and the comparison with itself has a gain of 0.
    assert evaluate(*given)["suites"]["label_loss"]["table"] == table
    first, out = str(tmp_path / "table.json"), tmp_path / "c.json"
    assert main(["evaluate", "compare", first, first, "--json", str(out)]) == 0
    entry = json.loads(out.read_text())["table"]["label_loss/policy"]
    assert (entry["first"], entry["second"], entry["gain"]["value"], entry["p"]) == ("inf", "inf", 0.0, 1.0)


def test_every_command_that_reads_a_model_names_weights_that_are_not_finite(
    broken_model: Path, corpus: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told = (
        f"{broken_model} has weights that are not finite, the first is transformer.ln_f.weight: the model has diverged"
    )
    load_chooser(str(broken_model), 0)
    assert capfd.readouterr().err == f"rookworld: model.path: {told}\n"
    given = (f"model.path={broken_model}", f"corpus=[{corpus.train}]", f"output={tmp_path / 'sft'}", "steps=1")
    assert main(["sft", *given]) == GAVE_UP
    assert capfd.readouterr().err.count(told) == 1


def test_invalid_weights_file_is_refused_in_one_line(
    evaluate: Evaluate, broken_model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = (broken_model / "model.safetensors").read_bytes()
    for left in (b"version https://git-lfs.github.com/spec/v1\n", whole[:100], whole[:-9]):
        (broken_model / "model.safetensors").write_bytes(left)
        evaluate(f"model.path={broken_model}", exit_code=2)
        error = capfd.readouterr().err
        wanted = "a Git LFS pointer" if left.startswith(b"version") else "expected a causal language model"
        assert error.count("\n") == 1 and "model.path: expected" in error and wanted in error


def test_binary_mates_file_is_refused_with_its_path(
    evaluate: Evaluate, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mates.jsonl.zst"
    path.write_bytes(b"(\xb5/\xfd\x00\xff")
    evaluate("suites=[mate_in_one]", f"evaluation.mates={path}", exit_code=2)
    error = capfd.readouterr().err
    assert (
        error.count("\n") == 1 and f"evaluation.mates: expected text in {path}, got a file compressed by zstd" in error
    )

"""A run's report: its summary, boards, charts and transcripts, its reproducibility, and its time for long runs."""

import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import chess
import pytest

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.board.drawing import Arrow, Board, Kind
from rookworld_rlvr.report.curves import POINTS, chart_data, marks, thinned
from rookworld_rlvr.report.page import TRANSCRIPTS, render, runs_table, shown_transcripts
from rookworld_rlvr.report.run_record import RunRecord, read_run
from rookworld_rlvr.report.summary import summarise_run
from rookworld_rlvr.report.svg import board_svg, shared_shapes
from rookworld_rlvr.report.transcripts import draw

from .conftest import BELIEVED, ENVIRONMENT, MATE, POLICY, said, write_run

Make = Callable[..., RunRecord]


def test_match_summary_has_endings_and_both_scores(record: Make) -> None:
    run = record()
    share = {"value": 0.75, "low": 0.7, "high": 0.8, "n": 400}
    run.summary["match"] |= {
        "rules_score": {"value": 0.49}, "normalised_elo": {"value": -70.0, "low": -104.0, "high": -36.0, "n": 400},
        "likelihood_of_superiority": 0.0012, "pentanomial": [40, 50, 60, 30, 20],
        "ended/adjudicated_material": share, "ended/checkmate": {"value": 0.25}, "ended/stalemate": {"value": 0.0},
    }  # fmt: skip
    told = summarise_run(run.summary, run.metrics).match
    for part in ("score 0.415, by the rules alone 0.490", "-70 normalised Elo [-104, -36]"):
        assert part in told
    assert "likelihood of superiority 0.001" in told and "40, 50, 60, 30, 20" in told
    assert told.endswith("400 games: 75% adjudicated material, 25% checkmate")
    run.summary["worse"].remove("match/elo")
    assert "material alone decided most games" in summarise_run(run.summary, run.metrics).match


@pytest.mark.parametrize(
    ("low", "said"),
    [
        (-4.0, "no measured difference"),
        (12.0, "ahead in a test of this match alone, but not certain when all"),
    ],
)
def test_match_sentence_does_not_contradict_its_interval(record: Make, low: float, said: str) -> None:
    elo = {"value": 89.0, "low": low, "high": 175.0, "n": 64}
    summary = record().summary | {"better": [], "worse": []}
    told = summarise_run(summary | {"match": {"elo": elo}}, []).match
    assert told.startswith(f"+89 Elo [{low:+.0f}, +175], {said}")
    assert ("no measured difference" in told) is (low < 0)


def test_summary_names_graded_headline_keys_of_few_rows(record: Make) -> None:
    summary, loss = record().summary, "policy/win_probability_loss"
    gain, entry = {"value": 0.0, "low": -0.1, "high": 0.1}, {"value": 0.1, "low": 0.0, "high": 0.2}
    for n, named in ((100, True), (101, False)):
        parts = {"gain": {**summary["gain"], loss: gain}, "after": {**summary["after"], loss: {**entry, "n": n}}}
        told = [text for text in summarise_run(summary | parts, []).sentences() if "Means of at most 100 rows" in text]
        assert bool(told) is named and all(text.endswith(f"skewed: {loss}.") for text in told)


def test_summary_begins_with_match_and_lists_losses_before_gains(record: Make) -> None:
    run = record()
    match, worse, better, same, warning = summarise_run(run.summary, run.metrics).sentences()
    assert "-60 Elo [-90, -30], worse" in match and "score 0.415; 400 games" in match
    assert worse.startswith("Worse: policy/legal_best_move 0.900 → 0.860 (-0.040 [-0.050, -0.030])")
    assert better.startswith("Better: policy/valid 0.900 → 0.950 (+0.050 [+0.040, +0.060])")
    assert "1 of 4 tested headline keys" in same and "2048 rows per task" in same
    assert warning == "Warning: kl, shown after 4 steps, first 41, last 44."


def test_uncorrected_loss_is_reported_as_perhaps_worse(record: Make) -> None:
    run = record()
    summary = run.summary | {"perhaps_worse": ["policy/valid"], "detectable": {"policy/valid": 0.0125}}
    [sentence] = [text for text in summarise_run(summary, []).sentences() if text.startswith("Perhaps worse")]
    assert "policy/valid 0.900 → 0.950" in sentence and "0.013 is found 4 times in 5" in sentence


def test_untested_keys_do_not_count_as_no_measured_difference(record: Make) -> None:
    summary = record().summary | {"better": [], "worse": []}
    rows = summary | {"detectable": {"policy/valid": 0.01, "policy/legal_best_move": 0.01}}
    told = summarise_run(rows, []).no_difference
    assert told.startswith("No measured difference in 2 tested headline keys: 2048 rows per task")
    games = summary | {"detectable": {"match/elo": 30.0}}
    assert "in 1 tested headline keys: 400 games are too few" in summarise_run(games, []).no_difference
    assert summarise_run(summary | {"detectable": {}}, []).no_difference.startswith("No headline key was tested")
    elo = summary["match"]["elo"] | {"n": 10}
    short = summarise_run(summary | {"match": {"elo": elo}, "detectable": {}}, []).match
    assert "not tested below 30 games" in short and "no measured difference" not in short


def test_reward_rise_without_better_key_is_a_warning(record: Make) -> None:
    run = record()
    alone = {**run.summary, "better": []}
    assert any("reward rose" in sign for sign in summarise_run(alone, run.metrics).signs)
    flat = [{**step, "reward/mean": 0.5 + 0.001 * (step["step"] % 3)} for step in run.metrics]
    assert not any("reward rose" in sign for sign in summarise_run(alone, flat).signs)


def test_run_without_an_evaluation_after_training_says_so() -> None:
    assert "not evaluated after training" in summarise_run({}, []).no_difference
    before_alone = {"before": {"policy/valid": {"value": 1.0}}, "gain": {}, "match": {}, "worse": [], "better": []}
    assert "not evaluated after training" in summarise_run(before_alone, []).no_difference


def test_candidates_are_arrows_with_evals_and_illegal_ones_are_marked() -> None:
    drawn = draw(said(1, POLICY, MATE, 1.0))
    candidates = [(move.text, move.eval, move.legal, move.best, move.repeated) for move in drawn.candidates]
    assert candidates == [
        ("f3f7", "9.9", True, True, False), ("c4f7", "1.0", True, False, False), ("f3f7", "0.5", True, True, True),
        ("e1e3", "0.4", False, False, False), ("b1c3", "-0.1", True, False, False),
    ]  # fmt: skip
    [board] = drawn.boards
    svg = board_svg(board)
    assert board.title == "White to move" and svg.count("<polygon") == 4 and drawn.problem == ""
    # Two moves end on f7, which shows the eval of the best one.
    assert re.findall(r'class="eval">([^<]*)<', svg) == ["9.9", "0.4", "-0.1"]


def test_candidate_that_is_not_a_move_has_no_arrow() -> None:
    drawn = draw(said(1, POLICY, "M: x E: <b> B: zz", 0.0))
    assert [move.text for move in drawn.candidates] == ["x", "zz"]
    assert drawn.boards[0].arrows == [] and drawn.problem == "illegal best move"


def test_predicted_board_marks_squares_that_differ_from_true_board() -> None:
    drawn = draw(said(1, ENVIRONMENT, BELIEVED, 0.4))
    assert [board.title for board in drawn.boards] == ["move: e2e4", "board that the model predicts", "true next board"]
    assert drawn.wrong == ["d4", "e4"]
    assert [board_svg(board).count("#d0453a") for board in drawn.boards] == [0, 2, 0]
    assert drawn.boards[0].arrows == [Arrow(chess.E2, chess.E4, Kind.legal)] and drawn.problem == "wrong prediction"
    right = draw(said(1, ENVIRONMENT, BELIEVED.replace("3P4", "4P3"), 1.0))
    assert right.wrong == [] and right.problem == "" and right.boards[1].pieces == right.boards[2].pieces


def test_wrong_fields_and_unreadable_boards_are_reported() -> None:
    wrong = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR w KQ - 0 1+1.0+1+0"
    assert draw(said(1, ENVIRONMENT, wrong, 0.4)).wrong == [
        "turn: wrote w, true b", "castling: wrote KQ, true KQkq", "reward: wrote 1.0, true 0.001",
        "terminated: wrote 1, true 0",
    ]  # fmt: skip
    # Text behind a FEN or behind the flags is an error, other digits of the same reward are not.
    right = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
    for completion, errors in (
        (f"{right}+0.0010+0+0", []),
        (f"{right} 7+0.001+0+0", ["extra text: 7"]),
        (f"{right}+0.001+0+0+junk", ["extra text: junk"]),
    ):
        assert draw(said(1, ENVIRONMENT, completion, 0.4)).wrong == errors
    unread = draw(said(1, ENVIRONMENT, "", -1.0))
    assert unread.wrong[0] == "no board could be read" and len(unread.boards) == 2


def test_board_svg_uses_shapes_shared_by_the_page() -> None:
    whole = chess.svg.board(chess.Board())
    own = board_svg(Board("", chess.Board(), chess.WHITE))
    assert len(own) < len(whole) / 5
    assert re.findall(r'<use href="(#[a-z]+-[a-z]+)"', own) == re.findall(r'<use href="(#[^"]*)"', whole)
    shapes = shared_shapes()
    assert {f'id="{color}-{piece}"' for color in chess.COLOR_NAMES for piece in chess.PIECE_NAMES[1:]} <= set(
        re.findall(r'id="[a-z-]*"', shapes)
    )
    assert 'id="board-from-white"' in shapes and 'id="board-from-black"' in shapes


def test_shown_transcripts_begin_with_the_last_step(record: Make) -> None:
    run = record()
    assert [one.transcript.step for one in shown_transcripts(run, 0, 15)] == [20] * 5 + [10] * 5 + [1] * 5
    assert {one.transcript.step for one in shown_transcripts(run, 0, 10)} == {1, 20}
    assert len(shown_transcripts(run, 0, 15)) == 15 and len(shown_transcripts(run, 0, 4)) == 4
    problems = [one.boards.problem for one in shown_transcripts(run, 0, 5)]
    assert problems == ["", "missing_field", "illegal best move", "wrong prediction", "bad_fen"]


def test_points_are_thinned_by_means_and_events_are_marked(record: Make) -> None:
    steps, values = thinned([(step, float(step)) for step in range(1, 10_001)])
    assert len(steps) == len(values) == POINTS
    assert steps[0] == values[0] == 10.5 and steps[-1] == pytest.approx(values[-1], rel=1e-4)
    drawn = [(mark["step"], mark["text"]) for mark in marks(record())]
    assert drawn == [(31, "fault"), (31, "restore"), (41, "kl")]


def test_missing_failure_key_of_a_step_counts_as_zero(record: Make) -> None:
    charts = {chart["title"]: chart for chart in chart_data([record(steps=4)])}
    [curve] = charts["Completions that the parser refused"]["curves"]
    assert curve["values"] == [0.1, 0.0, 0.1, 0.0]


def test_each_task_of_a_run_has_charts_of_its_own(record: Make) -> None:
    own = {"reward/task/chat": 0.5, "reward/component/chat/parse/move": 0.9, "validation/chat/legal": 0.2}
    run = record(steps=4)
    charts = {chart["title"]: chart for chart in chart_data([replace(run, metrics=[*run.metrics, {"step": 5, **own}])])}
    for title, key in (("Reward of chat: structure and parse", "reward/component/chat/parse/move"),
                       ("Validation of chat", "validation/chat/legal")):  # fmt: skip
        assert [curve["key"] for curve in charts[title]["curves"]] == [key]
    assert not any("TASK" in title or "environment" in title for title in charts)


def test_several_runs_share_one_chart_per_key_and_one_table(record: Make) -> None:
    runs = [record("a/one"), record("a/two", seed=1), record("a/three", seed=2)]
    charts = {chart["title"]: chart for chart in chart_data(runs)}
    assert [curve["run"] for curve in charts["reward/mean"]["curves"]] == [0, 1, 2]
    table = {row["key"]: row for row in runs_table(runs)}
    assert table["policy/legal_best_move"]["each"] == [("-0.040", True)] * 3
    assert table["match/elo"]["mean"] == "-60" and "policy/valid/white" not in table
    page = render(runs)
    assert all(f"</span>{run.name}" in page for run in runs)


def test_runs_of_the_same_rows_are_compared_by_the_gains_of_each_row(record: Make) -> None:
    key = "policy/valid"
    runs = [record(), record(seed=1)]
    gain = {key: {"value": 0.5, "low": 0.5 - 0.566, "high": 0.5 + 0.566}}
    gains = [dict(enumerate(values)) for values in ((0.0, 1.0, 0.0, 1.0), (1.0, 1.0, 0.0, 0.0))]

    def interval(*measured: str) -> str:
        same = [
            replace(run, summary={**run.summary, "gain": gain}, measured=name, row_gains={key: of_rows})
            for run, name, of_rows in zip(runs, measured, gains, strict=True)
        ]
        return str(next(row["interval"] for row in runs_table(same) if row["key"] == key))

    assert interval("one", "one") == "[+0.100, +0.900]"
    assert interval("one", "another") == interval("", "") == "[-0.066, +1.066]"


def test_model_text_is_escaped_in_the_page(record: Make) -> None:
    page = render([record()])
    assert "<b>&" not in page and "&lt;b&gt;&amp;" in page
    evil = replace(record(), name="x/</script><script>alert(1)</script>")
    assert "<script>alert" not in render([evil])


def test_page_needs_no_network(record: Make, tmp_path: Path) -> None:
    write_run(tmp_path / "run", record())
    assert not re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?(?:https?:)?//', render([read_run(tmp_path / "run")]))


@pytest.mark.slow
def test_page_equals_that_of_another_process(record: Make, tmp_path: Path) -> None:
    write_run(tmp_path / "day" / "run", record())
    page = render([read_run(tmp_path / "day" / "run")])
    command = [sys.executable, "-m", "rookworld_rlvr", "report", str(tmp_path / "day" / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    there = tmp_path / "day" / "run" / "report.html"
    assert there.read_text(encoding="utf-8") == page
    assert done.stdout.splitlines()[1].startswith("Match against the start: -60 Elo")
    assert done.stdout.endswith(f"report: {there}\n")


@pytest.mark.parametrize("name", ["a[/x].html", "a[b].html"])
def test_brackets_of_the_path_are_printed_as_they_are(
    name: str, record: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", record())
    output = tmp_path / name
    output.parent.mkdir(exist_ok=True)
    assert main(["report", str(tmp_path / "run"), "--output", str(output)]) == 0
    assert output.is_file() and capsys.readouterr().out.endswith(f"report: {output}\n")


def test_unfinished_run_has_report_without_tables(record: Make, tmp_path: Path) -> None:
    write_run(tmp_path / "run", record())
    (tmp_path / "run" / "summary.json").unlink()
    with (tmp_path / "run" / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 61, "rewa')
    run = read_run(tmp_path / "run")
    assert len(run.metrics) == 60 and "not yet, or it was killed" in render([run])


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "report: the following arguments are required: RUN"),
    (["{here}"], "expected a run's folder, with config.yaml in it, got {here}"),
    (["{here}/run", "--output", "{here}/no/r.html"], "report: --output: expected a file in a folder that exists"),
    (["{here}/run", "--output", "{here}"], "report: --output: expected a file in a folder that exists"),
])  # fmt: skip
def test_report_refuses_invalid_arguments_in_one_line(
    arguments: list[str], message: str, record: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", record())
    assert main(["report", *(text.format(here=tmp_path) for text in arguments)]) == 2
    said_there = capsys.readouterr().err
    assert message.format(here=tmp_path) in said_there and said_there.count("\n") == 1


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "rollouts.jsonl"])
def test_damaged_file_of_a_run_is_named(
    record: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write_run(tmp_path / "run", record())
    (tmp_path / "run" / name).write_text("{\n")
    assert main(["report", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert f"expected a file of a run at {tmp_path / 'run' / name}, got JSONDecodeError" in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_report_of_10000_steps_takes_under_10_seconds_and_5_megabytes(record: Make, tmp_path: Path) -> None:
    keys = [f"reward/component/policy/correctness/part{number}" for number in range(60)]
    run = record(steps=10_000)
    long = replace(
        run,
        metrics=[{**step, **dict.fromkeys(keys, 0.123456789 * step["step"])} for step in run.metrics],
        transcripts=[replace(row, step=step) for step in range(1, 10_001, 10) for row in run.transcripts[:5]],
    )
    write_run(tmp_path / "run", long)
    started = time.perf_counter()
    (tmp_path / "report.html").write_text(render([read_run(tmp_path / "run")]), encoding="utf-8")
    assert time.perf_counter() - started < 10
    assert (tmp_path / "report.html").stat().st_size < 5e6
    assert len(shown_transcripts(long, 0, TRANSCRIPTS)) == TRANSCRIPTS
